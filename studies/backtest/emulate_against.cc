#include "studies/backtest/emulate_against.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "emulator/cost/profile_cost.h"
#include "formats/job/spec_loader.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/lower/lower_plan.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::studies {
namespace {

using formats::FittedScalar;
using formats::MeasuredRun;
using formats::PeakKind;
using formats::RunSplit;

// Returns the module whose layers the run's stages divide.
ModuleId BackboneOf(const ModelSpec& model) {
  for (const ModuleId m : model.modules.ids()) {
    if (model.modules[m].role == ModuleRole::kBackbone) return m;
  }
  return ModuleId(0);
}

// Checks that the stages of the run can hold the layers of its model.
absl::Status CheckStages(const MeasuredRun& run) {
  const int32_t layers = run.model.modules[BackboneOf(run.model)].layers.size();
  const int32_t stages = run.parallel.pp * run.chunks;
  const auto sum = std::accumulate(run.stage_layers.begin(),
                                   run.stage_layers.end(), int64_t{0});
  if (stages <= layers && (run.stage_layers.empty() || sum == layers - 2)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "column \"layout\" has %d stages with %d layers; the backbone has %d "
      "layers between embedding and loss head",
      stages, sum, layers - 2));
}

// Assigns layers to stages as Megatron does: transformer layers in equal parts,
// the embedding with the first and the loss head with the last. If their number
// is not divisible, embedding and head count as layers.
// Those of a run with `stage_layers` have these. Modules other than the
// backbone are in the first stage, or those after it in the last. Encoders
// apart are alone on the first rank.
Partition BalancedPartition(const MeasuredRun& run) {
  const ModuleId backbone = BackboneOf(run.model);
  const int32_t layers = run.model.modules[backbone].layers.size();
  const int32_t stages = run.parallel.pp * run.chunks;
  const bool apart = (layers - 2) % stages == 0;
  const auto begin_of = [&](int32_t s) {
    if (s == 0) return 0;
    if (s == stages) return layers;
    if (!run.stage_layers.empty()) {
      return std::accumulate(run.stage_layers.begin(),
                             run.stage_layers.begin() + s, 1);
    }
    return apart ? 1 + s * ((layers - 2) / stages)
                 : static_cast<int32_t>(int64_t{s} * layers / stages);
  };
  const int32_t pp = run.parallel.pp;
  const bool vee = run.schedule == "zb-v" || run.schedule == "v-half" ||
                   run.schedule == "v-min";
  // The first rank of the backbone.
  const int32_t first = run.encoder_apart ? 1 : 0;
  Partition partition;
  partition.num_ranks = first + pp;
  partition.num_segments = run.chunks;
  const auto add_whole = [&](ModuleId module, RankId rank, int32_t segment) {
    partition.stages.push_back(
        {.module = module,
         .first_layer = LayerId(0),
         .num_layers = run.model.modules[module].layers.size(),
         .rank = rank,
         .segment = SegmentId(segment)});
  };
  for (const ModuleId m : run.model.modules.ids()) {
    partition.sub_microbatch_instances.push_back(0);
    if (m.value() < backbone.value()) add_whole(m, RankId(0), 0);
  }
  for (int32_t s = 0; s < stages; ++s) {
    // Odd segments of a V go back from the last rank to the first.
    const bool back = vee && s / pp % 2 == 1;
    partition.stages.push_back(
        {.module = backbone,
         .first_layer = LayerId(begin_of(s)),
         .num_layers = begin_of(s + 1) - begin_of(s),
         .rank = RankId(first + (back ? pp - 1 - s % pp : s % pp)),
         .segment = SegmentId(s / pp)});
  }
  for (const ModuleId m : run.model.modules.ids()) {
    if (m.value() <= backbone.value()) continue;
    const StageId last(partition.stages.size() - 1);
    add_whole(m, partition.stages[last].rank, run.chunks - 1);
  }
  return partition;
}

