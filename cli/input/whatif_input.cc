#include "cli/input/whatif_input.h"

#include "base/status_macros.h"
#include "cli/console/files.h"
#include "formats/job/job_overrides.h"

namespace pipeloom::cli {

absl::StatusOr<studies::WhatIfInput> ReadWhatIfInput(const std::string& job,
                                                     const JobFlags& flags,
                                                     const Context& context) {
  studies::WhatIfInput input;
  PIPELOOM_ASSIGN_OR_RETURN(input.data_dir, FindDataDir(flags.data_dir));
  // The job is read before the batch, so that a misspelt job is reported first.
  const auto read = [](const std::string& path) { return ReadFile(path); };
  PIPELOOM_ASSIGN_OR_RETURN(
      input.job, formats::JobTemplate::Load(job, input.data_dir, read));
  PIPELOOM_ASSIGN_OR_RETURN(input.base, ReadJobInput(job, flags, context));
  input.costs = flags.costs;
  input.assigned = flags.assignment.has_value();
  input.steps = flags.steps;
  input.replicas = flags.replicas;
  return input;
}

}  // namespace pipeloom::cli
