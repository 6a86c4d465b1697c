// The best memory choices for a fixed order of tasks: what to keep, recompute
// and offload so that every rank stays within its limit and the step is short.
//
// With the order of a rank's tasks fixed, what it holds at each of them is a
// sum over stage pairs, whatever the times are. So the limits are rows of one
// small 0/1 program per rank (planner/memory/integer_program.h), and its answer
// keeps them after re-timing too. The objective is harder, as ranks wait for
// each other: the first round minimises the time spent on recomputation,
// further rounds that beyond what pairs can spend without delaying the step
// (their float in the last timing). The best re-timed answer is kept.
//
// A copy to the host costs no time of a rank, but room for it on its way
// (memory_candidates.h), which the rank's largest copy decides for all, and a
// backward that would start before it is back is late, which is priced like
// recomputation. So all is done without copies first, then with them, and the
// faster answer is kept; in the latter each rank's first program is solved
// without copies, up to the middle of the sizes offered, and with all, and the
// cheapest answer decides for the rank.
#ifndef PIPELOOM_PLANNER_MEMORY_CHOOSE_MEMORY_H_
#define PIPELOOM_PLANNER_MEMORY_CHOOSE_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"
#include "planner/memory/integer_program.h"
#include "planner/memory/rank_program.h"

namespace pipeloom::planner {

struct ChooseMemoryOptions {
  // Of 0/1 programs for all ranks; each is one evaluation.
  int32_t rounds = 6;
  // Rounds of prices of all programs but the first, which begin with the prices
  // of those before.
  int32_t later_price_rounds = 10;
  IntegerProgramOptions program = {
      .gap = 0.01, .max_nodes = 0, .root_rounds = 40, .exchanges = 0};
};

struct MemoryAnswer {
  partition::MemorySelection selection{};
  StageGraph graph{};   // With the selection.
  Schedule schedule{};  // Of that graph, passes ValidateSchedule.
  int64_t evaluations = 0;
};

// `graph`: with everything kept, and the limits to keep. `orders`: of all its
// tasks. `start`: a selection known to fit, or a guess; empty: none.
// ResourceExhausted names a rank and the bytes that it lacks when the order
// does not fit with the leanest choices; FailedPrecondition: the orders
// contradict the dependencies. Deterministic; milliseconds for thousands of
// tasks.
absl::StatusOr<MemoryAnswer> ChooseMemory(
    const StageGraph& graph, const partition::StepMemory& memory,
    const RankOrders& orders, const SearchBudget& budget = {},
    const partition::MemorySelection& start = {},
    const ChooseMemoryOptions& options = {});

// The same for many orders of one graph, without making graphs and schedules of
// the answers. One per thread.
class MemoryChooser {
 public:
  // Keeps references.
  MemoryChooser(const StageGraph& graph, const partition::StepMemory& memory);

  // `orders`: REQUIRES that they do not contradict the dependencies. Returns
  // the step time in ns with selection(); the errors of ChooseMemory.
  absl::StatusOr<int64_t> Choose(const RankOrders& orders,
                                 const partition::MemorySelection& start,
                                 const SearchBudget& budget,
                                 const ChooseMemoryOptions& options);
  const partition::MemorySelection& selection() const { return best_; }
  // Of the last Choose.
  int64_t evaluations() const { return evaluations_; }

 private:
  using Costs = IdVector<StagePairId, std::vector<int64_t>>;
  absl::StatusOr<int64_t> ChooseRounds(const RankOrders& orders,
                                       const partition::MemorySelection& start,
                                       const SearchBudget& budget,
                                       const ChooseMemoryOptions& options);
  absl::Status Solve(const RankOrders& orders,
                     const partition::MemorySelection& start,
                     const IntegerProgramOptions& options, int32_t threads,
                     partition::MemorySelection* selection);
  void SolveFirst(RankId rank, const std::vector<TaskId>& order,
                  const std::vector<int32_t>& start,
                  const IntegerProgramOptions& options, IntegerSolution* best);
  void SetCosts(RankId rank, IntegerProgram* program) const;
  void PriceDelays(RankId rank, const std::vector<TaskId>& order);
  int64_t TimeOf(StagePairId id, RankId rank, size_t candidate,
                 int64_t wait) const;
  absl::Status Shortage(RankId rank, const std::vector<TaskId>& order) const;
  int64_t Retime(const partition::MemorySelection& selection);
  void FindFloats(int64_t step_time, absl::Span<const int64_t> end);
  void SetCopyDelays(const partition::MemorySelection& selection,
                     const IdVector<RankId, int64_t>& longest);
  void FindWaits(absl::Span<const int64_t> end);
  void PriceByFloat(const partition::MemorySelection& selection, int32_t round);

  const StageGraph* graph_;
  const partition::StepMemory* memory_;
  FlatGraph flat_;  // With the durations of the last Retime.
  partition::MemorySelection min_memory_;
  IdVector<RankId, std::vector<StagePairId>> pairs_;  // With a backward.
  IdVector<RankId, bool> keeps_all_;                  // Where that fits.
  // Of ranks that copy nothing, whose solvers stay from order to order.
  CandidateTables tables_;
  IdVector<RankId, RankProgramBuilder> builders_;
  IdVector<RankId, uint8_t> begun_;  // The rank's program has been solved.
  // Groups: the rank's pairs. The solvers refer to the programs.
  IdVector<RankId, std::unique_ptr<IntegerProgram>> programs_;
  IdVector<RankId, std::unique_ptr<IntegerProgramSolver>> solvers_;
  IdVector<RankId, std::vector<Bytes>> copy_sizes_;  // Rising.
  IdVector<RankId, Bytes> most_copied_;              // Of the programs.
  IdVector<RankId, int64_t> longest_copy_;           // Likewise, in ns.
  Costs extra_;
  Costs costs_{};
  std::vector<int32_t> sequence_{};
  std::vector<int64_t> late_{};   // By task: the latest end.
  std::vector<int64_t> float_{};  // By task.
  // By pair that may be copied: from the forward's end until all but it lets
  // the backward start.
  IdVector<StagePairId, int64_t> wait_{};
  bool recomputes_ = false;
  bool has_copies_ = false;
  bool copies_ = false;  // Whether any may be chosen.
  partition::MemorySelection best_{};
  int64_t evaluations_ = 0;
};

// The program of one rank whose groups are `pairs`: all of its pairs that have
// a backward. Costs are the times of recomputation. Room is set aside for two
// copies of the largest size offered up to `most_copied`; candidates that copy
// more stand for keeping everything.
IntegerProgram MakeRankProgram(const StageGraph& graph,
                               const partition::StepMemory& memory, RankId rank,
                               const std::vector<StagePairId>& pairs,
                               const std::vector<TaskId>& order,
                               Bytes most_copied = Bytes(kNoLimit));

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_CHOOSE_MEMORY_H_