// Returns a policy that recomputes every transformer layer on its own, or the
// first of each rank or encoder, or operator groups of all, or none if the run
// does not recompute.
MemoryPolicy PolicyOf(const MeasuredRun& run, const Partition& partition,
                      const Microbatches& microbatches) {
  MemoryPolicy policy;
  if (!run.recompute && !run.recompute_experts &&
      run.recompute_groups.empty()) {
    return policy;
  }
  const bool by_groups = run.recompute || !run.recompute_groups.empty();
  std::vector<int32_t> choice_of_stage;
  IdVector<RankId, int32_t> left(partition.num_ranks,
                                 run.recomputed_layers > 0
                                     ? run.recomputed_layers
                                     : std::numeric_limits<int32_t>::max());
  const ModuleId backbone = BackboneOf(run.model);
  for (const Stage& stage : partition.stages) {
    MemoryChoice choice;
    int32_t own = run.recomputed_encoder_layers;
    int32_t& rest = own > 0 && stage.module.value() < backbone.value()
                        ? own
                        : left[stage.rank];
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const LayerSpec& layer =
          run.model.modules[stage.module]
              .layers[LayerId(stage.first_layer.value() + i)];
      const bool again = layer.kind == LayerKind::kTransformer && rest-- > 0;
      const bool whole = run.recompute_experts && layer.ffn.experts > 0;
      choice.layers.push_back(
          again && whole ? LayerMemory(MemoryStrategy::kRecompute)
          : again && by_groups
              ? LayerMemory(MemoryStrategy::kRecompute, run.recompute_groups)
              : LayerMemory(MemoryStrategy::kKeep));
    }
    const auto known =
        std::find(policy.choices.begin(), policy.choices.end(), choice);
    choice_of_stage.push_back(
        static_cast<int32_t>(known - policy.choices.begin()));
    if (known == policy.choices.end()) {
      policy.choices.push_back(std::move(choice));
    }
  }
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    for (const StageId s : partition.StagesOf(sub.module)) {
      policy.choice_of.push_back(
          choice_of_stage[static_cast<size_t>(s.value())]);
    }
  }
  return policy;
}

// Memory that PyTorch's allocator reserves over what is allocated at the peak:
// mean of the 13 runs of SimuMax that state both (1.03 to 1.09).
constexpr double kReserved = 1.051;

// Share of an update's traffic that is left when its step is skipped: gradients
// in 16 bits are turned to 32, divided by the loss scale in a search for
// infinities, and cleared, 16 bytes of 40 (Megatron-LM, optimizer.py).
constexpr double kSkippedStep = 16.0 / 40;

// Gives the encoders of a replica the samples of all replicas, as their GPU has
// them.
void ServeAllReplicas(const MeasuredRun& run, Microbatches* microbatches) {
  const ModuleId backbone = BackboneOf(run.model);
  for (SubMicrobatch& sub : microbatches->sub_microbatches) {
    if (sub.module.value() >= backbone.value()) continue;
    const WorkShape own = sub.shape;
    for (int32_t i = 1; i < run.parallel.dp; ++i) sub.shape += own;
  }
}

absl::Status AtRun(const MeasuredRun& run, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrFormat("line %d, run \"%s\": %s", run.line,
                                      run.name, status.message()));
}

// The clusters and prices with which runs are emulated, indexed by run.
struct Machines {
  const std::vector<ClusterSpec>& clusters;
  const std::vector<const emulator::OpCostModel*>& measured;
  const std::stop_token& stop;
};

absl::Status EmulateAll(const Machines& machines,
                        const std::vector<size_t>& which,
                        std::vector<ComparedRun>* runs) {
  for (const size_t i : which) {
    if (machines.stop.stop_requested()) return absl::CancelledError("stopped");
    PIPELOOM_ASSIGN_OR_RETURN(
        (*runs)[i].emulated,
        EmulateMeasuredRun(
            (*runs)[i].run, machines.clusters[i],
            machines.measured.empty() ? nullptr : machines.measured[i]));
  }
  return absl::OkStatus();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Returns the rows of a framework on which its scalar is fitted.
std::vector<size_t> ChooseFitRows(const std::vector<ComparedRun>& runs,
                                  const std::vector<size_t>& rows,
                                  FrameworkScalar* scalar) {
  std::set<Fingerprint> marked;
  std::set<Fingerprint> open;
  std::set<Fingerprint> all;
  for (const size_t i : rows) {
    const MeasuredRun& run = runs[i].run;
    all.insert(run.configuration);
    if (run.split == RunSplit::kFit) marked.insert(run.configuration);
    if (run.split == RunSplit::kByHash) open.insert(run.configuration);
  }
  std::set<Fingerprint> chosen = marked;
  if (marked.empty()) {
    // The set is ordered by hash.
    for (const Fingerprint& f : open) {
      if (chosen.size() >= all.size() / kFewestConfigurations) break;
      chosen.insert(f);
    }
  }
  scalar->configurations = static_cast<int32_t>(all.size());
  scalar->fitted_configurations = static_cast<int32_t>(chosen.size());
  std::vector<size_t> fit;
  for (const size_t i : rows) {
    if (runs[i].run.split != RunSplit::kHeldOut &&
        chosen.count(runs[i].run.configuration) > 0) {
      fit.push_back(i);
    }
  }
  scalar->fitted_rows = static_cast<int32_t>(fit.size());
  return fit;
}

// Returns the host time per kernel with the smallest mean of
// |log(emulated/measured)|, on a grid of 4 us and then of 1 us.
absl::StatusOr<double> FitHost(const Machines& machines,
                               const std::vector<size_t>& fit,
                               std::vector<ComparedRun>* runs) {
  double best = 0;
  double best_error = HUGE_VAL;
  const auto attempt = [&](double us) -> absl::Status {
    for (const size_t i : fit) {
      (*runs)[i].run.setup.host_per_kernel = Microseconds(us);
    }
    PIPELOOM_RETURN_IF_ERROR(EmulateAll(machines, fit, runs));
    double error = 0;
    for (const size_t i : fit) {
      error += std::abs(std::log1p((*runs)[i].step_error()));
    }
    if (error < best_error) {
      best_error = error;
      best = us;
    }
    return absl::OkStatus();
  };
  constexpr int kCoarse = 4;
  for (int us = 0; us < kMostHostUs; us += kCoarse) {
    PIPELOOM_RETURN_IF_ERROR(attempt(us));
  }
  const double coarse = best;
  for (int step = 1 - kCoarse; step < kCoarse; ++step) {
    PIPELOOM_RETURN_IF_ERROR(attempt(std::max(0.0, coarse + step)));
  }
  return best;
}

}  // namespace

