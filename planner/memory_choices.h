// Which stages may be recomputed: the memory choices that a step is planned
// with, cheapest in extra compute first.
#ifndef PIPELOOM_PLANNER_MEMORY_CHOICES_H_
#define PIPELOOM_PLANNER_MEMORY_CHOICES_H_

#include <vector>

#include "ir/ids.h"
#include "ir/job_spec.h"
#include "ir/partition.h"

namespace pipeloom::planner {

using RecomputeChoice = IdVector<StageId, bool>;

// Every subset of the modules that have a backward pass, all stages of a
// module alike; only the empty choice when the job does not allow
// recomputation. At most kMaxChosenModules modules are chosen freely (those
// with the most parameters); the others go with the largest. The first choice
// recomputes nothing, the last everything; the order is by recomputed
// parameters.
inline constexpr int kMaxChosenModules = 3;
std::vector<RecomputeChoice> MemoryChoices(const JobSpec& job,
                                           const Partition& partition);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_CHOICES_H_
