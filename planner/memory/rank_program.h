// The 0/1 program of one rank's memory choices for an order of its tasks, given
// to a solver without copies of it: what DIP's search and others make for every
// order they look at. The same program as MakeRankProgram's
// (planner/memory/choose_memory.h), for steps that copy nothing to the host.
#ifndef PIPELOOM_PLANNER_MEMORY_RANK_PROGRAM_H_
#define PIPELOOM_PLANNER_MEMORY_RANK_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/memory/integer_program.h"

namespace pipeloom::planner {

// What each list of candidates uses, in columns by candidate.
struct CandidateTables {
  struct List {
    std::vector<int64_t> held{};      // From the forward to the backward.
    std::vector<int64_t> backward{};  // While the backward runs.
    std::vector<int64_t> after{};     // Until the weight gradient's end.
    int64_t most_held = 0;
    int64_t most_backward = 0;
    int64_t most_after = 0;
  };
  explicit CandidateTables(const partition::StepMemory& memory);
  std::vector<List> lists{};
};

// Keeps its workspace between programs. One per rank and thread.
class RankProgramBuilder {
 public:
  // `pairs`: the rank's that have a backward; `costs`: of their candidates, by
  // pair of the step. REQUIRES: no candidate of theirs frees anything in its
  // forward; `solver` was made without a program.
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
  std::vector<int32_t> position_{};  // By task.
  std::vector<Span> spans_{};
  std::vector<uint8_t> is_row_{};
  std::vector<int64_t> fixed_{};
  std::vector<int64_t> most_{};
  std::vector<int32_t> row_at_{};
  std::vector<int64_t> limits_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_RANK_PROGRAM_H_
