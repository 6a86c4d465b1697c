// The state that the moves of one search worker share: the problem, the best
// answer so far, what may still be spent, and the tools that make, improve and
// time schedules.
#ifndef PIPELOOM_PLANNER_MOVES_SEARCH_STATE_H_
#define PIPELOOM_PLANNER_MOVES_SEARCH_STATE_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/construct/forward_backward.h"
#include "planner/construct/list_scheduler.h"
#include "planner/construct/modulo_schedule.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/core/search_budget.h"
#include "planner/moves/order_search.h"
#include "planner/moves/relabel_search.h"
#include "planner/moves/tabu_search.h"

namespace pipeloom::planner {

// The ways of working. With two workers, both construct.
enum class WorkerRole {
  kConstruct,  // Tries its share of the portfolio and goes on from the best.
  kIntensify,  // Always goes on from the best answer of all workers.
  kDiversify,  // Starts anew, again and again after a short while.
  kSolve,      // Intensifies, and solves windows exactly.
};

// The state that all workers of a search share and only read.
struct SearchSpace {
  const FlatGraph* graph = nullptr;
  const FlatGraph* ideal = nullptr;  // See Idealised().
  const OrderUnits* units = nullptr;
  const std::vector<OrderChoice>* portfolio = nullptr;
  // Choices to improve forwards and backwards before all others.
  const std::vector<OrderChoice>* spread = nullptr;
  // The mean microbatch where memory is short and it is valid, else null.
  const MeanMicrobatch* mean = nullptr;
  bool is_limited = false;  // Whether memory is short.
  int64_t bound = 0;        // Lower bound of the step time, ns.
  // Whether the first sequence adopted is known to be good, not just a first
  // answer.
  bool warm_start = false;
  int32_t num_workers = 1;
  // Returns the role of a worker: workers go two by two, as every second one
  // may see time reversed and comes back to patterns only.
  WorkerRole RoleOf(int32_t worker) const {
    constexpr WorkerRole kRoles[] = {
        WorkerRole::kConstruct, WorkerRole::kIntensify, WorkerRole::kDiversify,
        WorkerRole::kSolve};
    return kRoles[worker / 2 % 4];
  }
  // Returns the number of workers before `worker` that construct.
  int32_t ConstructorsBefore(int32_t worker) const {
    return worker / 8 * 2 + std::min(worker % 8, 2);
  }
};

// A choice of the list scheduler with its step time in ns.
struct Candidate {
  int64_t time = std::numeric_limits<int64_t>::max();
  OrderChoice choice{};
};

// A sequence of all tasks with its step time in ns.
struct Answer {
  int64_t time = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> sequence{};
};

// The good choices that moves leave for each other.
struct GoodChoices {
  std::vector<Candidate> bases{};  // The best of the portfolio, best first.
  Candidate home{};                // The choice to come back to.
};

// The state of one worker. Not thread-safe.
class SearchState {
 public:
  // Measured costs of evaluations, in sweeps of the sequence annealing.
  static constexpr int64_t kListCost = 16;
  static constexpr int64_t kTabuCost = 3;
  static constexpr int64_t kRoundCost = 480;
  // Tabu steps between two looks at the budget; and without a better answer,
  // until a search from a good start or from any other ends.
  static constexpr int64_t kSteps = 16;
  static constexpr int64_t kPolish = 400;
  static constexpr int64_t kShortPolish = 25;
  // The fewest tasks of a graph that counts as large where memory is limited.
  static constexpr int32_t kLargeIfLimited = 1000;

  // Keeps a reference to `space` and to what it points to.
  SearchState(const SearchSpace& space, int32_t index, uint64_t seed);
  SearchState(const SearchState&) = delete;
  SearchState& operator=(const SearchState&) = delete;

  // The problem.
  const SearchSpace& space() const { return *space_; }
  const FlatGraph& graph() const { return *space_->graph; }
  const OrderUnits& units() const { return *space_->units; }
  // Returns the index of the worker.
  int32_t index() const { return index_; }
  WorkerRole role() const { return space_->RoleOf(index_); }
  // Return the first of the choices that the worker constructs with, and how
  // many workers share all of them. REQUIRES: it constructs.
  size_t first_share() const {
    return static_cast<size_t>(space_->ConstructorsBefore(index_));
  }
  size_t shares() const {
    return static_cast<size_t>(space_->ConstructorsBefore(space_->num_workers));
  }
  // Returns the mean duration of a task in ns.
  double mean_duration() const { return mean_duration_; }
  // Returns whether the portfolio takes a good part of a short budget.
  bool is_large() const { return graph().num_tasks > 2500; }
  // Returns whether schedules can be improved forwards and backwards, so that
  // Sweep may be called.
  bool can_sweep();
  // Returns whether, besides, the step has a dominant microbatch.
  bool has_dominant() { return !space_->spread->empty() && can_sweep(); }
  // Returns whether memory is short.
  bool is_limited() const { return space_->is_limited; }
  // Returns whether memory is short and the graph is so large that the first
  // moves must leave time to the later ones. The size is less than that of
  // is_large(), as schedules under a limit take longer to make. What the moves
  // leave out was chosen on the 119 such problems of `pipeloom bench --random
  // train:600`.
  bool is_large_and_limited() const {
    return is_limited() && graph().num_tasks >= kLargeIfLimited;
  }
  // Returns whether the worker comes back to patterns only, which need more
  // steps to pay; every second worker does.
  bool keeps_pattern() const { return index_ % 2 == 1; }
  // Returns whether exchanging places of microbatches pays and keeps the memory
  // limits.
  bool places_matter() const {
    return relabels_.can_move() && relabels_.keeps_memory();
  }

