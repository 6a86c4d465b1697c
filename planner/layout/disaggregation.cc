#include "planner/layout/disaggregation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/stage/stage_cost.h"
#include "partition/batching/typical_work.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/layer_chain.h"
#include "partition/placement/layer_partition.h"
#include "planner/step/plan_step.h"
#include "planner/step/sample_steps.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::planner {
namespace {

using partition::OrchestrationAnswer;
using partition::OrchestrationProblem;
using partition::UnitAnswer;
using partition::UnitOption;
using partition::UnitProblem;

constexpr int32_t kUnits = 3;  // Encoder, backbone, generator.
constexpr int32_t kBackbone = 1;
// Replicas that the job's own strategy plans: those that take longest with
// `megatron`.
constexpr size_t kMostSearched = 8;
constexpr double kParametersAStage = 8e9;  // In the baseline.

// Returns the unit that each module is in, indexed by module.
IdVector<ModuleId, int32_t> UnitsOf(const ModelSpec& model) {
  IdVector<ModuleId, int32_t> units(model.modules.size());
  int32_t unit = 0;
  for (const ModuleId m : model.modules.ids()) {
    const ModuleRole role = model.modules[m].role;
    if (unit == 0 && role != ModuleRole::kEncoder) unit = 1;
    if (unit == 1 && role != ModuleRole::kBackbone) unit = 2;
    units[m] = unit;
  }
  return units;
}

JobSpec WithLayout(JobSpec job, int32_t tp, int32_t pp, int32_t dp) {
  job.module_parallelism.clear();
  job.parallel.tp = tp;
  job.parallel.cp = 1;
  job.parallel.pp = pp;
  job.parallel.dp = dp;
  job.partition = {};
  return job;
}

std::unique_ptr<const emulator::OpCostModel> PriceOf(const PriceLayout& price,
                                                     const JobSpec& job) {
  return price ? price(job) : nullptr;
}

// Returns the samples' microbatches of one replica, not split.
absl::StatusOr<std::vector<SubMicrobatch>> WholeMicrobatches(
    const JobSpec& job, const std::vector<partition::PackedStep>& steps,
    int64_t* count) {
  Partition whole;
  whole.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  std::vector<SubMicrobatch> all;
  *count = 0;
  for (const partition::PackedStep& step : steps) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const Microbatches microbatches,
        partition::SplitUnpadded(job, step, /*replica=*/0, whole));
    *count += microbatches.num_microbatches;
    for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
      all.push_back(sub);
    }
  }
  return all;
}

// Adds a module to its unit at one tensor-parallel size, with its mean costs
// for a microbatch.
void AddModule(const emulator::StageCostModel& costs, ModuleId m,
               bool needs_input_grad, const std::vector<SubMicrobatch>& work,
               int64_t microbatches, UnitOption* kept, UnitOption* recomputed) {
  const auto& layers = costs.job().model.modules[m].layers;
  const Stage whole{.module = m,
                    .first_layer = LayerId(0),
                    .num_layers = layers.size(),
                    .rank = RankId(0),
                    .segment = SegmentId(0)};
  const emulator::StageMemory memory = costs.Memory(whole);
  double seconds = 0;
  double forward = 0;
  double activations = 0;
  double inputs = 0;
  for (const SubMicrobatch& sub : work) {
    if (sub.module != m) continue;
    const emulator::StageCost cost =
        costs.Cost(whole, sub.shape, needs_input_grad);
    seconds += ToSeconds(cost.all_passes());
    forward += ToSeconds(cost.forward);
    activations += static_cast<double>(cost.activations.count());
    Bytes largest{};
    for (const LayerId layer : layers.ids()) {
      Stage one = whole;
      one.first_layer = layer;
      one.num_layers = 1;
      const emulator::StageCost c =
          costs.Cost(one, sub.shape, needs_input_grad);
      inputs += static_cast<double>(std::min(c.input, c.activations).count());
      largest = std::max(largest, c.activations);
    }
    inputs += static_cast<double>(largest.count());
  }
  const auto n = static_cast<double>(std::max<int64_t>(microbatches, 1));
  for (UnitOption* option : {kept, recomputed}) {
    option->weight_bytes +=
        static_cast<double>((memory.weights + memory.gradients).count());
    option->optimizer_bytes += static_cast<double>(memory.optimizer.count());
    option->seconds += seconds / n;
  }
  kept->activation_bytes += activations / n;
  recomputed->activation_bytes += std::min(inputs, activations) / n;
  recomputed->seconds += forward / n;
}

