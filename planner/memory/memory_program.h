// The 0/1 program of one rank's memory choices for an order of its tasks.
#ifndef PIPELOOM_PLANNER_MEMORY_MEMORY_PROGRAM_H_
#define PIPELOOM_PLANNER_MEMORY_MEMORY_PROGRAM_H_

#include <vector>

#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/memory/program_runs.h"

namespace pipeloom::planner {

// Makes the program of one rank with one group for each of `pairs`, which are
// all of its pairs that have a backward. Costs are the times of recomputation.
// Room is set aside for two copies of the largest size offered up to
// `most_copied`; candidates that copy more stand for keeping everything.
IntegerProgram MakeRankProgram(const StageGraph& graph,
                               const partition::StepMemory& memory, RankId rank,
                               const std::vector<StagePairId>& pairs,
                               const std::vector<TaskId>& order,
                               Bytes most_copied = Bytes(kNoLimit));

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_MEMORY_PROGRAM_H_
