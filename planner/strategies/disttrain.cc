#include "planner/strategies/disttrain.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "planner/strategies/baseline_strategy.h"
#include "planner/strategies/representative_step.h"

namespace pipeloom::planner {
namespace {

// 1F1B of microbatches that are added one after another, run as far as those
// added allow.
class GrowingPipeline {
 public:
  explicit GrowingPipeline(const VirtualPipeline& pipeline)
      : ranks_(static_cast<size_t>(pipeline.num_ranks())) {
    const auto time_of = [&](Pass pass, RankId r, int32_t m) {
      std::vector<TaskId> cell;
      pipeline.Append(pass, r, /*segment=*/0, m, &cell);
      Duration sum = kZero;
      for (const TaskId t : cell) sum += pipeline.graph().task(t).duration;
      return sum;
    };
    for (const RankId r : pipeline.graph().rank_ids()) {
      Rank& rank = ranks_[static_cast<size_t>(r.value())];
      for (int32_t m = 0; m < pipeline.num_microbatches(); ++m) {
        rank.forward.push_back(time_of(Pass::kForward, r, m));
        rank.backward.push_back(time_of(Pass::kBackward, r, m) +
                                time_of(Pass::kWeightGrad, r, m));
      }
    }
  }

  Duration Forward(size_t rank, int32_t m) const {
    return ranks_[rank].forward[static_cast<size_t>(m)];
  }

  void Add(int32_t microbatch) {
    order_.push_back(static_cast<size_t>(microbatch));
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        while (Step(r)) progress = true;
      }
    }
  }

  // Returns how long the first rank would wait for its next backward if no
  // forward went before it; 0 while that is unknown.
  Duration Gap() const {
    const Rank& first = ranks_.front();
    const size_t next = first.backward_end.size();
    if (ranks_.size() == 1 || next >= ranks_[1].backward_end.size()) {
      return kZero;
    }
    return std::max(kZero, ranks_[1].backward_end[next] - first.free_at);
  }

 private:
  struct Rank {
    std::vector<Duration> forward{};  // Times, indexed by microbatch.
    std::vector<Duration> backward{};
    // Ends, indexed by place in the order.
    std::vector<Duration> forward_end{};
    std::vector<Duration> backward_end{};
    Duration free_at{};
  };

  // Runs the rank's next pass if its input has arrived. Returns whether it did.
  bool Step(size_t r) {
    Rank& rank = ranks_[r];
    const size_t forwards = rank.forward_end.size();
    const size_t backwards = rank.backward_end.size();
    // The most forwards that may be ahead of backwards.
    const size_t ahead = ranks_.size() - r;
    const bool all_in = forwards == rank.forward.size();
    if (forwards < backwards + ahead && !all_in) {
      if (forwards >= order_.size()) return false;
      Duration arrival = kZero;
      if (r > 0) {
        if (ranks_[r - 1].forward_end.size() <= forwards) return false;
        arrival = ranks_[r - 1].forward_end[forwards];
      }
      rank.free_at =
          std::max(rank.free_at, arrival) + rank.forward[order_[forwards]];
      rank.forward_end.push_back(rank.free_at);
      return true;
    }
    if (backwards >= forwards) return false;
    Duration arrival = kZero;
    if (r + 1 < ranks_.size()) {
      if (ranks_[r + 1].backward_end.size() <= backwards) return false;
      arrival = ranks_[r + 1].backward_end[backwards];
    }
    rank.free_at =
        std::max(rank.free_at, arrival) + rank.backward[order_[backwards]];
    rank.backward_end.push_back(rank.free_at);
    return true;
  }

  std::vector<Rank> ranks_;
  std::vector<size_t> order_{};
};

RankOrders OrdersFor(const VirtualPipeline& pipeline,
                     const std::vector<int32_t>& order) {
  const auto m = static_cast<int32_t>(order.size());
  RankOrders orders(pipeline.num_ranks());
  for (const RankId r : orders.ids()) {
    const int32_t warm_up = std::min(pipeline.num_ranks() - r.value() - 1, m);
    const auto forward = [&](int32_t i) {
      if (i >= m) return;
      pipeline.AppendForward(r, 0, order[static_cast<size_t>(i)], &orders[r]);
    };
    for (int32_t i = 0; i < warm_up; ++i) forward(i);
    for (int32_t i = 0; i < m; ++i) {
      forward(warm_up + i);
      pipeline.AppendBackward(r, 0, order[static_cast<size_t>(i)], &orders[r]);
    }
  }
  return orders;
}

// A part of the model with ranks of its own.
struct Unit {
  std::string name{};
  std::vector<partition::LayerUnit> layers{};
};

// Returns the leading encoders, the backbones after them, and the rest.
std::vector<Unit> UnitsOf(const ModelSpec& model,
                          const std::vector<partition::LayerUnit>& layers) {
  std::vector<Unit> units = {{"encoder"}, {"backbone"}, {"generator"}};
  size_t unit = 0;
  for (const partition::LayerUnit& layer : layers) {
    const ModuleRole role = model.modules[layer.module].role;
    if (unit == 0 && role != ModuleRole::kEncoder) unit = 1;
    if (unit == 1 && role != ModuleRole::kBackbone) unit = 2;
    units[unit].layers.push_back(layer);
  }
  std::erase_if(units, [](const Unit& u) { return u.layers.empty(); });
  return units;
}

