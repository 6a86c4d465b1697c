// The job and the options of the commands that try changes of a job.
#ifndef PIPELOOM_CLI_INPUT_WHATIF_INPUT_H_
#define PIPELOOM_CLI_INPUT_WHATIF_INPUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "studies/whatif/whatif_run.h"

namespace pipeloom::cli {

// Reads the job and its batch.
absl::StatusOr<studies::WhatIfInput> ReadWhatIfInput(const std::string& job,
                                                     const JobFlags& flags,
                                                     const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_WHATIF_INPUT_H_
