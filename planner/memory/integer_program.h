// Small 0/1 programs: one option of each group, least cost within the rows.
//
//   minimise    sum cost of the chosen options
//   subject to  exactly one option of each group
//               in each row: sum of what the chosen options use <= limit
//
// An option uses amounts in runs of rows: a tensor that lives from one event to
// another uses its bytes in every row between. This is the program that DIP
// (arXiv 2504.14145, section 5.3) solves per rank.
//
// Branch and bound. The bound is Lagrangian: rows are priced, each group takes
// its cheapest option, prices follow the violation (subgradient, Polyak steps);
// with sums over the prices of runs one round costs O(uses + rows). For these
// programs the best such bound equals that of the LP relaxation. Answers come
// from repairing what the prices suggest; both meet at the wanted gap, or the
// search branches on the group whose decision is least clear.
#ifndef PIPELOOM_PLANNER_MEMORY_INTEGER_PROGRAM_H_
#define PIPELOOM_PLANNER_MEMORY_INTEGER_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

struct IntegerProgram {
  // In each of rows [first_row, end_row).
  struct Use {
    int32_t first_row = 0;
    int32_t end_row = 0;
    int64_t amount = 0;  // >= 0.
  };
  struct Option {
    int64_t cost = 0;  // >= 0.
    std::vector<Use> uses{};
  };
  using Group = std::vector<Option>;  // Not empty.

  std::vector<Group> groups{};
  std::vector<int64_t> limits{};  // By row.
};

struct IntegerProgramOptions {
  // Stop when cost <= (1 + gap) * bound. DIP's example: 0.05.
  double gap = 0;
  // Of the search tree. 0: only the root's rounds.
  int64_t max_nodes = 100'000;
  int32_t root_rounds = 100;  // Of prices.
  int32_t node_rounds = 10;
  // Passes of exchanges between two groups on the root's answer, while they
  // gain: better answers to large programs, at up to some 10 ms a pass.
  int32_t exchanges = 8;
};

struct IntegerSolution {
  bool feasible = false;          // `choice` keeps all limits.
  std::vector<int32_t> choice{};  // By group. Empty unless feasible.
  int64_t cost = 0;
  int64_t bound = 0;     // No choice within the limits costs less.
  bool optimal = false;  // cost == bound; or, if not feasible, nothing is.
  int64_t nodes = 0;
};

// `start`: a choice to begin with, by group; used if it keeps the limits.
// Empty: none. REQUIRES: costs and amounts add up to less than 2^62.
// Deterministic.
IntegerSolution SolveIntegerProgram(const IntegerProgram& program,
                                    absl::Span<const int32_t> start = {},
                                    const IntegerProgramOptions& options = {});

// The same for programs that differ in their costs alone, one after another:
// what follows from uses and limits is prepared once, and each begins with the
// prices that the one before ended with. Deterministic: an answer depends on
// the calls so far. One per thread.
class IntegerProgramSolver {
 public:
  // Keeps a reference; between calls only the costs may change.
  explicit IntegerProgramSolver(const IntegerProgram& program);
  // For a program that is given piece by piece, with no other in memory.
  IntegerProgramSolver();
  ~IntegerProgramSolver();

  // Another program with these limits and no groups yet; what is allocated
  // stays so. REQUIRES: made without a program.
  void Begin(absl::Span<const int64_t> limits);
  // A group whose options cost so much, and then what they use in rows
  // [first_row, end_row), by option; runs of rows rise and do not overlap.
  void AddGroup(absl::Span<const int64_t> costs);
  void AddRun(int32_t first_row, int32_t end_row,
              absl::Span<const int64_t> amounts);
  void SetCosts(int32_t group, absl::Span<const int64_t> costs);

  IntegerSolution Solve(absl::Span<const int32_t> start,
                        const IntegerProgramOptions& options);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_INTEGER_PROGRAM_H_
