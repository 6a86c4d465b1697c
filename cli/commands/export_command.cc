// `pipeloom export`: writes a plan in the formats of other tools.
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "adapters/action_table.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_layout.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "emulator/step/emulate_step.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_writer.h"
#include "ir/plan/pass_pairs.h"
#include "ir/text/text_format.h"
#include "planner/orders/dual_pipe_v.h"
#include "trace/chrome_trace.h"

namespace pipeloom::cli {
namespace {

// Finds the passes that run together. If there are none, finds those that are
// one operation in dualpipe-v, if the plan is that schedule with one stage per
// rank and direction.
void FindOperations(const ExecutionPlan& plan,
                    adapters::ActionOptions* options) {
  const StageGraph& graph = plan.graph;
  const IdVector<TaskId, TaskId> seconds = SecondsOfPairs(graph);
  for (const TaskId t : seconds.ids()) {
    if (seconds[t].is_none() || graph.task(t).pass != Pass::kForward) continue;
    options->pairs.push_back({t, seconds[t]});
  }
  if (!seconds.empty()) return;
  const int32_t p = graph.num_ranks();
  if (plan.schedule != "dualpipe-v") return;
  std::map<std::tuple<Pass, int32_t, int32_t>, TaskId> tasks;
  int32_t microbatches = 0;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    tasks[{task.pass, task.stage.value(), task.microbatch.value()}] = t;
    microbatches = std::max(microbatches, task.microbatch.value() + 1);
  }
  for (int32_t r = 0; r < p; ++r) {
    auto program = planner::DualPipeVRank(r, p, microbatches);
    program.operations.push_back(program.steps.size());
    const auto task = [&](size_t i) {
      const planner::PassStep& step = program.steps[i];
      const int32_t stage = step.chunk == 0 ? r : 2 * p - 1 - r;
      const auto found = tasks.find({step.pass, stage, step.microbatch});
      return found == tasks.end() ? TaskId() : found->second;
    };
    for (size_t i = 0; i + 1 < program.operations.size(); ++i) {
      const size_t begin = program.operations[i];
      if (program.operations[i + 1] - begin < 2) continue;
      if (task(begin).is_none() || task(begin + 1).is_none()) continue;
      if (program.steps[begin].pass == Pass::kForward) {
        options->pairs.push_back({task(begin), task(begin + 1)});
      } else {
        options->whole.push_back(task(begin));
      }
    }
  }
}

class ExportCommand : public Command {
 public:
  CommandText text() const override {
    return {"export", "PLAN --to FORMAT [--out FILE]",
            "a plan in the format of another tool",
            "chrome: the emulated timeline as Chrome trace JSON, for "
            "Perfetto. graph-json: the step's tasks as a TaskGraph, the input "
            "of `pipeloom search`. text: the plan's text form. Without --out "
            "to stdout; with --format json that is an object with the text and "
            "the notes.\n\n"
            "torch-csv, torch-comms: a schedule file of "
            "torch.distributed.pipelining, passes alone or with transfers. "
            "megatron-order: chunks by rank, as Megatron-Core orders them. "
            "megatron-layout: its layout string; --layers says how many "
            "layers each stage has. deepspeed: instruction lists of a "
            "DeepSpeed pipeline engine. What these cannot say of a plan is an "
            "error that names it (docs/integration.md); what the trainer must "
            "see to itself is noted on stderr."};
  }

