#include "planner/strategies/megatron_tuned.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/placement/layer_chain.h"
#include "partition/placement/layer_partition.h"
#include "partition/placement/placement.h"
#include "partition/placement/recipe.h"
#include "planner/bounds/lower_bound.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/step/plan_step.h"
#include "planner/step/sample_steps.h"
#include "planner/strategies/representative_step.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kMaxVirtualStages = 8;
// Number of sample steps that the finalists are judged by, and of finalists.
constexpr int32_t kSteps = 4;
constexpr size_t kFinalists = 5;

enum class Balance { kCount, kParameters, kTime };
enum class Encoders { kInChain, kOwnStages, kFirstRank };

using Units = std::vector<partition::LayerUnit>;

int64_t WeightOf(const ModelSpec& model, const partition::LayerUnit& unit,
                 Balance balance) {
  if (balance == Balance::kTime) return unit.weight;
  int64_t weight = 0;
  for (int32_t i = 0; i < unit.num_layers; ++i) {
    const LayerSpec& layer = model.modules[unit.module]
                                 .layers[LayerId(unit.first_layer.value() + i)];
    if (balance == Balance::kParameters) {
      weight += MatrixParameters(layer);
    } else {
      weight += layer.kind == LayerKind::kTransformer ||
                layer.kind == LayerKind::kFixedWork;
    }
  }
  return weight;
}

// Interleaved 1F1B on a given partition.
class Setting : public Strategy {
 public:
  absl::string_view name() const override { return "megatron-tuned"; }
  bool split_backward() const override { return false; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel&, const BatchMetadata&,
      const std::stop_token&) const override {
    return absl::UnimplementedError("a setting has its partition");
  }
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t,
      const SearchBudget&) const override {
    PIPELOOM_ASSIGN_OR_RETURN(
        RankOrders orders,
        InterleavedOrders(VirtualPipeline(graph, partition)));
    SearchResult result;
    PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                              TimeBaseline(graph, std::move(orders)));
    result.lower_bound = LowerBound(graph);
    result.evaluations = 1;
    result.proven_optimal = result.schedule.step_time() == result.lower_bound;
    return result;
  }
};

