// How a search runs:
//  1. the list scheduler with its default policy: the first legal answer;
//  2. kTrees workers, each with its own random numbers, schedulers and best
//     answer: a share of the portfolio of policies, then a tree search over
//     the order of units, then in turns annealing of policies and annealing of
//     the schedule itself;
//  3. workers run in rounds of a fixed number of evaluations and meet after
//     each, where the best answer (ties: the smaller index) may replace the
//     worst.
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
#include "planner/retime.h"
#include "planner/sequence_search.h"
#include "planner/tree_search.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kTrees = 4;
// Evaluations that one timing sweep is worth: lists are placed in rounds of
// kListRound and sequences re-timed in rounds of kSweepRound.
constexpr int64_t kListRound = 24;
constexpr int64_t kSweepRound = 400;
constexpr int64_t kTreeEvaluations = 48;
// Rounds of sweeps from one start to the next.
constexpr int64_t kCycle = 12;

class Worker {
 public:
  Worker(const FlatGraph& graph, const FlatGraph& ideal,
         const OrderUnits& units, const std::vector<OrderChoice>& portfolio,
         int32_t index, uint64_t seed, int64_t target)
      : portfolio_(&portfolio),
        evaluator_(graph, units),
        ideal_(ideal, units),
        retimer_(graph),
        keeps_pattern_(index % 2 == 1),
        symmetric_(std::all_of(
            units.load.begin(), units.load.end(),
            [&](int64_t load) { return load == units.load.front(); })),
        sequences_(graph),
        random_(seed),
        next_portfolio_(static_cast<size_t>(index)),
        target_(target) {
    int64_t total = 0;
    for (const int64_t d : graph.duration) total += d;
    mean_duration_ = static_cast<double>(total) / std::max(1, graph.num_tasks);
  }

  int64_t best() const { return best_; }
  const std::vector<int32_t>& sequence() const { return sequence_; }
  int64_t evaluations() const { return evaluations_; }
  void Adopt(const Worker& other) {
    best_ = other.best_;
    sequence_ = other.sequence_;
    cycle_ = 0;
  }

  // One round of at most `limit` evaluations.
  void Round(int64_t limit, const SearchBudget& budget) {
    const int64_t stop_at = evaluations_ + limit;
    const auto may_go_on = [&] {
      return evaluations_ < stop_at && best_ > target_ && !budget.Exhausted(0);
    };
    if (next_portfolio_ < portfolio_->size()) {
      for (; next_portfolio_ < portfolio_->size() && may_go_on();
           next_portfolio_ += kTrees) {
        TryChoice((*portfolio_)[next_portfolio_]);
      }
      return;
    }
    if (tree_evaluations_ < kTreeEvaluations && choice_.order.size() > 1 &&
        choice_.rule != PriorityRule::kTail && !symmetric_) {
      if (problem_ == nullptr) {
        problem_ = std::make_unique<OrderProblem>(evaluator_, choice_);
        tree_ = std::make_unique<TreeSearch<OrderProblem>>(*problem_,
                                                           random_.Next());
      }
      while (tree_evaluations_ < kTreeEvaluations && may_go_on()) {
        const int32_t calls = tree_->Step();
        if (calls == 0) tree_evaluations_ = kTreeEvaluations;
        tree_evaluations_ += calls;
        evaluations_ += calls;
      }
      // The tree keeps states, not sequences.
      if (tree_->best_cost() < choice_time_) {
        TryChoice(problem_->Choice(tree_->best_state()));
      }
      return;
    }
    if (round_++ % 2 == 0) {
      PerturbChoices(may_go_on, stop_at);
    } else {
      ImproveSequence(budget, stop_at);
    }
  }