IdVector<ModuleId, bool> NeedInputGrad(const JobSpec& job) {
  IdVector<ModuleId, bool> needs(job.model.modules.size(), false);
  for (const ModuleId m : job.model.modules.ids()) {
    for (const ModuleEdge& edge : job.model.edges) {
      if (edge.to == m && (!job.IsFrozen(edge.from) || needs[edge.from])) {
        needs[m] = true;
      }
    }
  }
  return needs;
}

// Returns the backbones' layers, weighted by their time on a microbatch.
std::vector<partition::LayerUnit> BackboneUnits(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const IdVector<ModuleId, int32_t>& units,
    const std::vector<SubMicrobatch>& work) {
  std::vector<partition::LayerUnit> backbone;
  for (const ModuleId m : units.ids()) {
    if (units[m] != kBackbone) continue;
    IdVector<LayerId, int64_t> weights(job.model.modules[m].layers.size(), 0);
    for (const SubMicrobatch& sub : work) {
      if (sub.module != m) continue;
      for (const LayerId layer : weights.ids()) {
        const emulator::StageCost c = costs.Cost({.module = m,
                                                  .first_layer = layer,
                                                  .num_layers = 1,
                                                  .rank = RankId(0),
                                                  .segment = SegmentId(0)},
                                                 sub.shape, true);
        weights[layer] += c.all_passes().count();
      }
      break;  // One microbatch shows how the layers compare.
    }
    partition::AppendUnits(m, job.model.modules[m], weights,
                           /*glue_loss_head=*/false, &backbone);
  }
  return backbone;
}

// Returns, indexed by number of stages less one, the slowest stage's share of
// the time.
std::vector<double> SlowestShares(
    const std::vector<partition::LayerUnit>& units, int32_t most_stages) {
  std::vector<int64_t> weights;
  int64_t total = 0;
  for (const partition::LayerUnit& unit : units) {
    weights.push_back(unit.weight);
    total += unit.weight;
  }
  std::vector<double> shares;
  for (int32_t pp = 1;
       pp <= std::min(most_stages, static_cast<int32_t>(units.size())); ++pp) {
    std::vector<int32_t> begins = partition::SplitLayers(weights, pp);
    begins.push_back(static_cast<int32_t>(weights.size()));
    int64_t most = 0;
    for (size_t run = 0; run + 1 < begins.size(); ++run) {
      int64_t sum = 0;
      for (int32_t i = begins[run]; i < begins[run + 1]; ++i) {
        sum += weights[static_cast<size_t>(i)];
      }
      most = std::max(most, sum);
    }
    shares.push_back(total > 0 ? static_cast<double>(most) /
                                     static_cast<double>(total)
                               : 1.0 / pp);
  }
  return shares;
}

// Puts encoders on the first rank, cuts the backbone over the next pp, and puts
// generators on the last.
Partition ThreeUnits(const JobSpec& job, const emulator::StageCostModel& costs,
                     const IdVector<ModuleId, int32_t>& units,
                     const std::vector<SubMicrobatch>& work, int32_t pp) {
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.num_segments = 1;
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  int32_t first_rank = 0;
  const auto whole = [&](ModuleId m, int32_t rank) {
    partition.stages.push_back(
        {.module = m,
         .first_layer = LayerId(0),
         .num_layers = job.model.modules[m].layers.size(),
         .rank = RankId(rank),
         .segment = SegmentId(0)});
  };
  for (const ModuleId m : units.ids()) {
    if (units[m] == 0) {
      whole(m, 0);
      first_rank = 1;
    }
  }
  const std::vector<partition::LayerUnit> backbone =
      BackboneUnits(job, costs, units, work);
  Partition own;
  own.num_ranks = pp;
  partition::AppendStages(backbone, pp, &own);
  for (Stage stage : own.stages) {
    stage.rank = RankId(first_rank + stage.rank.value());
    stage.segment = SegmentId(0);
    partition.stages.push_back(stage);
  }
  for (const ModuleId m : units.ids()) {
    if (units[m] == 2) whole(m, partition.num_ranks - 1);
  }
  return partition;
}

