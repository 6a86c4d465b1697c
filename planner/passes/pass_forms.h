// The choice, pass by pass, whether a stage pair makes its weight gradient in
// its backward (fused) or apart from it (split), for a fixed order of tasks.
//
// A split backward hands its input gradient on sooner, but all the collectives
// of that gradient stand still in it; a fused one takes less of the rank's time
// and hands on later (emulator/ops/op_graph.h). Which is better depends on
// whether somebody waits for the gradient, so it is decided by timing: the
// order is fixed, sets of pairs change their form together, and what shortens
// the step stays. A fused pair's weight-gradient task takes no time and stands
// right after its backward. Only forms that hold no more while the backward
// runs are changed to, so that no change needs more memory at any task.
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

struct PassFormOptions {
  int32_t max_batches = 24;
  // Says that the time is over; asked between batches. Empty: no deadline.
  std::function<bool()> expired = {};
};

// Whether any pair of the step has a choice of forms whose times differ from
// the sum of the split passes.
bool HasFormChoice(const partition::StepMemory& memory);

// Gives every pair that has both forms this one.
void SetForms(partition::PassForm form, partition::StepMemory* memory);

class PassFormChooser {
 public:
  // `graph`: any of the step's, for its tasks, edges and epilogues; times of
  // pairs come from `memory`. Keeps no reference.
  PassFormChooser(const StageGraph& graph, const partition::StepMemory& memory);

  // Changes the forms of `memory` (its lists) and the places of weight
  // gradients in `orders` so that the step gets shorter; returns its time in
  // ns, at most what it was. `selection`: REQUIRES that the orders fit the
  // limits with it. Copies to the host delay their backward by what `graph`
  // says. Deterministic.
  int64_t Choose(const partition::MemorySelection& selection,
                 partition::StepMemory* memory, RankOrders* orders,
                 const PassFormOptions& options = {});
  // Batches timed by the last Choose.
  int64_t batches() const { return batches_; }

 private:
  // A pair with both forms, with the times of the one it has.
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
    int64_t now_peak = 0;  // Bytes held while the backward runs.
    int64_t other_peak = 0;
    int64_t slack = 0;  // Of the backward's end, but for its weight gradient.
    bool may_change() const { return other_peak <= now_peak; }
  };
  using Set = std::vector<int32_t>;  // Indices into pairs_.

  void Load(const partition::MemorySelection& selection,
            const partition::StepMemory& memory);
  void Tidy(RankOrders* orders) const;
  // Fills in Pair::slack for the durations as they are.
  void FindSlack(absl::Span<const int32_t> sequence, int64_t step_time);
  // Sets of pairs to change together, the same for equal states.
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
