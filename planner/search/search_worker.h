// One of the independent searchers of SearchGraph: its own random numbers,
// schedulers and best answer. Work is done in rounds of about equal cost, so
// that workers can meet between them.
//
// What a worker does, in this order:
//  - where one microbatch is giant: the first answer, its share of the choices
//    that spread microbatches over the step, and some drawn at random, improved
//    forwards and backwards;
//  - its share of the portfolio of list-scheduling choices;
//  - from its best choices, in turns: the microbatches that go first and last
//    are exchanged (what fills and drains the pipeline), then tabu search, also
//    from the next best to go first;
//  - in turns: annealing of choices, each promising one followed by a short
//    tabu search; list scheduling by the best's start times, disturbed;
//    annealing of the sequence; and, where microbatches of equal structure
//    differ in cost and not in memory under a limit, mostly: some exchange
//    their places in the schedule, each time followed by a short tabu search,
//    accepted or not as in annealing, and annealing of their places; elsewhere
//    tabu search from the best;
//  - where microbatches differ and long nothing better was found (beside a
//    giant: after a round): from a new start, until that stalls too. Bests are
//    kept and mixed; from then on another worker's best is only mixed in.
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

// What all workers of a search share and only read.
struct SearchSpace {
  const FlatGraph* graph = nullptr;
  const FlatGraph* ideal = nullptr;  // See Idealised.
  const OrderUnits* units = nullptr;
  const std::vector<OrderChoice>* portfolio = nullptr;
  // Choices to improve forwards and backwards first of all.
  const std::vector<OrderChoice>* spread = nullptr;
  int64_t bound = 0;  // Of the step time, ns.
  // The first sequence adopted is known to be good, not just a first answer.
  bool warm_start = false;
  int32_t num_workers = 1;
};

class SearchWorker {
 public:
  // Keeps a reference to `space` and what it points to.
  SearchWorker(const SearchSpace& space, int32_t index, uint64_t seed);

  int64_t best() const { return std::min(best_, top_); }
  const std::vector<int32_t>& sequence() const {
    return top_ < best_ ? top_sequence_ : sequence_;
  }
  int64_t evaluations() const { return evaluations_; }
  // Goes on from another's best sequence. REQUIRES: legal.
  void Adopt(int64_t time, absl::Span<const int32_t> sequence);
  // Goes on where a worker on the same tasks with other durations or limits
  // was: what it has begun with is not done again but for its best choices.
  // REQUIRES: no Round yet.
  void Inherit(const SearchWorker& earlier);

  // Works until the round's cost is spent, `limit` more evaluations are made,
  // the bound is met or the budget says stop.
  void Round(int64_t limit, const SearchBudget& budget);

 private:
  // What evaluations cost, in sweeps of the sequence annealing: measured.
  static constexpr int64_t kListCost = 16;
  static constexpr int64_t kTabuCost = 3;
  static constexpr int64_t kRoundCost = 480;
  // Tabu steps from one look at the budget to the next; and without a better
  // answer, until a search from a good or from any start ends.
  static constexpr int64_t kSteps = 16;
  static constexpr int64_t kPolish = 400;
  static constexpr int64_t kShortPolish = 25;

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
  void Keep(int64_t time, absl::Span<const int32_t> sequence);
  // Evaluates, keeps the sequence if it is the best; returns the time, or
  // kNoLimit: not legal, or neither the best nor less than `worth`.
  int64_t TryChoice(const OrderChoice& choice, int64_t worth = kNoLimit);
  // The sequence of the last TryChoice that returned a time.
  absl::Span<const int32_t> LastSequence() const;
  // Forward-backward improvement of that sequence (or any other); the time.
  int64_t Sweep(absl::Span<const int32_t> sequence);
  // Tabu search from such a sequence, as long as it pays.
  void Polish(absl::Span<const int32_t> sequence, int64_t iterations,
              const SearchBudget& budget);

  // search_worker_start.cc.
  bool begun() const {
    return started_ && inherited_.empty() &&
           next_portfolio_ >= space_->portfolio->size();
  }
  void SweepFirst(const SearchBudget& budget);
  void Portfolio(const SearchBudget& budget);
  // As one of the choices to exchange the ends of, or to come back to.
  void TryAsBase(const OrderChoice& choice);
  // Which microbatches go first and last; `base` becomes the best found.
  void ExchangeEnds(Candidate* base, const SearchBudget& budget);

  // search_worker_turns.cc.
  void TakeTurn(int64_t turn, const SearchBudget& budget);
  void PerturbChoices(const SearchBudget& budget);
  // List-schedules by the start times of the incumbent, disturbed.
  void Shake(const SearchBudget& budget);
  // Microbatches exchange their places: tabu search after each exchange ...
  void KickMicrobatches(const SearchBudget& budget);
  // ... or annealing of the places alone.
  void PlaceMicrobatches(const SearchBudget& budget);
  void ImproveBest(const SearchBudget& budget);
  void ImproveSequence(const SearchBudget& budget);

  // search_worker_restart.cc.
  // Leaves the present best for another start: the best of some choices drawn
  // at random, or a list schedule by mixed start times of two former bests.
  void Restart(const SearchBudget& budget);
  void AddElite(int64_t time, absl::Span<const int32_t> sequence);
  void MixElites();
  OrderChoice DrawChoice();
  // Beside a giant: microbatches spread over the step at random, each such
  // choice improved forwards and backwards.
  OrderChoice DrawSpread();
  void SweepDrawn(int32_t number, const SearchBudget& budget);
  // A few light microbatches fill the pipeline, then the heavy ones come, and
  // the other light ones drain it; by all their work or that of their first
  // module.
  std::vector<int32_t> DrawOrder();

  const SearchSpace* space_;
  OrderEvaluator evaluator_;
  std::unique_ptr<OrderEvaluator> ideal_;  // Once it is asked for.
  Retimer retimer_;
  std::unique_ptr<ForwardBackward> sweeps_;  // Null: nothing to gain.
  TabuSearch tabu_;
  SequenceSearch sequences_;
  RelabelSearch relabels_;
  KeySorter sorter_;
  Random random_;
  bool keeps_pattern_;
  bool symmetric_;  // All units alike: their order does not matter.
  double mean_duration_ = 0;
  int32_t index_;
  // How far it has begun.
  size_t next_spread_;
  int32_t spreads_drawn_ = 0;
  bool first_swept_ = false;
  bool started_ = false;
  size_t next_portfolio_;
  std::vector<OrderChoice> inherited_{};
  bool last_ideal_ = false;

  // Of the running Round.
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
  // Of Shake and KickMicrobatches: the sequence being disturbed.
  int64_t shaken_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> shaken_sequence_{};
  int64_t kicked_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> kicked_sequence_{};
  // The best before the last restart, and the bests of restarts.
  int64_t top_ = std::numeric_limits<int64_t>::max();
  std::vector<int32_t> top_sequence_{};
  std::vector<Elite> elites_{};
  bool restarted_ = false;
  int64_t stalled_cost_ = 0;  // Since best_ got better.
  int64_t turn_ = 0;
  int64_t cycle_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_