// Averages the other units' tasks over `replicas` pipelines that bring as many
// samples, of which one is the own pipeline.
void Pool(const IdVector<ModuleId, int32_t>& units, int32_t replicas,
          IdVector<TaskId, Task>* tasks) {
  std::map<std::pair<ModuleId, Pass>, std::pair<double, int64_t>> sums;
  for (const Task& task : *tasks) {
    auto& [sum, count] = sums[{task.module, task.pass}];
    sum += static_cast<double>(task.duration.count());
    ++count;
  }
  for (Task& task : *tasks) {
    if (units[task.module] == kBackbone) continue;
    const auto& [sum, count] = sums[{task.module, task.pass}];
    const double mean = sum / static_cast<double>(count);
    const double own = static_cast<double>(task.duration.count());
    task.duration =
        Duration(static_cast<int64_t>(mean + (own - mean) / replicas));
  }
}

// Emulates a step of one backbone pipeline and its share of the other units. If
// `pooled`, a rank of the other units serves all pipelines alike.
absl::StatusOr<Duration> EmulateAnswer(const JobSpec& job,
                                       const BatchMetadata& sample,
                                       const OrchestrationProblem& problem,
                                       const OrchestrationAnswer& answer,
                                       bool pooled, absl::string_view schedule,
                                       const PriceLayout& price) {
  const IdVector<ModuleId, int32_t> units = UnitsOf(job.model);
  const int32_t ranks = answer.backbone.pp +
                        (problem.encoder.options.empty() ? 0 : 1) +
                        (problem.generator.options.empty() ? 0 : 1);
  JobSpec own = WithLayout(job, answer.backbone.tp, ranks, answer.backbone.dp);
  // The emulated job does not have the shape of its cluster: the answer counts
  // the units' GPUs.
  own.parallel.dp = 1;
  own.training.microbatches = static_cast<int32_t>(
      (problem.batch + answer.backbone.dp - 1) / answer.backbone.dp);
  const emulator::StageCostModel costs(own, PriceOf(price, own));
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            PackFullStep(own, sample));
  int64_t count = 0;
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<SubMicrobatch> work,
                            WholeMicrobatches(own, {packed}, &count));
  const Partition partition =
      ThreeUnits(own, costs, units, work, answer.backbone.pp);
  PIPELOOM_ASSIGN_OR_RETURN(
      const Microbatches microbatches,
      partition::SplitMicrobatches(own, packed, /*replica=*/0, partition));
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(costs, partition, microbatches));
  // Returns a unit's time relative to that with the backbone's tp and without
  // recomputation.
  const auto factor = [&](const UnitProblem& unit, const UnitAnswer& found) {
    for (const UnitOption& option : unit.options) {
      if (option.tp == answer.backbone.tp && !option.recompute &&
          option.seconds > 0) {
        return found.seconds / option.seconds;
      }
    }
    return 1.0;
  };
  const double factors[kUnits] = {
      factor(problem.encoder, answer.encoder),
      // For a whole pass through the pipeline.
      factor(problem.backbone,
             {.seconds = answer.backbone.seconds /
                         problem.SlowestShare(answer.backbone.pp)}),
      factor(problem.generator, answer.generator)};
  IdVector<TaskId, Task> tasks = built.graph.tasks();
  for (Task& task : tasks) {
    const double scale = factors[units[task.module]];
    task.duration = Duration(static_cast<int64_t>(
        static_cast<double>(task.duration.count()) * scale));
  }
  if (pooled) Pool(units, answer.backbone.dp, &tasks);
  IdVector<RankId, RankSpec> specs = built.graph.ranks();
  // Memory is a constraint of the problem, in which each unit has its own
  // sizes.
  for (RankSpec& spec : specs) spec.memory.limit = Bytes(0);
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph graph,
      StageGraph::Create(built.graph.name(), std::move(specs),
                         built.graph.module_names(), std::move(tasks),
                         built.graph.edges()));
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, MakeStrategy(schedule));
  SearchBudget once;
  once.max_evaluations = 1;
  PIPELOOM_ASSIGN_OR_RETURN(
      const SearchResult result,
      strategy->MakeSchedule(graph, partition, /*seed=*/1, once));
  return result.schedule.step_time();
}

