// The 0/1 program of one rank's memory choices for an order of its tasks,
// passed directly to a solver, as searches such as DIP's need it for every
// order they look at. It is the same program as that of MakeRankProgram
// (planner/memory/memory_program.h), for steps that copy nothing to the host.
#ifndef PIPELOOM_PLANNER_MEMORY_RANK_PROGRAM_H_
#define PIPELOOM_PLANNER_MEMORY_RANK_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/memory/integer_program.h"

namespace pipeloom::planner {

// The bytes that each list of candidates uses; columns are indexed by
// candidate.
struct CandidateTables {
  struct List {
    std::vector<int64_t> forward{};   // While the forward runs.
    std::vector<int64_t> held{};      // From the forward to the backward.
    std::vector<int64_t> backward{};  // While the backward runs.
    std::vector<int64_t> after{};     // Until the weight gradient's end.
    int64_t most_forward = 0;
    int64_t most_held = 0;
    // The most that a candidate gives back when its forward ends, and the least
    // that any takes for its forward or, in addition to what it holds, for its
    // backward.
    int64_t most_given_back = 0;
    int64_t least_forward = kNoLimit;
    int64_t least_backward = kNoLimit;
    int64_t most_backward = 0;
    int64_t most_after = 0;
  };
  // Makes the tables of all lists of `memory`.
  explicit CandidateTables(const partition::StepMemory& memory);
  std::vector<List> lists{};
};

// Builds rank programs and keeps its workspace between them. Use one per rank
// and thread.
class RankProgramBuilder {
 public:
  // Gives the rank's program to `solver`. `pairs` are the rank's pairs that
  // have a backward; `costs` are the costs of candidates, indexed by pair of
  // the step. REQUIRES: no candidate of these pairs is offloaded; `solver` was
  // made without a program.
  void Build(const StageGraph& graph, const partition::StepMemory& memory,
             const CandidateTables& tables, RankId rank,
             const std::vector<StagePairId>& pairs,
             const IdVector<StagePairId, std::vector<int64_t>>& costs,
             const std::vector<TaskId>& order, IntegerProgramSolver* solver);

 private:
  struct Span {
    int32_t forward = 0;
    int32_t backward = 0;
    int32_t last = 0;
  };
  std::vector<int32_t> position_{};  // Indexed by task.
  std::vector<Span> spans_{};
  std::vector<uint8_t> is_row_{};
  std::vector<int64_t> fixed_{};
  std::vector<int64_t> least_{};  // Taken by the task at the position.
  std::vector<int64_t> most_{};
  std::vector<int32_t> row_at_{};
  std::vector<int64_t> limits_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_RANK_PROGRAM_H_
