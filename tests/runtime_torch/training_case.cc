#include "tests/runtime_torch/training_case.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "partition/batching/step_instances.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/lower/lower_plan.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"

namespace pipeloom::runtime {
namespace {

// A text model that conditions a diffusion transformer: loss head, projector,
// cross-attention, both kinds of modulation, window attention.
ModelSpec VideoModel(const ModelSpec& vlm) {
  ModelSpec model;
  model.name = "small-t2v";
  ModuleSpec text = vlm.modules[ModuleId(1)];
  text.name = "text";
  LayerSpec projector{.kind = LayerKind::kLinears,
                      .name = "projector",
                      .hidden = 24,
                      .linears = {{.in = 32, .out = 24}},
                      .on_output_tokens = true};
  text.layers.push_back(projector);
  ModuleSpec generator = vlm.modules[ModuleId(0)];
  generator.name = "generator";
  generator.role = ModuleRole::kGenerator;
  generator.layers.resize(generator.layers.size() - 1);
  for (const LayerId l : generator.layers.ids()) {
    LayerSpec& layer = generator.layers[l];
    if (layer.kind != LayerKind::kTransformer) continue;
    layer.cross_attention = {
        .heads = 2, .head_dim = 8, .context_width = 24, .context_tokens = 0};
    layer.modulation = {.vectors = 6,
                        .condition_width = l.value() % 2 == 0 ? 16 : 0};
    if (l.value() % 3 == 0) {
      layer.attention.kind = AttentionKind::kWindow;
      layer.attention.window = 3;
    }
  }
  generator.layers.push_back({.kind = LayerKind::kLinears,
                              .name = "head",
                              .hidden = 8,
                              .linears = {{.in = 16, .out = 8}}});
  generator.token_rules[0].merge = 1;
  model.modules = {text, generator};
  model.edges = {{.from = ModuleId(0), .to = ModuleId(1), .as_context = true}};
  return model;
}

}  // namespace

JobSpec JobOf(const TrainingCase& c) {
  JobSpec job = pipeloom::testing::SmallVlmJob();
  for (LayerSpec& layer : job.model.modules[ModuleId(1)].layers) {
    layer.attention.kv_heads = layer.attention.heads / 4;
  }
  job.model = ScaleModel(job.model, 16, 1);
  for (ModuleSpec& module : job.model.modules) {
    for (LayerSpec& layer : module.layers) {
      layer.vocab = layer.vocab > 0 ? 96 : 0;
    }
  }
  if (c.video) job.model = VideoModel(job.model);
  job.parallel.pp = c.pp;
  job.cluster.gpus_per_node = 8;
  job.training.microbatches = 3;
  job.training.microbatch_tokens = 700;
  job.training.microbatch_images = 6;
  job.training.frozen_modules = c.frozen;
  if (c.sub_instances > 0) {
    for (const ModuleSpec& module : job.model.modules) {
      job.training.sub_microbatch_sizes.push_back(
          {.module = module.name,
           .instances =
               module.role == ModuleRole::kBackbone ? 1 : c.sub_instances});
    }
  }
  return job;
}

namespace {

// Layers go from a stage to the next one of its module.
void MakeUneven(Partition* partition, const ModelSpec& model) {
  for (const ModuleId m : model.modules.ids()) {
    const std::vector<StageId> stages = partition->StagesOf(m);
    for (size_t i = 1; i < stages.size(); i += 2) {
      Stage& before = partition->stages[stages[i - 1]];
      Stage& after = partition->stages[stages[i]];
      const int32_t moved = before.num_layers / 2;
      before.num_layers -= moved;
      after.num_layers += moved;
      after.first_layer = LayerId(after.first_layer.value() - moved);
    }
  }
}

MemoryPolicy MixedPolicy(const StageGraph& graph, const Partition& partition,
                         uint64_t seed) {
  Random random(seed);
  MemoryPolicy policy;
  for (const Task& task : graph.tasks()) {
    if (task.pass != Pass::kForward) continue;
    const int32_t layers = partition.stages[task.stage].num_layers;
    MemoryChoice choice{
        .period = static_cast<int32_t>(random.Between(1, layers + 1))};
    for (int32_t l = 0; l < layers; ++l) {
      LayerMemory layer(static_cast<MemoryStrategy>(random.Below(3)));
      if (layer.recomputes_fully() && random.Below(3) > 0) {
        layer.groups = OperatorGroups::FromBits(
            static_cast<uint32_t>(random.Between(1, OperatorGroups::kAllBits)));
      }
      choice.layers.push_back(layer);
    }
    policy.choice_of.push_back(static_cast<int32_t>(policy.choices.size()));
    policy.choices.push_back(std::move(choice));
  }
  return policy;
}

// Every other layer's input waits on the host, and the plan says when.
MemoryPolicy HostPolicy(const StageGraph& graph, const Partition& partition) {
  MemoryPolicy policy;
  for (const Task& task : graph.tasks()) {
    if (task.pass != Pass::kForward) continue;
    MemoryChoice choice;
    for (int32_t l = 0; l < partition.stages[task.stage].num_layers; ++l) {
      choice.layers.push_back(l % 2 == 0 ? MemoryStrategy::kOffload
                                         : MemoryStrategy::kKeep);
    }
    policy.choice_of.push_back(static_cast<int32_t>(policy.choices.size()));
    policy.choices.push_back(std::move(choice));
  }
  return policy;
}

// Half of what each forward keeps, if a backward is to come.
std::vector<planner::HostCopy> HostCopies(const StageGraph& graph) {
  std::vector<planner::HostCopy> copies;
  for (const TaskId id : graph.task_ids()) {
    const Task& task = graph.task(id);
    if (task.pass != Pass::kForward || task.alloc < Bytes(2)) continue;
    const auto out = graph.outgoing(id);
    const bool returns = std::any_of(out.begin(), out.end(), [&](EdgeId e) {
      const Task& to = graph.task(graph.edge(e).to);
      return to.pass == Pass::kBackward && to.stage == task.stage &&
             to.rank == task.rank;
    });
    if (!returns) continue;
    copies.push_back({.task = id, .payload = Bytes(task.alloc.count() / 2)});
  }
  return copies;
}

}  // namespace

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (difference == 0) return 0;
  return norm > 0 ? std::sqrt(difference / norm) : INFINITY;
}

