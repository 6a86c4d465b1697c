// The optimum of tiny scheduling problems by trying everything: the slow
// second opinion on schedulers, searches and bounds.
#ifndef PIPELOOM_TESTS_ORACLES_BRUTE_FORCE_SCHEDULE_H_
#define PIPELOOM_TESTS_ORACLES_BRUTE_FORCE_SCHEDULE_H_

#include <optional>

#include "base/units.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::testing {

// The least step time (epilogues included) of any schedule within the memory
// limits, ones with deliberate idling included; nullopt when there is none.
// REQUIRES: at most 31 tasks; meant for 12.
std::optional<Duration> BruteForceStepTime(const StageGraph& graph);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ORACLES_BRUTE_FORCE_SCHEDULE_H_
