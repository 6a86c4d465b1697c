// Small 0/1 programs: choose one option of each group, at least cost within the
// rows' limits.
//
//   minimise    sum of the costs of the chosen options
//   subject to  exactly one option of each group is chosen
//               in each row: sum of what the chosen options use <= limit
//
// An option uses amounts in runs of rows: a tensor that lives from one event to
// another uses its bytes in every row between. DIP (arXiv 2504.14145, section
// 5.3) solves this program for each rank.
//
// Solved by branch and bound. The bound is Lagrangian: rows are priced, each
// group takes its cheapest option, and prices follow the violation
// (subgradient, Polyak steps); with sums over the prices of runs one round
// costs O(uses + rows). For these programs the best such bound equals that of
// the LP relaxation. Answers come from repairing the choices that the prices
// suggest. The search ends when bound and answer are within the wanted gap;
// until then it branches on the group whose decision is least clear.
#ifndef PIPELOOM_PLANNER_MEMORY_INTEGER_PROGRAM_H_
#define PIPELOOM_PLANNER_MEMORY_INTEGER_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "planner/memory/program_runs.h"

namespace pipeloom::planner {

// Limits of the search.
struct IntegerProgramOptions {
  // The search stops when cost <= (1 + gap) * bound. DIP's example: 0.05.
  double gap = 0;
  // The most nodes of the search tree. 0: only the root's rounds.
  int64_t max_nodes = 100'000;
  int32_t root_rounds = 100;  // Rounds of prices at the root.
  // If more: the most rounds at a node as long as no answer is found.
  int32_t rounds_to_fit = 0;
  // Rounds of prices at other nodes.
  int32_t node_rounds = 10;
  // The most passes of exchanges between two groups on the root's answer, made
  // while they gain: they give better answers to large programs, and take up to
  // some 10 ms each.
  int32_t exchanges = 8;
  // A start that keeps the limits is the answer, though not proven to be good.
  bool keeps_start = false;
  // If the start breaks a limit, nothing is searched: there is no answer.
  bool needs_start = false;
  // Once it returns true, the search ends with the answer that it has, as soon
  // as it has one. Called between rounds of prices; null: never.
  const std::function<bool()>* is_over = nullptr;
};

// The best choice found, and what is proven about it.
struct IntegerSolution {
  bool feasible = false;          // Whether `choice` keeps all limits.
  std::vector<int32_t> choice{};  // Indexed by group. Empty unless feasible.
  int64_t cost = 0;
  int64_t bound = 0;  // No choice within the limits costs less.
  // Whether cost == bound; if not feasible, whether no choice is.
  bool optimal = false;
  int64_t nodes = 0;
};

// Solves a program. `start` is a choice to begin with, indexed by group, and
// used if it keeps the limits; empty for none. Deterministic. REQUIRES: costs
// and amounts add up to less than 2^62.
IntegerSolution SolveIntegerProgram(const IntegerProgram& program,
                                    absl::Span<const int32_t> start = {},
                                    const IntegerProgramOptions& options = {});

// Solves, one after another, programs that differ in their costs alone:
// everything that follows from uses and limits is prepared once, and each
// program begins with the final prices of the one before. Deterministic: an
// answer depends on the calls so far. Use one per thread.
class IntegerProgramSolver {
 public:
  // Keeps a reference to `program`, of which only the costs may change between
  // calls.
  explicit IntegerProgramSolver(const IntegerProgram& program);
  // Makes a solver of a program that is given piece by piece by the calls
  // below, so that no other copy of it is in memory.
  IntegerProgramSolver();
  ~IntegerProgramSolver();

  // Begins another program, with these limits and no groups yet; reuses
  // allocated memory. REQUIRES: the solver was made without a program.
  void Begin(absl::Span<const int64_t> limits);
  // Adds parts: AddGroup adds a group whose options have these costs. AddRun
  // adds what the options of the last group use in the rows [first_row,
  // end_row), indexed by option; runs of a group are given in ascending order
  // and do not overlap.
  void AddGroup(absl::Span<const int64_t> costs);
  void AddRun(int32_t first_row, int32_t end_row,
              absl::Span<const int64_t> amounts);
  // Replaces the costs of a group. REQUIRES: the solver was made without a
  // program.
  void SetCosts(int32_t group, absl::Span<const int64_t> costs);

  // Solves the program as SolveIntegerProgram does.
  IntegerSolution Solve(absl::Span<const int32_t> start,
                        const IntegerProgramOptions& options);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_INTEGER_PROGRAM_H_
