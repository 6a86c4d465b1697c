// Arguments of Megatron-LM's command line for plans made within the limits of
// `megatron` or `megatron-stock`.
#ifndef PIPELOOM_ADAPTERS_MEGATRON_LAUNCH_H_
#define PIPELOOM_ADAPTERS_MEGATRON_LAUNCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "adapters/launch_parts.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"

namespace pipeloom::adapters {

// Returns the arguments; what they cannot say is a comment. `file` is empty
// where no schedule was written. Errors of MegatronLayoutOf.
absl::StatusOr<std::string> MegatronArguments(const TrainerLimits& trainer,
                                              const JobSpec& job,
                                              const Partition& partition,
                                              const RecomputeSetting& recompute,
                                              const TrainerFile& schedule,
                                              absl::string_view file);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_MEGATRON_LAUNCH_H_
