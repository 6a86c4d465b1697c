// The choice of memory for a fixed order of tasks: what to keep, recompute and
// offload so that every rank stays within its limit and the step is short.
//
// With the order of a rank's tasks fixed, the bytes that it holds at each task
// are a sum over stage pairs, whatever the times are. So the limits are rows of
// one small 0/1 program for each rank (planner/memory/integer_program.h), and
// its answer keeps them after re-timing too. The objective is harder, as ranks
// wait for each other: the first round minimises the time spent on
// recomputation; further rounds minimise the part of it that exceeds what pairs
// can spend without delaying the step (their float in the last timing). The
// best re-timed answer is kept.
//
// A rank whose program ends without a choice falls back on the choices that
// hold or peak least, if they fit, and then on more rounds of prices. So where
// the order fits with either, there is an answer (without copies to the host).
//
// A copy to the host takes no time of a rank, but needs room for the copies
// under way (memory_candidates.h), which the rank's largest copy decides for
// all. A backward that would start before its copy is back is late, which is
// priced like recomputation. So everything is done without copies first, then
// with them, and the faster answer is kept. With copies, each rank's first
// program is solved without copies, with copies up to the middle of the sizes
// offered, and with all; the cheapest answer decides for the rank.
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

// Limits of the choice.
struct ChooseMemoryOptions {
  // Rounds of 0/1 programs for all ranks; each is one evaluation.
  int32_t rounds = 6;
  // Rounds of prices of all programs but the first; they begin with the prices
  // of the program before.
  int32_t later_price_rounds = 10;
  IntegerProgramOptions program = {
      .gap = 0.01, .max_nodes = 0, .root_rounds = 40, .exchanges = 0};
};

// Options of a 0/1 program that is solved for many orders: DIP's gap, and half
// the rounds of prices.
inline constexpr IntegerProgramOptions kRoughProgram = {.gap = 0.05,
                                                        .max_nodes = 0,
                                                        .root_rounds = 20,
                                                        .node_rounds = 0,
                                                        .exchanges = 0};

// A memory choice with the schedule that it gives.
struct MemoryAnswer {
  partition::MemorySelection selection{};
  StageGraph graph{};   // The graph with the selection applied.
  Schedule schedule{};  // For that graph; passes ValidateSchedule.
  int64_t evaluations = 0;
};

// Returns whether the orders, which are of all tasks, fit with every activation
// kept, as `graph` has it: then there is nothing to choose.
bool FitsWithEverythingKept(const StageGraph& graph, const RankOrders& orders);

// Chooses memory for `orders`, which are of all tasks. `graph` has everything
// kept, and the limits to keep. `start` is a selection that is known to fit, or
// a guess; empty for none. Deterministic; takes milliseconds for thousands of
// tasks.
//
// Returns ResourceExhausted if the order does not fit even with the choices of
// least memory; the message names a rank and the bytes that it lacks. Returns
// FailedPrecondition if the orders contradict the dependencies.
absl::StatusOr<MemoryAnswer> ChooseMemory(
    const StageGraph& graph, const partition::StepMemory& memory,
    const RankOrders& orders, const SearchBudget& budget = {},
    const partition::MemorySelection& start = {},
    const ChooseMemoryOptions& options = {});

// Makes the same choice for many orders of one graph, without making graphs and
// schedules of the answers. Use one per thread.
class MemoryChooser {
 public:
  // Keeps references to both.
  MemoryChooser(const StageGraph& graph, const partition::StepMemory& memory);

  // Chooses memory and returns the step time in ns with selection(). Errors are
  // those of ChooseMemory. REQUIRES: `orders` do not contradict the
  // dependencies.
  absl::StatusOr<int64_t> Choose(const RankOrders& orders,
                                 const partition::MemorySelection& start,
                                 const SearchBudget& budget,
                                 const ChooseMemoryOptions& options);
  const partition::MemorySelection& selection() const { return best_; }
  // Evaluations of the last Choose.
  int64_t evaluations() const { return evaluations_; }

 private:
  using Costs = IdVector<StagePairId, std::vector<int64_t>>;
  absl::StatusOr<int64_t> ChooseRounds(const RankOrders& orders,
                                       const partition::MemorySelection& start,
                                       const SearchBudget& budget,
                                       const ChooseMemoryOptions& options);
  absl::Status Solve(const RankOrders& orders,
                     const partition::MemorySelection& start,
                     const IntegerProgramOptions& options,
                     const SearchBudget& budget,
                     partition::MemorySelection* selection);
  IntegerSolution SolveOrLeast(RankId rank, absl::Span<const int32_t> start,
                               const IntegerProgramOptions& options,
                               IntegerProgramSolver* solver) const;
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
  FlatGraph flat_;  // Has the durations of the last Retime.
  // Choices that hold least, and that peak least.
  partition::MemorySelection min_memory_;
  partition::MemorySelection least_peaks_;
  IdVector<RankId, std::vector<StagePairId>> pairs_;  // Pairs with a backward.
  // Whether the rank fits with everything kept.
  IdVector<RankId, bool> keeps_all_;
  // Whether the rank keeps the start, which fits, as the options say.
  IdVector<RankId, bool> keeps_start_;
  // For ranks that copy nothing; their solvers are reused from order to order.
  CandidateTables tables_;
  IdVector<RankId, RankProgramBuilder> builders_;
  // Whether the rank's program has been solved.
  IdVector<RankId, uint8_t> begun_;
  // The groups of a program are the rank's pairs. Solvers refer to programs.
  IdVector<RankId, std::unique_ptr<IntegerProgram>> programs_;
  IdVector<RankId, std::unique_ptr<IntegerProgramSolver>> solvers_;
  IdVector<RankId, std::vector<Bytes>> copy_sizes_;  // In ascending order.
  // Size limit of copies in the rank's program.
  IdVector<RankId, Bytes> most_copied_;
  // Longest copy in the rank's program, ns.
  IdVector<RankId, int64_t> longest_copy_;
  Costs extra_;
  Costs costs_{};
  std::vector<int32_t> sequence_{};
  std::vector<int64_t> late_{};   // Indexed by task: the latest end, ns.
  std::vector<int64_t> float_{};  // Indexed by task, ns.
  // Indexed by pair that may be copied: time (ns) from the forward's end until
  // everything except the copy lets the backward start.
  IdVector<StagePairId, int64_t> wait_{};
  bool recomputes_ = false;
  bool has_copies_ = false;
  bool copies_ = false;  // Whether copies may be chosen.
  partition::MemorySelection best_{};
  int64_t evaluations_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_CHOOSE_MEMORY_H_
