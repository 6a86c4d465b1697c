#include "planner/search/robust_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "planner/core/executor.h"
#include "planner/core/fixed_order.h"
#include "planner/core/retime.h"
#include "planner/moves/tabu_search.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kLanes = FixedOrder::kLanes;
// Orders made at once from the best; the same for any number of threads.
constexpr int32_t kTries = 4;
// Tabu steps towards a bad sample, for each try.
constexpr std::array<int64_t, kTries> kSteps = {10, 20, 40, 80};
// The samples to search with are drawn from this share of the worst.
constexpr double kBadShare = 0.3;
// Rounds without a better order after which the search ends.
constexpr int32_t kMaxVainRounds = 40;

// Draws from a normal distribution with mean 0 and deviation 1, except for its
// far tails, as a sum of twelve uniform numbers, which is the same on every
// machine.
double NearlyNormal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.Unit();
  return std::clamp(sum, -4.0, 4.0);
}

absl::Status Check(const Disturbances& d) {
  if (!(d.jitter >= 0) || d.jitter > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("jitter is ", d.jitter, "; it must be from 0 to 1"));
  }
  if (!(d.slow_rank >= 1) || d.slow_rank > 100) {
    return absl::InvalidArgumentError(
        absl::StrCat("the factor of the slow rank is ", d.slow_rank,
                     "; it must be from 1 to 100"));
  }
  if (d.samples < 1 || d.samples > 100'000) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples are ", d.samples, "; 1 to 100000 are possible"));
  }
  return absl::OkStatus();
}

}  // namespace

DisturbanceJudge::DisturbanceJudge(const FlatGraph& graph,
                                   const Disturbances& disturbances)
    : graph_(&graph),
      num_samples_((disturbances.samples + kLanes - 1) / kLanes * kLanes),
      rows_(static_cast<size_t>(num_samples_ / kLanes)) {
  Random random(disturbances.seed);
  for (std::vector<double>& rows : rows_) {
    rows.resize(static_cast<size_t>(graph.num_tasks) * kLanes);
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const auto slow = static_cast<int32_t>(
          random.Below(std::max<int64_t>(1, graph.num_ranks)));
      for (int32_t t = 0; t < graph.num_tasks; ++t) {
        double factor =
            std::max(0.1, 1 + disturbances.jitter * NearlyNormal(random));
        if (graph.rank[t] == slow) factor *= disturbances.slow_rank;
        const double ns = static_cast<double>(graph.duration[t]) * factor;
        rows[int64_t{t} * kLanes + lane] =
            static_cast<double>(static_cast<int64_t>(ns + 0.5));
      }
    }
  }
}

RobustTimes DisturbanceJudge::Judge(absl::Span<const int32_t> sequence,
                                    std::vector<int32_t>* worst) const {
  const FixedOrder order(*graph_, sequence);
  FixedOrder::Workspace workspace;
  FixedOrder::Durations nominal;
  order.Arrange(graph_->duration, nominal);
  FixedOrder::BatchDurations batch;
  std::vector<int64_t> times;
  for (const std::vector<double>& rows : rows_) {
    order.ArrangeRows(rows, batch);
    const auto lanes = order.Time(batch, workspace);
    times.insert(times.end(), lanes.begin(), lanes.end());
  }
  std::vector<int32_t> by_time(times.size());
  std::iota(by_time.begin(), by_time.end(), 0);
  std::sort(by_time.begin(), by_time.end(), [&](int32_t a, int32_t b) {
    return times[a] != times[b] ? times[a] > times[b] : a < b;
  });
  // Returns the smallest time that the given percentage of samples does not
  // exceed.
  const auto quantile = [&](int64_t percent) {
    const auto n = static_cast<int64_t>(times.size());
    const int64_t within = (n * percent + 99) / 100;
    return Nanoseconds(times[by_time[n - within]]);
  };
  RobustTimes result{.nominal = Nanoseconds(order.Time(nominal, workspace)),
                     .p50 = quantile(50),
                     .p90 = quantile(90)};
  if (worst != nullptr) *worst = std::move(by_time);
  return result;
}

std::vector<int64_t> DisturbanceJudge::DurationsOf(int32_t sample) const {
  std::vector<int64_t> durations(static_cast<size_t>(graph_->num_tasks));
  const std::vector<double>& rows = rows_[sample / kLanes];
  for (int32_t t = 0; t < graph_->num_tasks; ++t) {
    durations[t] =
        static_cast<int64_t>(rows[int64_t{t} * kLanes + sample % kLanes]);
  }
  return durations;
}

absl::StatusOr<RobustResult> RobustSearch(const StageGraph& graph,
                                          const RankOrders& nominal,
                                          const Disturbances& disturbances,
                                          uint64_t seed,
                                          const SearchBudget& budget) {
  PIPELOOM_RETURN_IF_ERROR(Check(disturbances));
  const FlatGraph flat(graph);
  std::vector<int32_t> best = Linearize(flat, nominal);
  if (best.empty() && graph.num_tasks() > 0) {
    return absl::InvalidArgumentError(
        "the orders of the ranks do not run all tasks, producers first");
  }
  const DisturbanceJudge judge(flat, disturbances);
  RobustResult result;
  std::vector<int32_t> worst;
  result.nominal = judge.Judge(best, &worst);
  result.chosen = result.nominal;
  result.evaluations = 1;

  struct Try {
    uint64_t seed = 0;
    int32_t sample = 0;
    int64_t evaluations = 0;
    std::vector<int32_t> sequence{};
    RobustTimes times{};
    std::vector<int32_t> worst{};
  };
  Random random(seed);
  const auto bad = std::max<int64_t>(
      1, static_cast<int64_t>(kBadShare *
                              static_cast<double>(judge.num_samples())));
  for (int32_t vain = 0; vain < kMaxVainRounds;) {
    if (graph.num_tasks() == 0 || budget.Exhausted(result.evaluations)) break;
    std::array<Try, kTries> tries;
    for (Try& attempt : tries) {
      attempt.seed = random.Next();
      attempt.sample = worst[static_cast<size_t>(random.Below(bad))];
    }
    ParallelFor(budget.threads, kTries, [&](int32_t i) {
      if (budget.Exhausted(0)) return;
      Try& attempt = tries[static_cast<size_t>(i)];
      FlatGraph slow = flat;
      slow.duration = judge.DurationsOf(attempt.sample);
      TabuSearch tabu(slow);
      tabu.Start(best);
      Random steps(attempt.seed);
      attempt.evaluations = 1 + tabu.Run(kSteps[static_cast<size_t>(i)],
                                         /*bound=*/0, steps);
      attempt.sequence.assign(tabu.best_sequence().begin(),
                              tabu.best_sequence().end());
      attempt.times = judge.Judge(attempt.sequence, &attempt.worst);
    });
    bool better = false;
    for (Try& attempt : tries) {
      result.evaluations += attempt.evaluations;
      if (attempt.sequence.empty()) continue;
      const RobustTimes& times = attempt.times;
      if (times.p90 < result.chosen.p90 ||
          (times.p90 == result.chosen.p90 && times.p50 < result.chosen.p50)) {
        result.chosen = times;
        best = std::move(attempt.sequence);
        worst = std::move(attempt.worst);
        better = true;
      }
    }
    vain = better ? 0 : vain + 1;
  }
  result.order = OrdersOf(flat, best);
  return result;
}

}  // namespace pipeloom::planner