class MegatronTuned : public Setting {
 public:
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override {
    PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep median,
                              RepresentativeStep::Create(costs, sample, stop));
    PIPELOOM_ASSIGN_OR_RETURN(std::vector<Partition> layouts,
                              Layouts(costs.job(), median.units()));
    struct Judged {
      Duration time{};
      size_t layout = 0;
    };
    std::vector<Judged> fitting;
    const Setting any;
    for (size_t i = 0; i < layouts.size(); ++i) {
      PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> time,
                                median.PlannedTime(any, layouts[i]));
      if (time.has_value()) fitting.push_back({*time, i});
    }
    if (fitting.empty()) return layouts.front();
    std::stable_sort(
        fitting.begin(), fitting.end(),
        [](const Judged& a, const Judged& b) { return a.time < b.time; });
    fitting.resize(std::min(fitting.size(), kFinalists));

    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<partition::PackedStep> steps,
                              SampleSteps(costs, sample, kSteps));
    std::optional<Duration> least;
    size_t best = fitting.front().layout;
    for (const Judged& judged : fitting) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const std::optional<Duration> time,
          TimeOf(costs, layouts[judged.layout], steps, least, stop));
      if (!time.has_value()) continue;
      least = time;
      best = judged.layout;
    }
    return layouts[best];
  }

 private:
  // Returns the sum over the steps; nullopt if one does not fit, or once the
  // sum reaches `limit`.
  static absl::StatusOr<std::optional<Duration>> TimeOf(
      const emulator::StageCostModel& costs, const Partition& layout,
      const std::vector<partition::PackedStep>& steps,
      const std::optional<Duration>& limit, const std::stop_token& stop) {
    const Setting setting;
    const PreparedJob job{
        .strategy = &setting, .costs = &costs, .partition = layout};
    SearchBudget once;
    once.max_evaluations = 1;
    once.stop = stop;
    Duration sum{};
    for (const partition::PackedStep& step : steps) {
      const auto result = PlanStep(
          job, {.packed = &step, .budget = once, .needs_bound = false});
      if (stop.stop_requested()) return absl::CancelledError("stopped");
      if (absl::IsResourceExhausted(result.status())) return std::nullopt;
      if (!result.ok()) return result.status();
      sum += result->predicted.step_time();
      if (limit.has_value() && sum >= *limit) return std::nullopt;
    }
    return sum;
  }

  // Returns all different partitions of the settings that keep the job's rules.
  // The first is Megatron's usual one, whatever the rules are.
  static absl::StatusOr<std::vector<Partition>> Layouts(const JobSpec& job,
                                                        const Units& by_time) {
    PIPELOOM_ASSIGN_OR_RETURN(Partition usual,
                              partition::ConcatenatedPartition(
                                  job, 1, partition::LayerWeight::kParameters));
    std::vector<Partition> layouts = {std::move(usual)};
    const auto add = [&](Partition layout) {
      if (!ValidatePartition(layout, job.model).ok() ||
          !partition::CheckPartitionRules(job, layout).ok() ||
          std::find(layouts.begin(), layouts.end(), layout) != layouts.end()) {
        return;
      }
      layouts.push_back(std::move(layout));
    };
    for (int32_t v = 1; v <= kMaxVirtualStages; ++v) {
      for (const auto weight : {partition::LayerWeight::kCount,
                                partition::LayerWeight::kParameters}) {
        PIPELOOM_ASSIGN_OR_RETURN(
            Partition layout, partition::ConcatenatedPartition(job, v, weight));
        add(std::move(layout));
      }
      for (const Balance balance :
           {Balance::kCount, Balance::kParameters, Balance::kTime}) {
        for (const Encoders encoders :
             {Encoders::kInChain, Encoders::kOwnStages, Encoders::kFirstRank}) {
          std::optional<Partition> layout =
              Layout(job, by_time, v, balance, encoders);
          if (layout.has_value()) add(*std::move(layout));
        }
      }
    }
    return layouts;
  }

  static std::optional<Partition> Layout(const JobSpec& job,
                                         const Units& by_time, int32_t v,
                                         Balance balance, Encoders placement) {
    const int32_t p = job.parallel.pp;
    Units encoders;
    Units others;
    for (partition::LayerUnit unit : by_time) {
      const bool leading =
          others.empty() &&
          job.model.modules[unit.module].role == ModuleRole::kEncoder;
      unit.weight = WeightOf(job.model, unit, balance);
      (leading ? encoders : others).push_back(unit);
    }
    if (others.empty()) return std::nullopt;
    if (encoders.empty() && placement != Encoders::kInChain) {
      return std::nullopt;
    }
    Partition layout;
    layout.num_ranks = p;
    layout.sub_microbatch_instances.assign(job.model.modules.size(), 0);
    const int32_t runs = v * p;
    switch (placement) {
      case Encoders::kInChain: {
        Units chain = encoders;
        chain.insert(chain.end(), others.begin(), others.end());
        if (partition::CountWeighty(chain) < runs && v > 1) return std::nullopt;
        partition::AppendStages(chain, runs, &layout);
        break;
      }
      case Encoders::kOwnStages:
        if (partition::CountWeighty(others) < runs && v > 1) {
          return std::nullopt;
        }
        partition::AppendStages(encoders, p, &layout);
        layout.num_segments = 1;
        partition::AppendStages(others, runs, &layout);
        break;
      case Encoders::kFirstRank: {
        const auto rest = static_cast<int32_t>(others.size());
        if (runs < 2 || rest < runs - 1) return std::nullopt;
        std::vector<int64_t> weights;
        for (const partition::LayerUnit& unit : others) {
          weights.push_back(std::max<int64_t>(1, unit.weight));
        }
        const auto first = static_cast<int32_t>(encoders.size());
        std::vector<int32_t> cuts = {0};
        for (const int32_t cut : partition::SplitLayers(weights, runs - 1)) {
          cuts.push_back(first + cut);
        }
        Units chain = encoders;
        chain.insert(chain.end(), others.begin(), others.end());
        cuts.push_back(static_cast<int32_t>(chain.size()));
        AppendStagesAt(chain, cuts, &layout);
        break;
      }
    }
    return layout;
  }
};

}  // namespace

std::unique_ptr<Strategy> MakeMegatronTuned() {
  return std::make_unique<MegatronTuned>();
}

}  // namespace pipeloom::planner