  std::vector<Flag> Flags() override {
    return {
        {"to",
         &to_,
         "FORMAT",
         "of the file",
         {"chrome", "graph-json", "text", "torch-csv", "torch-comms",
          "megatron-order", "megatron-layout", "deepspeed"}},
        OutputFlag("out", &out_, "write there"),
        Needing({"to=torch-csv", "to=torch-comms", "to=megatron-order",
                 "to=deepspeed"},
                {"drop-memory", &drop_memory_, "",
                 "leave recomputation and offloading to the trainer"}),
        Needing({"to=torch-csv"},
                {"split", &split_, "",
                 "torch-csv: write pairs of passes one after another, which "
                 "torch below 2.9 needs, and dualpipe-v's whole backwards as "
                 "input and weight gradients; other plans are written as they "
                 "are"}),
        Needing(
            {"to=torch-comms"},
            {"waits", &waits_, "",
             "torch-comms: a wait for every send, which torch 2.15 demands"}),
        Needing({"to=megatron-layout"}, {"layers", &layers_, "N,N,...",
                                         "megatron-layout: layers by stage"}),
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}}};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string path,
                              OneArgument(args, "PLAN"));
    if (to_.empty()) return UsageError("--to FORMAT is missing");
    PIPELOOM_ASSIGN_OR_RETURN(const ExecutionPlan plan, ReadPlan(path));
    std::string text;
    if (to_ == "chrome") {
      PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                                emulator::EmulateStep(plan));
      text = trace::ChromeTrace({{{&plan, &trace}}});
    } else if (to_ == "graph-json") {
      text = formats::PrintTaskGraph(plan.graph);
    } else if (to_ == "text") {
      text = ToString(plan);
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(text, Foreign(plan, context));
    }
    if (!out_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(out_, text));
    }
    if (format_ == "json") {
      context.print(Json(path, text));
    } else {
      context.print(out_.empty() ? text : absl::StrCat("wrote ", out_, "\n"));
    }
    return absl::OkStatus();
  }

 private:
  std::string Json(const std::string& plan, const std::string& text) const {
    formats::JsonWriter json(true);
    json.BeginObject().Key("plan").String(plan).Key("to").String(to_);
    json.Key("size_bytes").Int(static_cast<int64_t>(text.size()));
    json.Key("notes").BeginArray();
    for (const std::string& note : notes_) json.String(note);
    json.EndArray();
    if (out_.empty()) {
      json.Key("text").String(text);
    } else {
      json.Key("out").String(out_);
    }
    return absl::StrCat(json.EndObject().text(), "\n");
  }

  absl::StatusOr<std::string> Foreign(const ExecutionPlan& plan,
                                      const Context& context) {
    adapters::ActionOptions options;
    options.format = to_;
    options.drop_memory = drop_memory_;
    options.transfers = to_ == "torch-comms";
    if (to_ == "torch-csv" && !split_) FindOperations(plan, &options);
    if (to_ == "megatron-layout") {
      // Only the places of layers matter here, not the schedule.
      return Layout(plan.graph);
    }
    PIPELOOM_ASSIGN_OR_RETURN(adapters::PlanActions actions,
                              adapters::ActionsOf(plan, options));
    notes_ = actions.notes;
    for (const std::string& note : notes_) {
      context.warn(absl::StrCat("note: ", note));
    }
    if (to_ == "torch-comms" && waits_) {
      PIPELOOM_RETURN_IF_ERROR(adapters::AddWaits(&actions.table));
    }
    if (to_ == "torch-csv" || to_ == "torch-comms") {
      return adapters::PrintTorchCsv(actions.table);
    }
    adapters::MergeBackwards(&actions.table);
    if (to_ == "deepspeed") {
      PIPELOOM_ASSIGN_OR_RETURN(const auto steps,
                                adapters::ToDeepSpeed(actions.table));
      return adapters::PrintDeepSpeed(steps);
    }
    PIPELOOM_ASSIGN_OR_RETURN(const auto order,
                              adapters::ToMegatronOrder(actions.table));
    return adapters::PrintMegatronOrder(order);
  }

  absl::StatusOr<std::string> Layout(const StageGraph& graph) const {
    int32_t stages = 0;
    for (const Task& task : graph.tasks()) {
      stages = std::max(stages, task.stage.value() + 1);
      if (!task.stage.is_none() &&
          task.stage.value() % graph.num_ranks() != task.rank.value()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "megatron-layout cannot say this plan: stage ", task.stage.value(),
            " is on rank ", task.rank.value(),
            "; Megatron places stages in a loop, this one on rank ",
            task.stage.value() % graph.num_ranks()));
      }
    }
    std::vector<int32_t> layers;
    for (const std::string& count : layers_) {
      int32_t value = 0;
      if (!absl::SimpleAtoi(count, &value)) {
        return UsageError(
            absl::StrCat("--layers: \"", count, "\" is no whole number"));
      }
      layers.push_back(value);
    }
    if (layers.size() != static_cast<size_t>(stages)) {
      return UsageError(absl::StrCat("--layers has ", layers.size(),
                                     " counts; the plan has ", stages,
                                     " stages"));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const auto symbols,
                              adapters::MegatronLayoutOf(layers));
    const std::string text = adapters::PrintMegatronLayout(symbols);
    PIPELOOM_RETURN_IF_ERROR(
        adapters::ParseMegatronLayout(text, graph.num_ranks()).status());
    return absl::StrCat(text, "\n");
  }

  std::string to_{};
  std::vector<std::string> notes_{};  // Duties of the trainer.
  std::string format_ = "table";
  std::string out_{};
  bool drop_memory_ = false;
  bool split_ = false;
  bool waits_ = false;
  std::vector<std::string> layers_{};
};

}  // namespace

std::unique_ptr<Command> MakeExportCommand() {
  return std::make_unique<ExportCommand>();
}

}  // namespace pipeloom::cli