absl::StatusOr<std::unique_ptr<CaseRun>> CaseRun::Make(const TrainingCase& c) {
  auto run = std::unique_ptr<CaseRun>(new CaseRun);
  run->case_ = c;
  run->job_ = JobOf(c);
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(run->job_));
  run->batch_ = testing::RandomBatch(/*seed=*/7, /*num_samples=*/60, 3);
  if (c.text_only) {
    for (int32_t i = 0; i < run->batch_.samples.size(); ++i) {
      if (i / 4 % 2 == 0) run->batch_.samples[SampleId(i)].images.clear();
    }
  }
  run->costs_ = std::make_unique<emulator::StageCostModel>(run->job_);
  PIPELOOM_ASSIGN_OR_RETURN(run->strategy_, planner::MakeStrategy(c.schedule));
  PIPELOOM_ASSIGN_OR_RETURN(
      run->prepared_,
      planner::PrepareJob(*run->strategy_, *run->costs_, run->batch_));
  if (c.uneven) MakeUneven(&run->prepared_.partition, run->job_.model);
  PIPELOOM_RETURN_IF_ERROR(
      ValidatePartition(run->prepared_.partition, run->job_.model));
  return run;
}

TorchSetup CaseRun::Setup(TorchPrecision precision) const {
  TorchSetup setup{.model = job_.model, .partition = prepared_.partition};
  for (const ModuleId m : job_.model.modules.ids()) {
    setup.frozen.push_back(job_.IsFrozen(m));
  }
  setup.options.precision = precision;
  return setup;
}

