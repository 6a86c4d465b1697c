// The choice, for each stage pair, whether its weight gradient is made in its
// backward (fused) or apart from it (split), for a fixed order of tasks.
//
// A split backward hands on its input gradient sooner, but the rank idles in
// all the collectives of that gradient; a fused one takes less of the rank's
// time and hands on later (emulator/ops/op_graph.h). Which is better depends on
// whether a task waits for the gradient, so timing decides: the order is fixed,
// sets of pairs change their form together, and changes that shorten the step
// stay. The weight-gradient task of a fused pair takes no time and comes right
// after its backward. A form is only chosen if it holds no more while the
// backward runs, so no change needs more memory at any task.
//
//   1. Split pairs whose backward can end later without delaying the step are
//      fused, as their rank gains by it.
//   2. All pairs of a stage, of a microbatch or of all change together.
//   3. Pairs on the critical path change one by one.
//
// Sixteen sets are timed at once (fixed_order.h). Cost: up to `max_batches`
// batches of about 5 ns a task and set.
#ifndef PIPELOOM_PLANNER_PASSES_PASS_FORMS_H_
#define PIPELOOM_PLANNER_PASSES_PASS_FORMS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Limits of the choice.
struct PassFormOptions {
  // The most batches of sixteen sets to time.
  int32_t max_batches = 24;
  // Says that the time is over; asked between batches. Empty: no deadline.
  std::function<bool()> expired = {};
};

// Returns whether any pair of the step has two forms with different total
// times. Otherwise split pairs are never worse than fused ones (tp 1).
bool HasFormChoice(const partition::StepMemory& memory);

// Returns whether other passes can shorten an answer whose backwards are split:
// there is a choice of forms, or compute fits into the communication of a
// backward.
bool HasPassChoice(const partition::StepMemory& memory);

// Returns whether a pair hands on its input gradient sooner if it is split, so
// that an answer of fused pairs can gain even where totals are equal.
bool SplitHandsOnSooner(const partition::StepMemory& memory);

// Gives this form to every pair that has both.
void SetForms(partition::PassForm form, partition::StepMemory* memory);

// Returns, indexed by rank, the bytes of its capacity that are free when it is
// fullest, going through its order; kNoLimit without a limit. O(tasks).
std::vector<int64_t> FreeRoom(const FlatGraph& graph, const RankOrders& orders);

// Chooses the forms of a step's pairs.
class PassFormChooser {
 public:
  // Takes tasks, edges, epilogues and bytes from the graph; the times of pairs
  // come from `memory`. Keeps no reference. REQUIRES: the graph has the forms
  // of `memory` and the choices of the selection that Choose() gets.
  PassFormChooser(const StageGraph& graph, const partition::StepMemory& memory);

  // Changes the forms of `memory` (its lists) and the places of weight
  // gradients in `orders` so that the step gets shorter. Returns the step time
  // in ns, at most the time before. The delays of backwards that wait for
  // copies from the host are those of the constructor's graph. Deterministic.
  // REQUIRES: the orders fit the limits with `selection`.
  int64_t Choose(const partition::MemorySelection& selection,
                 partition::StepMemory* memory, RankOrders* orders,
                 const PassFormOptions& options = {});
  // Returns the number of batches that the last Choose timed.
  int64_t batches() const { return batches_; }

 private:
  // A pair that has both forms, with the times (ns) of its present form and of
  // the other.
  struct Pair {
    StagePairId id{};
    int32_t backward = 0;
    int32_t weight_grad = 0;
    int32_t stage = 0;
    int32_t microbatch = 0;
    bool fused = false;
    int64_t now_backward = 0;
    int64_t now_weight_grad = 0;
    int64_t other_backward = 0;
    int64_t other_weight_grad = 0;
    // Bytes that the other form holds in addition while the backward runs, of
    // the free room of its rank.
    int64_t more = 0;
    int64_t room = 0;
    // Slack of the backward's end, ignoring its weight gradient; ns.
    int64_t slack = 0;
    bool may_change() const { return more <= room; }
  };
  using Set = std::vector<int32_t>;  // Indices into pairs_.

  void Load(const partition::MemorySelection& selection,
            const partition::StepMemory& memory, const RankOrders& orders);
  void Tidy(RankOrders* orders) const;
  // Fills in Pair::slack for the present durations.
  void FindSlack(absl::Span<const int32_t> sequence, int64_t step_time);
  // Returns sets of pairs to change together; deterministic.
  std::vector<Set> Proposals(int32_t round) const;
  void Apply(const Set& set);

  FlatGraph flat_;
  std::vector<Pair> pairs_{};
  std::vector<int64_t> end_{};
  std::vector<int64_t> late_{};
  int64_t batches_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PASSES_PASS_FORMS_H_