absl::StatusOr<PlannedRun> PlanMeasuredRun(
    const MeasuredRun& run, const ClusterSpec& cluster,
    const emulator::OpCostModel* measured) {
  PIPELOOM_RETURN_IF_ERROR(CheckStages(run));
  PlannedRun planned;
  planned.job = formats::JobOf(run, cluster);
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(planned.job));
  planned.batch = formats::BatchOf(run);
  planned.costs = std::make_unique<emulator::StageCostModel>(
      planned.job, measured == nullptr ? nullptr
                                       : emulator::OpCostsForLayout(
                                             *measured, planned.job.parallel));
  planned.partition = BalancedPartition(run);
  planned.schedule = !run.schedule.empty() ? run.schedule
                     : run.chunks > 1      ? "interleaved"
                                           : "1f1b";
  PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<planner::Strategy> strategy,
                            planner::MakeStrategy(planned.schedule));
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::PackedStep packed,
      partition::PackStep(planned.job, planned.batch, /*first_sample=*/0));
  PIPELOOM_ASSIGN_OR_RETURN(
      Microbatches microbatches,
      partition::SplitMicrobatches(planned.job, packed, /*replica=*/0,
                                   planned.partition));
  if (run.encoder_apart) ServeAllReplicas(run, &microbatches);
  PIPELOOM_ASSIGN_OR_RETURN(
      partition::BuiltGraph built,
      partition::BuildStageGraph(
          *planned.costs, planned.partition, microbatches,
          {.split_backward = strategy->split_backward(),
           .memory = PolicyOf(run, planned.partition, microbatches)}));
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::SearchResult found,
      strategy->MakeSchedule(built.graph, planned.partition, /*seed=*/1,
                             {.max_evaluations = 1}));
  PIPELOOM_ASSIGN_OR_RETURN(
      planned.plan, planner::LowerPlan(std::move(built.graph), found.schedule));
  planned.update = std::move(built.update);
  planned.plan.links = planned.costs->Links();
  PIPELOOM_RETURN_IF_ERROR(
      emulator::EmulateInOrder(*planned.update, {}, &planned.plan).status());
  return planned;
}

