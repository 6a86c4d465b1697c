#include "planner/search/local_search.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/core/executor.h"
#include "planner/moves/tabu_search.h"
#include "planner/moves/turns/relist_windows.h"

namespace pipeloom::planner {
namespace {

// The cost of a turn: a quarter of a round of the other workers, as in 100 ms
// large steps have time for few turns.
constexpr int64_t kTurnCost = SearchState::kRoundCost / 4;
// Moves of the tabu search between two looks at the budget.
constexpr int64_t kMoves = 8;

// One worker.
class LocalWorker {
 public:
  LocalWorker(const FlatGraph& graph, int32_t index, uint64_t seed,
              const Answer& start)
      : tabu_(graph),
        lister_(graph),
        windows_{.mean_duration = MeanDuration(graph), .is_limited = true},
        random_(seed),
        turn_(index),
        best_(start) {}

  const Answer& best() const { return best_; }
  int64_t evaluations() const { return evaluations_; }

  // Goes on from an answer if it is shorter.
  void Adopt(const Answer& other) {
    if (other.time >= best_.time) return;
    best_ = other;
    is_new_ = true;
  }

  // Makes at most `most` evaluations.
  void Turn(int64_t most, int64_t bound, const SearchBudget& budget) {
    const int64_t until = evaluations_ + std::min(most, kNoLimit);
    const auto may_go_on = [&] {
      return evaluations_ < until && best_.time > bound && !budget.Exhausted(0);
    };
    if (turn_++ % 2 == 0) {
      Move(until, bound, may_go_on);
    } else {
      Relist(may_go_on);
    }
  }

 private:
  template <typename MayGoOn>
  void Move(int64_t until, int64_t bound, const MayGoOn& may_go_on) {
    if (std::exchange(is_new_, false)) tabu_.Start(best_.sequence);
    for (int64_t cost = 0; cost < kTurnCost && may_go_on();
         cost += kMoves * SearchState::kTabuCost) {
      const int64_t moves = std::min(kMoves, until - evaluations_);
      const int64_t done = tabu_.Run(moves, bound, random_);
      evaluations_ += done;
      if (tabu_.best_time() < best_.time) {
        best_.time = tabu_.best_time();
        best_.sequence.assign(tabu_.best_sequence().begin(),
                              tabu_.best_sequence().end());
      }
      if (done < moves) return;  // Nothing can be moved.
    }
  }

  template <typename MayGoOn>
  void Relist(const MayGoOn& may_go_on) {
    if (lister_.time() != best_.time) lister_.Start(best_.sequence);
    int64_t cost = 0;
    const auto spend = [&](int64_t evaluations, int64_t sweeps) {
      evaluations_ += evaluations;
      cost += sweeps;
    };
    while (cost < kTurnCost && may_go_on()) {
      if (!windows_.Relist(may_go_on, spend, &lister_, random_)) continue;
      is_new_ = is_new_ || lister_.time() < best_.time;
      best_ = {.time = lister_.time(), .sequence = lister_.sequence()};
    }
  }

  static double MeanDuration(const FlatGraph& graph) {
    double sum = 0;
    for (const int64_t d : graph.duration) sum += static_cast<double>(d);
    return sum / std::max(1, graph.num_tasks);
  }

  TabuSearch tabu_;
  WindowLister lister_;
  const RandomWindows windows_;
  Random random_;
  int64_t turn_;
  Answer best_;
  bool is_new_ = true;  // Whether the tabu search has yet to start from best_.
  int64_t evaluations_ = 0;
};

}  // namespace

int64_t SearchLocally(const FlatGraph& graph, int64_t bound, uint64_t seed,
                      const SearchBudget& budget, Answer* answer) {
  Random random(seed);
  std::vector<std::unique_ptr<LocalWorker>> workers;
  for (int32_t i = 0; i < budget.workers; ++i) {
    workers.push_back(
        std::make_unique<LocalWorker>(graph, i, random.Next(), *answer));
  }
  int64_t evaluations = 0;
  while (answer->time > bound && !budget.Exhausted(evaluations)) {
    const int64_t left = budget.max_evaluations - evaluations;
    ParallelFor(budget.threads, budget.workers, [&](int32_t i) {
      const int64_t share =
          left / budget.workers + (i < left % budget.workers ? 1 : 0);
      workers[static_cast<size_t>(i)]->Turn(share, bound, budget);
    });
    // At least one, so that the search ends where nothing can be changed.
    const int64_t least = evaluations + 1;
    evaluations = 0;
    for (const auto& worker : workers) {
      evaluations += worker->evaluations();
      if (worker->best().time < answer->time) *answer = worker->best();
    }
    for (const auto& worker : workers) worker->Adopt(*answer);
    evaluations = std::max(evaluations, least);
  }
  return evaluations;
}

}  // namespace pipeloom::planner