// Plans the step of these replicas in the job's own layout, by a strategy on
// the partition of its rule. Returns their times; empty if one does not fit.
absl::StatusOr<std::vector<Duration>> ReplicaTimes(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    const partition::PackedStep& packed, const std::vector<int32_t>& replicas,
    const std::string& schedule, int64_t evaluations,
    const std::stop_token& stop) {
  std::vector<Duration> times;
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, MakeStrategy(schedule));
  const absl::StatusOr<PreparedJob> prepared =
      PrepareJob(*strategy, costs, sample, stop);
  if (absl::IsResourceExhausted(prepared.status())) return times;
  if (!prepared.ok()) return prepared.status();
  SearchBudget budget;
  budget.max_evaluations = evaluations;
  budget.stop = stop;
  for (const int32_t r : replicas) {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    const auto planned = PlanStep(*prepared, {.packed = &packed,
                                              .replica = r,
                                              .seed = costs.job().search.seed,
                                              .budget = budget,
                                              .needs_bound = false});
    if (absl::IsResourceExhausted(planned.status())) {
      return std::vector<Duration>();
    }
    if (!planned.ok()) return planned.status();
    times.push_back(planned->predicted.step_time());
  }
  return times;
}

Duration Slowest(const std::vector<Duration>& times) {
  return times.empty() ? kZero : *std::max_element(times.begin(), times.end());
}

}  // namespace

absl::StatusOr<OrchestrationProblem> MakeOrchestrationProblem(
    const JobSpec& job, const BatchMetadata& sample, const PriceLayout& price) {
  const IdVector<ModuleId, int32_t> units = UnitsOf(job.model);
  OrchestrationProblem problem;
  problem.encoder.name = "encoder";
  problem.backbone.name = "backbone";
  problem.generator.name = "generator";
  problem.gpus = static_cast<int32_t>(job.parallel.num_gpus());
  problem.batch = int64_t{job.parallel.dp} * job.training.microbatches;
  problem.memory_bytes = static_cast<double>(job.MemoryLimit().count());
  problem.most_stages = 0;
  bool used[kUnits] = {};
  for (const ModuleId m : units.ids()) {
    used[units[m]] = true;
    if (units[m] != kBackbone) continue;
    for (const LayerSpec& layer : job.model.modules[m].layers) {
      if (layer.kind == LayerKind::kTransformer) ++problem.most_stages;
    }
  }
  if (!used[kBackbone]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model ", job.model.name,
        " has no backbone; disaggregated placement gives one, its encoders "
        "and its generators GPUs of their own"));
  }
  problem.most_stages = std::max(problem.most_stages, 1);
  const IdVector<ModuleId, bool> needs = NeedInputGrad(job);
  UnitProblem* const unit[kUnits] = {&problem.encoder, &problem.backbone,
                                     &problem.generator};
  for (const int32_t tp : {1, 2, 4, 8}) {
    if (tp > job.cluster.gpus_per_node || tp > problem.gpus) continue;
    const JobSpec own = WithLayout(job, tp, /*pp=*/1, /*dp=*/1);
    const emulator::StageCostModel costs(own, PriceOf(price, own));
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<partition::PackedStep> steps,
                              SampleSteps(costs, sample, /*count=*/2));
    int64_t count = 0;
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<SubMicrobatch> work,
                              WholeMicrobatches(own, steps, &count));
    UnitOption kept[kUnits];
    UnitOption recomputed[kUnits];
    for (int32_t u = 0; u < kUnits; ++u) {
      kept[u].tp = recomputed[u].tp = tp;
      recomputed[u].recompute = true;
    }
    for (const ModuleId m : units.ids()) {
      AddModule(costs, m, needs[m], work, count, &kept[units[m]],
                &recomputed[units[m]]);
    }
    if (problem.slowest_share.empty()) {
      problem.slowest_share = SlowestShares(
          BackboneUnits(own, costs, units, work), problem.most_stages);
    }
    for (int32_t u = 0; u < kUnits; ++u) {
      if (!used[u]) continue;
      unit[u]->options.push_back(kept[u]);
      if (job.Allows(MemoryStrategy::kRecompute)) {
        unit[u]->options.push_back(recomputed[u]);
      }
    }
  }
  return problem;
}

