// The column "setup" of a table of measured runs (measured_run.h).
#ifndef PIPELOOM_FORMATS_PROFILE_RUN_SETUP_H_
#define PIPELOOM_FORMATS_PROFILE_RUN_SETUP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "formats/profile/measured_run.h"
#include "ir/job/training_setup.h"

namespace pipeloom::formats {

// Returns the defaults of a row by the name of its framework. NeMo runs
// Megatron-Bridge with its benchmark recipes, except its Automodel, which
// shards fully as torchtitan does; LoongForge and every name with "megatron"
// ahead run Megatron-Core. Their hosts launch kernels one by one.
TrainingSetup SetupOfFramework(absl::string_view name);

// Reads the words into the run, whose framework and layout are known. Errors
// begin with `where`.
absl::Status ReadRunSetup(const std::string& where, absl::string_view text,
                          MeasuredRun* run);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_RUN_SETUP_H_
