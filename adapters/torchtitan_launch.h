// A file of Python that gives a configuration of torchtitan the settings of
// plans made within its limits. torchtitan's configurations are functions of
// Python; it reads no other files.
#ifndef PIPELOOM_ADAPTERS_TORCHTITAN_LAUNCH_H_
#define PIPELOOM_ADAPTERS_TORCHTITAN_LAUNCH_H_

#include <string>

#include "absl/strings/string_view.h"
#include "adapters/launch_parts.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"

namespace pipeloom::adapters {

// Returns the file. `file`: the schedule's, in the folder of this one.
std::string TorchtitanArguments(const JobSpec& job, const Partition& partition,
                                const RecomputeSetting& recompute,
                                const TrainerFile& schedule,
                                absl::string_view file);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_TORCHTITAN_LAUNCH_H_
