// One of the independent searchers of SearchGraph, with its own random numbers,
// schedulers and best answer. Work is done in rounds of about equal cost, so
// that workers can meet between them.
//
// A worker does the following, in this order:
// - For steps with a dominant microbatch: improves the first answer, its share
//   of the choices that spread microbatches over the step, and some choices
//   drawn at random, forwards and backwards.
// - Tries its share of the portfolio of list-scheduling choices.
// - From each of its best choices in turn: exchanges the microbatches that go
//   first and last (which fill and drain the pipeline), then runs tabu search,
//   also with the next best microbatches in the first place.
// - In turns: anneals choices and follows each promising one by a short tabu
//   search; list-schedules by the best answer's start times, disturbed; anneals
//   the sequence; runs tabu search from the best answer. If, under a limit,
//   microbatches of equal structure differ in cost but not in memory, most
//   turns instead exchange the places of some of them in the schedule, each
//   time followed by a short tabu search and accepted or not as in annealing,
//   or anneal their places; tabu search from the best then has no turn.
// - If microbatches differ and nothing better was found for long (with a
//   dominant microbatch: for one round): begins from a new start, until that
//   stalls too. Best answers are kept and mixed; from then on another worker's
//   best answer is only mixed in.
#ifndef PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_
#define PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/random.h"
#include "planner/construct/forward_backward.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/core/search_budget.h"
#include "planner/core/sort_by_key.h"
#include "planner/moves/order_search.h"
#include "planner/moves/relabel_search.h"
#include "planner/moves/sequence_search.h"
#include "planner/moves/tabu_search.h"

namespace pipeloom::planner {

// The state that all workers of a search share and only read.
struct SearchSpace {
  const FlatGraph* graph = nullptr;
  const FlatGraph* ideal = nullptr;  // See Idealised().
  const OrderUnits* units = nullptr;
  const std::vector<OrderChoice>* portfolio = nullptr;
  // Choices to improve forwards and backwards before all others.
  const std::vector<OrderChoice>* spread = nullptr;
  int64_t bound = 0;  // Lower bound of the step time, ns.
  // Whether the first sequence adopted is known to be good, not just a first
  // answer.
  bool warm_start = false;
  int32_t num_workers = 1;
};

// A searcher. Not thread-safe.
class SearchWorker {
 public:
  // Keeps a reference to `space` and to what it points to.
  SearchWorker(const SearchSpace& space, int32_t index, uint64_t seed);

  // Returns the best step time so far in ns, and its sequence below.
  int64_t best() const { return std::min(best_, top_); }
  const std::vector<int32_t>& sequence() const {
    return top_ < best_ ? top_sequence_ : sequence_;
  }
  int64_t evaluations() const { return evaluations_; }
  // Goes on from the best sequence of another worker, with its step time in ns.
  // REQUIRES: the sequence is legal.
  void Adopt(int64_t time, absl::Span<const int32_t> sequence);
  // Takes over from a worker that searched the same tasks with other durations
  // or limits: its beginning is not repeated, except for its best choices.
  // REQUIRES: no Round yet.
  void Inherit(const SearchWorker& earlier);

  // Works until the round's cost is spent, `limit` more evaluations are made,
  // the bound is met or the budget says stop.
  void Round(int64_t limit, const SearchBudget& budget);

 private:
  // Measured costs of evaluations, in sweeps of the sequence annealing.
  static constexpr int64_t kListCost = 16;
  static constexpr int64_t kTabuCost = 3;
  static constexpr int64_t kRoundCost = 480;
  // Tabu steps between two looks at the budget; and without a better answer,
  // until a search from a good start or from any other ends.
  static constexpr int64_t kSteps = 16;
  static constexpr int64_t kPolish = 400;
  static constexpr int64_t kShortPolish = 25;

  // A kept best answer; time in ns.
  struct Elite {
    int64_t time = 0;
    std::vector<int32_t> sequence{};
  };
  struct Candidate {
    int64_t time = std::numeric_limits<int64_t>::max();
    OrderChoice choice{};
  };
  bool MayGoOn(const SearchBudget& budget) const {
    return evaluations_ < stop_at_ && best() > space_->bound &&
           !budget.Exhausted(0);
  }
  // Keeps a sequence if it is the best.
  void Keep(int64_t time, absl::Span<const int32_t> sequence);
  // Evaluates a choice and keeps its sequence if it is the best. Returns its
  // time in ns, or kNoLimit if it is not legal or neither the best nor less
  // than `worth`.
  int64_t TryChoice(const OrderChoice& choice, int64_t worth = kNoLimit);
  // Returns the sequence of the last TryChoice that returned a time.
  absl::Span<const int32_t> LastSequence() const;
  // Improves that sequence (or any other) forwards and backwards; returns the
  // time in ns.
  int64_t Sweep(absl::Span<const int32_t> sequence);
  // Runs tabu search from such a sequence for as long as it pays.
  void Polish(absl::Span<const int32_t> sequence, int64_t iterations,
              const SearchBudget& budget);

