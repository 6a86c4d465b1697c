// How a search runs:
//  1. the list scheduler with its default policy: the first legal answer;
//  2. kWorkers workers (planner/search_worker.h) in rounds of about equal
//     cost; they meet after each, and from time to time the best answer (ties:
//     the smaller index) replaces the worst.
// The number of workers, the rounds and the exchange do not depend on the
// number of threads, and so neither does the result.
#include "planner/search_graph.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status_macros.h"
#include "planner/executor.h"
#include "planner/flat_graph.h"
#include "planner/list_scheduler.h"
#include "planner/lower_bound.h"
#include "planner/order_search.h"
#include "planner/search_worker.h"

namespace pipeloom::planner {
namespace {

// Two, not more: with little time one long search beats several short ones.
constexpr int32_t kWorkers = 2;
// Rounds between two exchanges.
constexpr int64_t kExchange = 8;

// The most evaluations a worker may still make when all share `total`.
int64_t Share(int64_t total, int32_t index) {
  return total / kWorkers + (index < total % kWorkers ? 1 : 0);
}

}  // namespace

absl::StatusOr<SearchResult> SearchGraph(const StageGraph& graph, uint64_t seed,
                                         const SearchBudget& budget) {
  const FlatGraph flat(graph);
  ListScheduler first(flat);
  if (!first.CanRun()) return DescribeShortage(graph, first.shortage());
  SearchResult result;
  const int64_t bound = LowerBound(flat);
  result.lower_bound = Nanoseconds(bound);
  int64_t best = first.Run({});
  std::vector<int32_t> sequence(first.sequence().begin(),
                                first.sequence().end());
  result.evaluations = 1;

  if (best > bound && !budget.Exhausted(1)) {
    const OrderUnits units(graph);
    const FlatGraph ideal = Idealised(graph);
    const std::vector<OrderChoice> portfolio = OrderPortfolio(flat, units);
    const SearchSpace space{.graph = &flat,
                            .ideal = &ideal,
                            .units = &units,
                            .portfolio = &portfolio,
                            .bound = bound,
                            .num_workers = kWorkers};
    Random random(seed);
    std::vector<std::unique_ptr<SearchWorker>> workers;
    for (int32_t i = 0; i < kWorkers; ++i) {
      workers.push_back(
          std::make_unique<SearchWorker>(space, i, random.Next()));
    }
    const auto leader = [&] {
      int32_t index = 0;
      for (int32_t i = 1; i < kWorkers; ++i) {
        if (workers[i]->best() < workers[index]->best()) index = i;
      }
      return index;
    };
    for (int64_t round = 1;; ++round) {
      int64_t done = 1;
      for (const auto& worker : workers) done += worker->evaluations();
      result.evaluations = done;
      if (workers[leader()]->best() <= bound || budget.Exhausted(done)) break;
      ParallelFor(budget.threads, kWorkers, [&](int32_t i) {
        const int64_t left =
            Share(budget.max_evaluations - 1, i) - workers[i]->evaluations();
        if (left > 0) workers[i]->Round(left, budget);
      });
      int32_t worst = 0;
      for (int32_t i = 1; i < kWorkers; ++i) {
        if (workers[i]->best() >= workers[worst]->best()) worst = i;
      }
      if (round % kExchange == 0 && worst != leader()) {
        const SearchWorker& best_worker = *workers[leader()];
        workers[worst]->Adopt(best_worker.best(), best_worker.sequence());
      }
    }
    const SearchWorker& winner = *workers[leader()];
    if (winner.best() < best) {
      best = winner.best();
      sequence = winner.sequence();
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(result.schedule,
                            TimeSchedule(graph, OrdersOf(flat, sequence)));
  // What leaves the search has passed the independent check.
  PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(graph, result.schedule));
  PIPELOOM_CHECK(result.schedule.step_time().count() == best);
  result.proven_optimal = result.schedule.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