class DistTrain : public BaselineStrategy {
 public:
  DistTrain() : BaselineStrategy("disttrain", Traits{}, DistTrainOrders) {}

  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override {
    PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep step,
                              RepresentativeStep::Create(costs, sample, stop));
    const JobSpec& job = costs.job();
    const std::vector<Unit> units = UnitsOf(job.model, step.units());
    const auto n = static_cast<int32_t>(units.size());
    const int32_t p = job.parallel.pp;
    if (p < n) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "disttrain gives each of the model's %d units (%s) ranks of its own; "
          "the job has pp %d, and would need at least %d",
          n,
          absl::StrJoin(
              units, ", ",
              [](std::string* out, const Unit& u) { out->append(u.name); }),
          p, n));
    }
    std::vector<Partition> partitions;
    for (const std::vector<int32_t>& sizes : Divisions(p, n)) {
      Partition partition;
      partition.num_ranks = p;
      partition.num_segments = 1;
      partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
      int32_t first_rank = 0;
      for (size_t u = 0; u < units.size(); ++u) {
        Partition own;
        own.num_ranks = sizes[u];
        partition::AppendStages(units[u].layers, sizes[u], &own);
        for (Stage stage : own.stages) {
          stage.rank = RankId(first_rank + stage.rank.value());
          stage.segment = SegmentId(0);
          partition.stages.push_back(stage);
        }
        first_rank += sizes[u];
      }
      partitions.push_back(std::move(partition));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const size_t best,
                              step.Fastest(*this, partitions));
    return std::move(partitions[best]);
  }

 private:
  // Returns all ways to write p as a sum of n numbers >= 1.
  static std::vector<std::vector<int32_t>> Divisions(int32_t p, int32_t n) {
    if (n == 1) return {{p}};
    std::vector<std::vector<int32_t>> all;
    for (int32_t first = 1; first <= p - n + 1; ++first) {
      for (std::vector<int32_t>& rest : Divisions(p - first, n - 1)) {
        rest.insert(rest.begin(), first);
        all.push_back(std::move(rest));
      }
    }
    return all;
  }
};

}  // namespace

std::vector<int32_t> DistTrainMicrobatchOrder(const VirtualPipeline& pipeline) {
  GrowingPipeline growing(pipeline);
  const auto p = static_cast<size_t>(pipeline.num_ranks());
  const auto m = static_cast<size_t>(pipeline.num_microbatches());
  std::vector<Duration> size(m, kZero);
  for (size_t i = 0; i < m; ++i) {
    for (size_t r = 0; r < p; ++r) {
      size[i] += growing.Forward(r, static_cast<int32_t>(i));
    }
  }
  std::vector<int32_t> left(m);
  std::iota(left.begin(), left.end(), 0);
  std::stable_sort(left.begin(), left.end(), [&](int32_t a, int32_t b) {
    return size[static_cast<size_t>(a)] < size[static_cast<size_t>(b)];
  });
  std::vector<int32_t> order;
  const auto take = [&](size_t i) {
    order.push_back(left[i]);
    growing.Add(left[i]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
  };
  if (!left.empty()) take(0);
  // The smallest of `left` are kept for the end.
  const size_t kept = std::min(left.size(), p > 0 ? p - 1 : 0);
  while (left.size() > kept) {
    const Duration gap = growing.Gap();
    size_t best = kept;
    for (size_t i = kept; i < left.size(); ++i) {
      const Duration now = growing.Forward(0, left[i]);
      const Duration then = growing.Forward(0, left[best]);
      const bool fits = now <= gap;
      const bool best_fits = then <= gap;
      if (fits ? !best_fits || now > then : !best_fits && now < then) best = i;
    }
    take(best);
  }
  while (!left.empty()) take(left.size() - 1);
  return order;
}

absl::StatusOr<RankOrders> DistTrainOrders(const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() > 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("disttrain is for 1 segment; the pipeline has %d",
                        pipeline.num_segments()));
  }
  std::vector<int32_t> given(static_cast<size_t>(pipeline.num_microbatches()));
  std::iota(given.begin(), given.end(), 0);
  RankOrders as_given = OrdersFor(pipeline, given);
  if (pipeline.num_ranks() == 0) return as_given;
  RankOrders reordered =
      OrdersFor(pipeline, DistTrainMicrobatchOrder(pipeline));
  const auto after = TimeBaseline(pipeline.graph(), reordered);
  if (!after.ok()) return as_given;
  const auto before = TimeBaseline(pipeline.graph(), as_given);
  if (before.ok() && before->finish < after->finish) return as_given;
  return reordered;
}

std::unique_ptr<Strategy> MakeDistTrain() {
  return std::make_unique<DistTrain>();
}

}  // namespace pipeloom::planner
