#include "adapters/trainer_files.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "adapters/action_table.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_launch.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "adapters/torchtitan_launch.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

// Says which layers of which stages are recomputed.
std::string FirstLayersText(const JobSpec& job, const Partition& partition,
                            const RecomputeSetting& recompute) {
  std::string text;
  const TrainerStageList list = StageList(job, partition);
  for (size_t i = 0; i < list.size(); ++i) {
    for (const StageId s : list[i]) {
      const Stage& stage = partition.stages[s];
      const int32_t all = NumRecomputable(stage, job.model);
      const int32_t count =
          recompute.period > 0 ? all : std::min(all, recompute.first[s]);
      if (count == 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", "(", i, ", \"",
                      job.model.modules[stage.module].name, "\", ", count, ")");
    }
  }
  return text;
}

std::string TorchArguments(const JobSpec& job, const Partition& partition,
                           const RecomputeSetting& recompute,
                           const TrainerFile& schedule,
                           absl::string_view file) {
  const TrainerStageList list = StageList(job, partition);
  std::vector<std::vector<size_t>> by_rank(
      static_cast<size_t>(partition.num_ranks));
  for (size_t i = 0; i < list.size(); ++i) {
    by_rank[static_cast<size_t>(partition.stages[list[i].front()].rank.value())]
        .push_back(i);
  }
  std::vector<std::string> ranks;
  for (const auto& stages : by_rank) {
    ranks.push_back(absl::StrCat("[", absl::StrJoin(stages, ", "), "]"));
  }
  return absl::StrCat(
      "# torch.distributed.pipelining: the stages of each rank, and the "
      "schedule\n",
      "STAGES_OF_RANK = [", absl::StrJoin(ranks, ", "), "]\n",
      "NUM_MICROBATCHES = ", schedule.most_microbatches, "\n",
      "# schedule = _PipelineScheduleRuntime(stages, NUM_MICROBATCHES, "
      "loss_fn)\n# schedule._load_csv(\"",
      file,
      "\")\n"
      "# (torch 2.6 needs stage_index_to_group_rank too, the rank of each "
      "stage)\n",
      "# (stage, module, n): its first n blocks are wrapped in "
      "torch.utils.checkpoint\nRECOMPUTE = [",
      recompute.is_none() ? "" : FirstLayersText(job, partition, recompute),
      "]\n", StageComments(job, partition));
}

std::string DeepSpeedArguments(const JobSpec& job, const Partition& partition,
                               const RecomputeSetting& recompute,
                               const TrainerFile& schedule) {
  std::vector<int32_t> parts = {0};
  for (const std::vector<StageId>& stage : StageList(job, partition)) {
    int32_t layers = parts.back();
    for (const StageId s : stage) layers += partition.stages[s].num_layers;
    parts.push_back(layers);
  }
  const ParallelLayout& layout = job.parallel;
  const bool divides =
      job.training.optimizer_sharding != OptimizerSharding::kNone;
  return absl::StrCat(
      OrderComment(layout),
      "# examples/deepspeed/plan_engine.py: stage i has layers [PARTS[i], "
      "PARTS[i + 1])\n"
      "# PlannedModule(layers, PARTS, num_stages=NUM_STAGES, "
      "dynamic_shape=DYNAMIC_SHAPE,\n"
      "#     activation_checkpoint_interval=ACTIVATION_CHECKPOINT_INTERVAL)\n",
      layout.tp == 1
          ? ""
          : absl::StrFormat(
                "# and topology=PipeModelDataParallelTopology(num_pp=NUM_STAGES"
                ", num_mp=%d, num_dp=%d)\n#     of "
                "deepspeed.runtime.pipe.topology; the layers divide themselves "
                "over their %d\n#     tensor-parallel GPUs%s\n",
                layout.tp, layout.dp, layout.tp,
                job.setup.sequence_parallel ? ", with sequence parallelism"
                                            : ", without sequence parallelism"),
      "NUM_STAGES = ", partition.num_ranks, "\nPARTS = [",
      absl::StrJoin(parts, ", "),
      "]\nDYNAMIC_SHAPE = ", schedule.rows_differ ? "True" : "False",
      "\nACTIVATION_CHECKPOINT_INTERVAL = ", recompute.period,
      recompute.is_none()
          ? ""
          : "\n# and checkpointable_layers=[the class of the blocks]: the plan "
            "keeps other layers",
      "\n# of the configuration\nGRADIENT_ACCUMULATION_STEPS = ",
      schedule.most_microbatches,
      "\nZERO_OPTIMIZATION = {\"stage\": ", divides ? 1 : 0,
      "}\nBF16 = {\"enabled\": ",
      LastModule(job).precision == Precision::kFp32 ? "False" : "True", "}\n",
      StageComments(job, partition));
}

// Returns whether a stage sends tensors with different numbers of rows.
bool RowsDiffer(const ExecutionPlan& plan) {
  std::map<StageId, int64_t> rows;
  for (const Dependency& edge : plan.graph.edges()) {
    const Task& from = plan.graph.task(edge.from);
    if (from.pass != Pass::kForward || edge.rows == 0) continue;
    const auto seen = rows.try_emplace(from.stage, edge.rows).first;
    if (seen->second != edge.rows) return true;
  }
  return false;
}

// Returns a comment with the order in which a trainer takes a plan's
// microbatches; empty if they come as they are.
std::string FeedComment(const TrainerFile& file) {
  if (file.feed_order.empty()) return "";
  return absl::StrCat("# feed microbatches in the order ",
                      absl::StrJoin(file.feed_order, ","), "\n");
}

}  // namespace