 private:
  void Keep(int64_t time, absl::Span<const int32_t> sequence) {
    if (time >= best_ || time >= kNoLimit) return;
    best_ = time;
    sequence_.assign(sequence.begin(), sequence.end());
  }
  int64_t TryChoice(const OrderChoice& choice) {
    int64_t time = 0;
    if (choice.idealised) {
      time = ideal_.Evaluate(choice);
      if (time < kNoLimit) time = retimer_.Retime(ideal_.sequence());
      Keep(time, ideal_.sequence());
    } else {
      time = evaluator_.Evaluate(choice);
      Keep(time, evaluator_.sequence());
    }
    ++evaluations_;
    // Odd workers stay with patterns, which need more steps to pay.
    if (keeps_pattern_ && IsPattern(choice.rule) && time < home_time_) {
      home_time_ = time;
      home_ = choice;
    }
    if (time < choice_time_) {
      choice_time_ = time;
      choice_ = choice;
    }
    if (!keeps_pattern_) {
      home_time_ = choice_time_;
      home_ = choice_;
    }
    return time;
  }
  template <typename MayGoOn>
  void PerturbChoices(const MayGoOn& may_go_on, int64_t stop_at) {
    const int64_t until = std::min(stop_at, evaluations_ + kListRound);
    if (home_.order.empty()) {
      home_ = choice_;
      home_time_ = choice_time_;
    }
    if (current_choice_.order.empty() ||
        static_cast<double>(current_ - home_time_) > 3 * mean_duration_) {
      current_ = home_time_;
      current_choice_ = home_;
    }
    while (evaluations_ < until && may_go_on()) {
      OrderChoice choice = current_choice_;
      Perturb(&choice, random_);
      if (random_.Below(3) == 0) Perturb(&choice, random_);
      const int64_t time = TryChoice(choice);
      const double worse = static_cast<double>(time - current_);
      if (worse <= 0 || worse < 0.3 * mean_duration_ * random_.Unit()) {
        current_ = time;
        current_choice_ = std::move(choice);
      }
    }
  }
  void ImproveSequence(const SearchBudget& budget, int64_t stop_at) {
    if (cycle_ % kCycle == 0) sequences_.Start(sequence_);
    const double left =
        1 - static_cast<double>(cycle_ % kCycle) / static_cast<double>(kCycle);
    ++cycle_;
    const double temperature = 0.3 * mean_duration_ * left * left;
    // In small steps, so that a deadline is kept.
    for (int64_t done = 0; done < kSweepRound && evaluations_ < stop_at &&
                           best_ > target_ && !budget.Exhausted(0);
         done += 25) {
      evaluations_ +=
          sequences_.Run(std::min<int64_t>(25, stop_at - evaluations_),
                         temperature, target_, random_);
      Keep(sequences_.best_time(), sequences_.best_sequence());
    }
  }

  const std::vector<OrderChoice>* portfolio_;
  OrderEvaluator evaluator_;
  OrderEvaluator ideal_;
  Retimer retimer_;
  bool keeps_pattern_;
  bool symmetric_;
  SequenceSearch sequences_;
  Random random_;
  size_t next_portfolio_;
  int64_t target_;
  double mean_duration_ = 0;
  std::unique_ptr<OrderProblem> problem_{};
  std::unique_ptr<TreeSearch<OrderProblem>> tree_{};
  int64_t tree_evaluations_ = 0;
  int64_t round_ = 0;
  int64_t cycle_ = 0;
  int64_t evaluations_ = 0;
  int64_t best_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> sequence_{};
  // The best choice, the one to come back to, and the one being changed.
  int64_t choice_time_ = std::numeric_limits<int64_t>::max();
  OrderChoice choice_{};
  int64_t home_time_ = std::numeric_limits<int64_t>::max();
  OrderChoice home_{};
  int64_t current_ = std::numeric_limits<int64_t>::max();
  OrderChoice current_choice_{};
};

// The most evaluations a worker may still make when all share `total`.
int64_t Share(int64_t total, int32_t index) {
  return total / kTrees + (index < total % kTrees ? 1 : 0);
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
    Random random(seed);
    std::vector<std::unique_ptr<Worker>> workers;
    for (int32_t i = 0; i < kTrees; ++i) {
      workers.push_back(std::make_unique<Worker>(flat, ideal, units, portfolio,
                                                 i, random.Next(), bound));
    }
    const auto leader = [&] {
      int32_t index = 0;
      for (int32_t i = 1; i < kTrees; ++i) {
        if (workers[i]->best() < workers[index]->best()) index = i;
      }
      return index;
    };
    for (int64_t round = 1;; ++round) {
      int64_t done = 1;
      for (const auto& worker : workers) done += worker->evaluations();
      result.evaluations = done;
      if (workers[leader()]->best() <= bound || budget.Exhausted(done)) break;
      ParallelFor(budget.threads, kTrees, [&](int32_t i) {
        const int64_t left =
            Share(budget.max_evaluations - 1, i) - workers[i]->evaluations();
        if (left > 0) workers[i]->Round(left, budget);
      });
      int32_t worst = 0;
      for (int32_t i = 1; i < kTrees; ++i) {
        if (workers[i]->best() >= workers[worst]->best()) worst = i;
      }
      if (round % 8 == 0 && worst != leader()) {
        workers[worst]->Adopt(*workers[leader()]);
      }
    }
    const Worker& winner = *workers[leader()];
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