  // Defined in search_worker_start.cc.
  bool begun() const {
    return started_ && inherited_.empty() &&
           next_portfolio_ >= space_->portfolio->size();
  }
  void SweepFirst(const SearchBudget& budget);
  void Portfolio(const SearchBudget& budget);
  // Tries a choice and, if it is good, notes it as one to exchange the ends of
  // or to come back to.
  void TryAsBase(const OrderChoice& choice);
  // Chooses which microbatches go first and last; `base` becomes the best
  // found.
  void ExchangeEnds(Candidate* base, const SearchBudget& budget);

  // Defined in search_worker_turns.cc.
  void TakeTurn(int64_t turn, const SearchBudget& budget);
  void PerturbChoices(const SearchBudget& budget);
  // List-schedules by the start times of the incumbent, disturbed.
  void Shake(const SearchBudget& budget);
  // Exchanges places of microbatches, with tabu search after each exchange.
  void KickMicrobatches(const SearchBudget& budget);
  // Anneals the places of microbatches alone.
  void PlaceMicrobatches(const SearchBudget& budget);
  void ImproveBest(const SearchBudget& budget);
  void ImproveSequence(const SearchBudget& budget);

  // Defined in search_worker_restart.cc.
  //
  // Leaves the present best for another start: the best of some choices drawn
  // at random, or a list schedule by mixed start times of two former best
  // answers.
  void Restart(const SearchBudget& budget);
  void AddElite(int64_t time, absl::Span<const int32_t> sequence);
  void MixElites();
  OrderChoice DrawChoice();
  // Draws a choice that spreads microbatches over the step at random; for steps
  // with a dominant microbatch.
  OrderChoice DrawSpread();
  // Improves `number` such choices forwards and backwards.
  void SweepDrawn(int32_t number, const SearchBudget& budget);
  // Draws an order in which a few light microbatches fill the pipeline, then
  // the heavy ones come, and the other light ones drain it; sorted by all their
  // work or by that of their first module.
  std::vector<int32_t> DrawOrder();

  const SearchSpace* space_;
  OrderEvaluator evaluator_;
  std::unique_ptr<OrderEvaluator> ideal_;  // Made on first use.
  Retimer retimer_;
  std::unique_ptr<ForwardBackward> sweeps_;  // Null if it could gain nothing.
  TabuSearch tabu_;
  SequenceSearch sequences_;
  RelabelSearch relabels_;
  KeySorter sorter_;
  Random random_;
  bool keeps_pattern_;
  bool symmetric_;  // All units are alike, so their order does not matter.
  double mean_duration_ = 0;
  int32_t index_;
  // Progress of the beginning.
  size_t next_spread_;
  int32_t spreads_drawn_ = 0;
  bool first_swept_ = false;
  bool started_ = false;
  size_t next_portfolio_;
  std::vector<OrderChoice> inherited_{};
  bool last_ideal_ = false;

  // Limits and cost of the running Round.
  int64_t stop_at_ = 0;
  int64_t cost_ = 0;

  int64_t evaluations_ = 0;
  int64_t best_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> sequence_{};
  std::vector<Candidate> bases_{};  // The best choices, best first.
  size_t next_base_ = 0;
  // The choice to come back to, and the one being changed.
  Candidate home_{};
  Candidate current_{};
  // The sequences that Shake and KickMicrobatches disturb, with their times in
  // ns.
  int64_t shaken_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> shaken_sequence_{};
  int64_t kicked_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> kicked_sequence_{};
  // The best answer before the last restart, and the best ones of restarts.
  int64_t top_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> top_sequence_{};
  std::vector<Elite> elites_{};
  bool restarted_ = false;
  int64_t stalled_cost_ = 0;  // Cost since best_ last improved.
  int64_t turn_ = 0;
  int64_t cycle_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_