absl::StatusOr<TrainerFile> ScheduleFileOf(const TrainerLimits& trainer,
                                           const ExecutionPlan& plan) {
  TrainerFile file;
  if (trainer.everything)
    return absl::InvalidArgumentError("no file is needed");
  file.rows_differ = RowsDiffer(plan);
  ActionOptions options;
  options.format = std::string(trainer.name);
  options.recompute_at_launch = true;
  if (trainer.order == PassOrder::kAny) {
    // The trainer executes the plan itself; its text is for people.
    for (const Task& task : plan.graph.tasks()) {
      file.most_microbatches =
          std::max(file.most_microbatches, task.microbatch.value() + 1);
      if (task.pass == Pass::kWeightGrad && !trainer.split_backward) {
        return absl::FailedPreconditionError(
            "the plan has weight gradients apart");
      }
    }
    file.fewest_microbatches = file.most_microbatches;
    return file;
  }
  PIPELOOM_ASSIGN_OR_RETURN(PlanActions actions, ActionsOf(plan, options));
  file.notes = std::move(actions.notes);
  file.most_microbatches = actions.shape.num_microbatches;
  file.fewest_microbatches = file.most_microbatches;
  if (!std::is_sorted(actions.microbatches.begin(),
                      actions.microbatches.end())) {
    file.feed_order = std::move(actions.microbatches);
  }
  if (trainer.split_backward) {
    file.extension = "csv";
    file.text = PrintTorchCsv(actions.table);
    return file;
  }
  MergeBackwards(&actions.table);
  if (trainer.order == PassOrder::kStock) {
    PIPELOOM_ASSIGN_OR_RETURN(const MegatronOrder order,
                              ToMegatronOrder(actions.table));
    if (order.group == 0) {
      return absl::FailedPreconditionError(
          "the plan is no stock schedule of Megatron-Core");
    }
    file.extension = "order";
    file.group = order.group;
    file.text = absl::StrCat(FeedComment(file), PrintMegatronOrder(order));
    return file;
  }
  PIPELOOM_ASSIGN_OR_RETURN(const DeepSpeedSteps steps,
                            ToDeepSpeed(actions.table));
  file.extension = "deepspeed";
  file.text = absl::StrCat(FeedComment(file), PrintDeepSpeed(steps));
  return file;
}

absl::StatusOr<std::string> LaunchArguments(const TrainerLimits& trainer,
                                            const JobSpec& job,
                                            const Partition& partition,
                                            const RecomputeSetting& recompute,
                                            const TrainerFile& schedule,
                                            absl::string_view file) {
  if (trainer.everything) return std::string();
  if (trainer.name == "torch") {
    return TorchArguments(job, partition, recompute, schedule, file);
  }
  if (trainer.name == "torchtitan") {
    return TorchtitanArguments(job, partition, recompute, schedule, file);
  }
  if (trainer.name == "deepspeed") {
    return DeepSpeedArguments(job, partition, recompute, schedule);
  }
  return MegatronArguments(trainer, job, partition, recompute, schedule, file);
}

}  // namespace pipeloom::adapters