absl::StatusOr<PlacementComparison> ComparePlacements(
    const JobSpec& job, const BatchMetadata& sample, const PriceLayout& price,
    int64_t evaluations, const std::stop_token& stop) {
  PIPELOOM_ASSIGN_OR_RETURN(const OrchestrationProblem problem,
                            MakeOrchestrationProblem(job, sample, price));
  PlacementComparison result;
  PIPELOOM_ASSIGN_OR_RETURN(result.answer, partition::Orchestrate(problem));
  PIPELOOM_ASSIGN_OR_RETURN(result.disaggregated,
                            EmulateAnswer(job, sample, problem, result.answer,
                                          /*pooled=*/true, "disttrain", price));
  double parameters = 0;
  const IdVector<ModuleId, int32_t> units = UnitsOf(job.model);
  for (const ModuleId m : units.ids()) {
    if (units[m] != kBackbone) continue;
    parameters += static_cast<double>(Parameters(job.model.modules[m]));
  }
  const auto stages = static_cast<int32_t>(
      std::clamp(std::ceil(parameters / kParametersAStage), 1.0,
                 static_cast<double>(problem.most_stages)));
  const int32_t tp = std::min({8, job.cluster.gpus_per_node, problem.gpus});
  auto baseline = partition::MegatronStyle(problem, tp, stages);
  if (baseline.ok()) {
    result.megatron_style = *baseline;
    PIPELOOM_ASSIGN_OR_RETURN(
        result.megatron,
        EmulateAnswer(job, sample, problem, result.megatron_style,
                      /*pooled=*/false, "1f1b", price));
  } else if (!absl::IsResourceExhausted(baseline.status())) {
    return baseline.status();
  }
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            PackFullStep(job, sample));
  const emulator::StageCostModel costs(job, PriceOf(price, job));
  std::vector<int32_t> replicas(static_cast<size_t>(job.parallel.dp));
  std::iota(replicas.begin(), replicas.end(), 0);
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<Duration> megatron,
      ReplicaTimes(costs, sample, packed, replicas, "megatron",
                   /*evaluations=*/1, stop));
  result.colocated = Slowest(megatron);
  result.own_strategy = result.colocated;
  if (job.search.schedule == "megatron") return result;
  if (!megatron.empty()) {
    std::stable_sort(replicas.begin(), replicas.end(),
                     [&](int32_t a, int32_t b) {
                       return megatron[static_cast<size_t>(a)] >
                              megatron[static_cast<size_t>(b)];
                     });
  }
  replicas.resize(std::min(replicas.size(), kMostSearched));
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<Duration> searched,
      ReplicaTimes(costs, sample, packed, replicas, job.search.schedule,
                   evaluations, stop));
  result.own_strategy = Slowest(searched);
  return result;
}

}  // namespace pipeloom::planner