absl::StatusOr<TrainingStep> CaseRun::Next() {
  const int64_t step = steps_++;
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(job_, batch_, first_sample_));
  first_sample_ += packed.num_samples;
  planner::PlanInput input{.packed = &packed, .step = step};
  input.budget.max_evaluations = 20;
  PIPELOOM_ASSIGN_OR_RETURN(planner::PlanResult planned,
                            planner::PlanStep(prepared_, input));
  TrainingStep result{.plan = std::move(planned.plan),
                      .memory = std::move(planned.memory)};
  const Partition& partition = prepared_.partition;
  if (case_.memory == StepMemory::kMixed) {
    result.memory =
        MixedPolicy(result.plan.graph, partition, static_cast<uint64_t>(step));
  } else if (case_.memory != StepMemory::kKeep) {
    const bool copies = case_.memory == StepMemory::kHostCopies;
    partition::GraphOptions options{.split_backward =
                                        strategy_->split_backward()};
    if (!copies) {
      options.memory = PolicyByStage(AllRecomputed(partition), partition,
                                     planned.microbatches);
    }
    PIPELOOM_ASSIGN_OR_RETURN(
        const partition::BuiltGraph built,
        partition::BuildStageGraph(*costs_, partition, planned.microbatches,
                                   options));
    PIPELOOM_ASSIGN_OR_RETURN(
        const planner::SearchResult found,
        strategy_->MakeSchedule(built.graph, partition, 1, input.budget));
    const std::vector<planner::HostCopy> host_copies =
        copies ? HostCopies(built.graph) : std::vector<planner::HostCopy>();
    PIPELOOM_ASSIGN_OR_RETURN(
        result.plan,
        planner::LowerPlan(built.graph, found.schedule, host_copies));
    result.plan.step = step;
    result.memory =
        copies ? HostPolicy(result.plan.graph, partition) : MemoryPolicy();
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      result.work,
      MakeTorchWork(job_.model, partition::InstancesOf(job_.model, packed, 0),
                    planned.microbatches,
                    /*token_divisor=*/16, static_cast<uint64_t>(100 + step)));
  return result;
}

std::vector<TrainingCase> TrainingCases() {
  std::vector<TrainingCase> cases;
  const auto add = [&](TrainingCase c) { cases.push_back(std::move(c)); };
  for (const char* schedule :
       {"1f1b", "interleaved", "zb-v", "dip", "pipeloom"}) {
    std::string name = absl::StrCat("Strategy_", schedule);
    std::replace(name.begin(), name.end(), '-', '_');
    for (const int32_t pp : {1, 2, 4, 8}) {
      add({.name = absl::StrCat(name, "_", pp),
           .schedule = schedule,
           .pp = pp});
    }
    add({.name = name + "_subs",
         .schedule = schedule,
         .pp = 4,
         .sub_instances = 2});
    add({.name = name + "_video_subs",
         .schedule = schedule,
         .pp = 4,
         .video = true,
         .sub_instances = 2});
    add({.name = name + "_frozen_encoder",
         .schedule = schedule,
         .frozen = {"encoder"},
         .text_only = true});
    add({.name = name + "_text_only_subs_mixed_memory",
         .schedule = schedule,
         .sub_instances = 2,
         .memory = StepMemory::kMixed,
         .text_only = true});
  }
  for (const char* schedule :
       {"1f1b", "interleaved", "zb-v", "dip", "pipeloom"}) {
    std::string name = absl::StrCat("Strategy_", schedule);
    std::replace(name.begin(), name.end(), '-', '_');
    add({.name = name + "_recompute",
         .schedule = schedule,
         .memory = StepMemory::kRecompute});
    add({.name = name + "_video_mixed_memory",
         .schedule = schedule,
         .pp = 4,
         .video = true,
         .memory = StepMemory::kMixed,
         .text_only = true});
    add({.name = name + "_uneven",
         .schedule = schedule,
         .pp = 4,
         .sub_instances = 1,
         .uneven = true});
    add({.name = name + "_frozen_backbone",
         .schedule = schedule,
         .pp = 4,
         .sub_instances = 2,
         .memory = StepMemory::kMixed,
         .frozen = {"backbone"},
         .text_only = true});
  }
  for (const char* schedule :
       {"1f1b", "interleaved", "zb-v", "dip", "pipeloom"}) {
    std::string name = absl::StrCat("Strategy_", schedule);
    std::replace(name.begin(), name.end(), '-', '_');
    add({.name = name + "_host_copies",
         .schedule = schedule,
         .pp = 4,
         .sub_instances = 2,
         .memory = StepMemory::kHostCopies});
  }
  return cases;
}

}  // namespace pipeloom::runtime