  // Sets the limits of a round: its cost, and `limit` more evaluations.
  void BeginRound(int64_t limit);
  // Returns whether nothing says stop: the bound, the evaluations, the budget.
  bool MayGoOn(const SearchBudget& budget) const {
    return evaluations_ < stop_at_ && overall().time > space_->bound &&
           !budget.Exhausted(0);
  }
  // Returns the same for a move whose turn ends with the round.
  bool RoundMayGoOn(const SearchBudget& budget) const {
    return cost_ < kRoundCost && MayGoOn(budget);
  }
  // Counts evaluations, and what they cost the round.
  void Spend(int64_t evaluations, int64_t cost) {
    evaluations_ += evaluations;
    cost_ += cost;
  }
  int64_t evaluations() const { return evaluations_; }
  int64_t evaluations_left() const { return stop_at_ - evaluations_; }
  int64_t round_cost() const { return cost_; }  // Spent in this round.

  // The best since the last start, and of all starts.
  const Answer& since_start() const { return best_; }
  const Answer& overall() const {
    return top_.time < best_.time ? top_ : best_;
  }
  // Keeps a sequence if it is the best since the last start.
  void Keep(int64_t time, absl::Span<const int32_t> sequence);
  // Takes an answer from outside. Returns whether it replaces the best; after
  // LeaveBest, it only becomes one of elites(). REQUIRES: it is legal.
  bool Adopt(int64_t time, absl::Span<const int32_t> sequence);
  // Takes another worker's answer as one of elites() only. REQUIRES: it is
  // legal.
  void Learn(int64_t time, absl::Span<const int32_t> sequence) {
    AddElite(time, sequence);
  }
  // Moves the best answer to elites(), for a new start.
  void LeaveBest();
  // Returns the best answers before each new start and those adopted since.
  const std::vector<Answer>& elites() const { return elites_; }

  // Evaluates a choice and keeps its sequence if it is the best. Returns its
  // time in ns, or kNoLimit if it is not legal or neither the best nor less
  // than `worth`.
  int64_t TryChoice(const OrderChoice& choice, int64_t worth = kNoLimit);
  // Returns the sequence of the last TryChoice that returned a time.
  absl::Span<const int32_t> LastSequence() const;
  // Improves that sequence (or any other) forwards and backwards, keeps it if
  // it is the best, and returns the time in ns. REQUIRES: can_sweep().
  int64_t Sweep(absl::Span<const int32_t> sequence,
                const SweepStyle& style = {});
  // List-schedules the tasks by an order, improves the result forwards and
  // backwards, if that is possible and there is time, and keeps it if it is the
  // best. Returns the time in ns, or kNoLimit if there is no schedule of that
  // style. An order that keeps the limits has one.
  int64_t Relist(absl::Span<const int32_t> order, const SweepStyle& style,
                 Prefer prefer, const SearchBudget& budget);
  // Returns the sequence of the last Relist that returned a time.
  const std::vector<int32_t>& relisted() const { return relisted_; }
  // Relists the best sequence in several styles.
  void RelistBest(const SearchBudget& budget);
  // Draws a style at random.
  SweepStyle DrawStyle();
  // Runs tabu search from such a sequence until `iterations` gain nothing; its
  // results are in tabu().
  void Polish(absl::Span<const int32_t> sequence, int64_t iterations,
              const SearchBudget& budget);

  GoodChoices& choices() { return choices_; }
  const GoodChoices& choices() const { return choices_; }
  // Shares one sequence with TryChoice.
  ListScheduler& lists() { return evaluator_.scheduler(); }
  Retimer& retimer() { return retimer_; }
  TabuSearch& tabu() { return tabu_; }
  RelabelSearch& relabels() { return relabels_; }
  Random& random() { return random_; }

 private:
  void AddElite(int64_t time, absl::Span<const int32_t> sequence);

  const SearchSpace* space_;
  int32_t index_;
  OrderEvaluator evaluator_;
  std::unique_ptr<OrderEvaluator> ideal_;  // Made on first use.
  bool last_ideal_ = false;
  Retimer retimer_;
  std::unique_ptr<ForwardBackward> sweeps_;  // Made on first use.
  TabuSearch tabu_;
  RelabelSearch relabels_;
  Random random_;
  double mean_duration_ = 0;

  int64_t stop_at_ = 0;
  int64_t cost_ = 0;
  int64_t evaluations_ = 0;
  Answer best_{};
  Answer top_{};  // The best answer before the last new start.
  std::vector<Answer> elites_{};
  bool restarted_ = false;
  GoodChoices choices_{};
  std::vector<int32_t> relisted_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_SEARCH_STATE_H_
