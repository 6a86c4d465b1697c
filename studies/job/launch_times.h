// How long the host needs to launch the kernels of a step, next to what the
// GPU needs to run them.
#ifndef PIPELOOM_STUDIES_JOB_LAUNCH_TIMES_H_
#define PIPELOOM_STUDIES_JOB_LAUNCH_TIMES_H_

#include <string>
#include <vector>

#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/job_spec.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::studies {

// Forward passes of all layers of a module on all its sub-microbatches.
struct LaunchTimes {
  std::string module{};
  Duration on_gpu{};         // If launching takes no time.
  Duration with_launches{};  // If the host launches one kernel at a time.
};

// Host time of a launch if the job's setup does not say it: fitted to runs of
// Megatron (ir/job/training_setup.cc).
inline constexpr Duration kUsualLaunch{30'000};

// Returns the times of every module that has sub-microbatches. `costs` prices
// operators; null: by peak rates. A setup that launches kernels by graphs is
// followed. O(layers x sub-microbatches).
std::vector<LaunchTimes> LaunchTimesOf(const JobSpec& job,
                                       const Microbatches& microbatches,
                                       const emulator::OpCostModel* costs,
                                       Duration per_kernel);

// Returns a remark for each module whose passes launching makes longer by a
// tenth and more, and all passes by a twentieth, if the job's setup leaves
// launches out; none otherwise.
std::vector<std::string> LaunchNotes(const JobSpec& job,
                                     const Microbatches& microbatches,
                                     const emulator::OpCostModel* costs);

// Returns a remark for each module whose shapes differ in a step that CUDA
// graphs launch, but are in no buckets, and one if a graph of the whole step
// would have to run plans that differ from step to step.
std::vector<std::string> GraphNotes(const JobSpec& job,
                                    const Microbatches& microbatches);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_JOB_LAUNCH_TIMES_H_
