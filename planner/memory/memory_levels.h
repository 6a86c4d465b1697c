// Memory choices by one rule for whole modules, as starts of searches.
#ifndef PIPELOOM_PLANNER_MEMORY_MEMORY_LEVELS_H_
#define PIPELOOM_PLANNER_MEMORY_MEMORY_LEVELS_H_

#include <vector>

#include "ir/plan/partition.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

// Returns levels between keeping everything and holding least, for all modules
// and for each module alone, without copies to the host. They differ; some may
// not fit.
std::vector<partition::MemorySelection> MemoryLevels(
    const partition::StepMemory& memory, const Partition& partition);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_MEMORY_LEVELS_H_