absl::StatusOr<EmulatedRun> EmulateMeasuredRun(
    const MeasuredRun& run, const ClusterSpec& cluster,
    const emulator::OpCostModel* measured) {
  if (run.relative) {
    MeasuredRun moved = run;
    moved.relative = false;
    PIPELOOM_ASSIGN_OR_RETURN(EmulatedRun result,
                              EmulateMeasuredRun(moved, cluster, measured));
    moved.encoder_apart = false;
    PIPELOOM_ASSIGN_OR_RETURN(const EmulatedRun inside,
                              EmulateMeasuredRun(moved, cluster, measured));
    result.step_time =
        Seconds(ToSeconds(result.step_time) / ToSeconds(inside.step_time));
    return result;
  }
  absl::StatusOr<PlannedRun> planned = PlanMeasuredRun(run, cluster, measured);
  if (!planned.ok()) return AtRun(run, planned.status());
  emulator::EmulateOptions options;
  if (run.links_both_ways) planned->plan.links.sharing = LinkSharing::kBothWays;
  if (!run.delayed_link.is_none()) {
    const RankId next(run.delayed_link.value() + 1);
    // The delay is a kernel on the sender's queue, ahead of the send.
    options.slow_links.push_back({.from = run.delayed_link,
                                  .to = next,
                                  .added = run.delay,
                                  .ahead = true});
    options.slow_links.push_back({.from = next,
                                  .to = run.delayed_link,
                                  .added = run.delay,
                                  .ahead = true});
  }
  const absl::StatusOr<StepTrace> trace =
      emulator::EmulateInOrder(*planned->update, options, &planned->plan);
  if (!trace.ok()) return AtRun(run, trace.status());
  EmulatedRun result{.step_time = trace->step_time()};
  if (run.skips_optimizer) {
    // All ranks end their updates together.
    Duration optimizer = kZero;
    for (const emulator::RankUpdate& update :
         planned->costs->Updates(planned->partition)) {
      optimizer = std::max(optimizer, update.optimizer);
    }
    result.step_time -= Nanoseconds(std::llround(
        (1 - kSkippedStep) * static_cast<double>(optimizer.count())));
  }
  const IdVector<RankId, Bytes> peaks = planner::PlanPeaks(planned->plan);
  const bool reserved =
      run.peak_kind == PeakKind::kReserved || run.peak_kind == PeakKind::kUsed;
  Bytes sum;
  for (const RankId r : peaks.ids()) {
    // Most measurements count the memory of the framework's allocator only.
    const Bytes context =
        planned->costs->Overhead(planned->partition, r).context;
    Bytes held = peaks[r] - context;
    if (reserved) {
      held = Bytes(std::llround(static_cast<double>(held.count()) * kReserved));
    }
    if (run.peak_kind == PeakKind::kUsed) held += context;
    result.peak_allocated = std::max(result.peak_allocated, held);
    sum += held;
  }
  if (run.peak_kind == PeakKind::kMean) {
    result.peak_allocated = Bytes(sum.count() / peaks.size());
  }
  return result;
}

double ComparedRun::step_error() const {
  return ToSeconds(emulated.step_time) / ToSeconds(run.step_time) - 1;
}

double ComparedRun::peak_error() const {
  if (run.peak_allocated == Bytes(0)) return 0;
  return static_cast<double>(emulated.peak_allocated.count()) /
             static_cast<double>(run.peak_allocated.count()) -
         1;
}

absl::StatusOr<Comparison> CompareRuns(
    std::vector<MeasuredRun> runs, const std::vector<ClusterSpec>& clusters,
    bool fit, const std::vector<const emulator::OpCostModel*>& measured,
    const std::stop_token& stop) {
  const Machines machines{clusters, measured, stop};
  Comparison result;
  std::map<std::string, std::vector<size_t>> by_framework;
  for (size_t i = 0; i < runs.size(); ++i) {
    by_framework[runs[i].framework].push_back(i);
    result.runs.push_back({.run = std::move(runs[i])});
  }
  for (const auto& [framework, rows] : by_framework) {
    FrameworkScalar scalar{.framework = framework,
                           .kind = result.runs[rows[0]].run.scalar};
    if (scalar.kind == FittedScalar::kHost) {
      scalar.value =
          ToMicroseconds(result.runs[rows[0]].run.setup.host_per_kernel);
    }
    const std::vector<size_t> chosen =
        fit ? ChooseFitRows(result.runs, rows, &scalar) : std::vector<size_t>{};
    if (!chosen.empty()) {
      if (scalar.kind == FittedScalar::kHost) {
        PIPELOOM_ASSIGN_OR_RETURN(scalar.value,
                                  FitHost(machines, chosen, &result.runs));
        scalar.at_end = scalar.value <= 0 || scalar.value >= kMostHostUs;
      } else {
        PIPELOOM_RETURN_IF_ERROR(EmulateAll(machines, chosen, &result.runs));
        std::vector<double> ratios;
        for (const size_t i : chosen) {
          ratios.push_back(1 / (1 + result.runs[i].step_error()));
        }
        scalar.value = Median(std::move(ratios));
      }
      for (const size_t i : chosen) result.runs[i].fitted = true;
      for (const size_t i : rows) {
        TrainingSetup& setup = result.runs[i].run.setup;
        if (scalar.kind == FittedScalar::kHost) {
          setup.host_per_kernel = Microseconds(scalar.value);
        } else {
          setup.stretch = scalar.value;
        }
      }
    }
    PIPELOOM_RETURN_IF_ERROR(EmulateAll(machines, rows, &result.runs));
    result.scalars.push_back(std::move(scalar));
  }
  return result;
}

ErrorSummary SummarizeErrors(std::vector<double> errors) {
  ErrorSummary summary;
  summary.count = static_cast<int32_t>(errors.size());
  if (errors.empty()) return summary;
  for (double& e : errors) {
    summary.bias += e;
    e = std::abs(e);
    summary.mean += e;
    summary.worst = std::max(summary.worst, e);
  }
  const auto n = static_cast<double>(errors.size());
  summary.bias /= n;
  summary.mean /= n;
  summary.median = Median(std::move(errors));
  return summary;
}

}  // namespace pipeloom::studies
