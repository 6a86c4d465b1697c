#include "planner/strategies/nnscaler.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/placement/layer_partition.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/strategies/baseline_strategy.h"
#include "planner/strategies/representative_step.h"

namespace pipeloom::planner {
namespace {

// The most emulated steps of the search for a job's cut.
constexpr int kMaxEvaluations = 200;
// Numbers of layers that a boundary moves at once.
constexpr int32_t kShifts[] = {-4, -1, 1, 4};

using Weights = std::vector<int64_t>;
using Cuts = std::vector<int32_t>;

Weights TimeWeights(const std::vector<partition::LayerUnit>& units) {
  Weights weights;
  for (const partition::LayerUnit& unit : units) {
    weights.push_back(unit.weight);
  }
  return weights;
}

Weights CountWeights(const std::vector<partition::LayerUnit>& units) {
  Weights weights;
  for (const partition::LayerUnit& unit : units) {
    weights.push_back(unit.num_layers);
  }
  return weights;
}

Weights ParameterWeights(const ModelSpec& model,
                         const std::vector<partition::LayerUnit>& units) {
  constexpr int64_t kMax = int64_t{1} << 48;  // Keeps sums in range.
  Weights weights;
  for (const partition::LayerUnit& unit : units) {
    int64_t sum = 0;
    for (int32_t i = 0; i < unit.num_layers; ++i) {
      const LayerId layer(unit.first_layer.value() + i);
      sum +=
          std::min(kMax, Parameters(model.modules[unit.module].layers[layer]));
    }
    weights.push_back(std::min(kMax, sum));
  }
  return weights;
}

// Returns the means of the shares of two sums.
Weights Mixed(const Weights& a, const Weights& b) {
  const auto sum = [](const Weights& w) {
    return std::max(1.0, std::accumulate(w.begin(), w.end(), 0.0));
  };
  Weights weights;
  for (size_t i = 0; i < a.size(); ++i) {
    weights.push_back(
        static_cast<int64_t>(1e12 * (static_cast<double>(a[i]) / sum(a) +
                                     static_cast<double>(b[i]) / sum(b))));
  }
  return weights;
}

class NnScaler : public BaselineStrategy {
 public:
  NnScaler() : BaselineStrategy("nnscaler", Traits{}, OneFOneBOrders) {}

  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override {
    PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep step,
                              RepresentativeStep::Create(costs, sample, stop));
    const std::vector<partition::LayerUnit>& units = step.units();
    const JobSpec& job = costs.job();
    const auto partition_at = [&](const Cuts& cuts) {
      Partition partition;
      partition.num_ranks = job.parallel.pp;
      partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
      AppendStagesAt(units, cuts, &partition);
      return partition;
    };
    const auto time_of = [&](const Cuts& cuts) {
      return step.PlannedTime(*this, partition_at(cuts));
    };

    const auto num_units = static_cast<int32_t>(units.size());
    const Weights time = TimeWeights(units);
    const Weights parameters = ParameterWeights(job.model, units);
    std::optional<Duration> best_time;
    Cuts best;
    for (const Weights& weights :
         {time, Mixed(time, parameters), parameters, CountWeights(units)}) {
      Cuts cuts =
          partition::SplitLayers(weights, std::min(job.parallel.pp, num_units));
      cuts.push_back(num_units);
      PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> now,
                                time_of(cuts));
      const bool faster = now.has_value() && (!best_time || *now < *best_time);
      if (faster) best_time = now;
      if (faster || best.empty()) best = std::move(cuts);
    }

    int evaluations = 0;
    for (bool better = true; better;) {
      better = false;
      for (size_t i = 1; i + 1 < best.size(); ++i) {
        for (const int32_t shift : kShifts) {
          Cuts moved = best;
          moved[i] += shift;
          if (moved[i] <= moved[i - 1] || moved[i] >= moved[i + 1]) continue;
          if (++evaluations > kMaxEvaluations) return partition_at(best);
          PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> now,
                                    time_of(moved));
          if (!now.has_value() || (best_time && *now >= *best_time)) continue;
          best_time = now;
          best = std::move(moved);
          better = true;
        }
      }
    }
    return partition_at(best);
  }
};

}  // namespace

std::unique_ptr<Strategy> MakeNnScaler() {
  return std::make_unique<NnScaler>();
}

}  // namespace pipeloom::planner
