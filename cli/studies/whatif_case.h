// The configurations that a what-if question is made of.
#ifndef PIPELOOM_CLI_STUDIES_WHATIF_CASE_H_
#define PIPELOOM_CLI_STUDIES_WHATIF_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fingerprint.h"
#include "formats/job/job_overrides.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::cli {

// One job to try: changes of its fields, and what is no field of a job.
struct WhatIfCase {
  std::string label{};
  std::vector<formats::JobOverride> changes{};
  double video_factor = 1;  // Seconds and frames of every clip.
  int32_t slow_rank = -1;   // Computes `slow_factor` times as long.
  double slow_factor = 1;
  bool replan = true;          // For a slow rank: search again, knowing it.
  bool recompute_all = false;  // Every stage, whatever fits.
  bool scales = false;         // Of the question "scale".

  // "--set a=1 --set b=2": how `whatif` is asked for this case alone; empty if
  // it cannot be.
  std::string Arguments() const;
  void AddTo(FingerprintBuilder* builder) const;
};

// Every combination of the sweeps' values ("path=a,b,c"; commas inside
// brackets or quotes do not count), the last sweep fastest, each with all of
// `sets`. Without sweeps: one case. InvalidArgument: no path, no value, a path
// twice, or more than 1'000'000 cases.
absl::StatusOr<std::vector<WhatIfCase>> SweepCases(
    absl::Span<const std::string> sets, absl::Span<const std::string> sweeps);

// Of the named questions: what it asks, and its cases after those of the job
// as it is. docs/whatif.md lists them.
struct WhatIfQuestion {
  std::string name{};
  std::string asks{};
};
const std::vector<WhatIfQuestion>& WhatIfQuestions();
// The question must be one of the above. A question without a sensible case
// for the job has none (no clips: no 2x video).
std::vector<WhatIfCase> CasesOf(const std::string& question,
                                const JobSpec& job);

// `batch` with every clip `factor` times as long.
BatchMetadata WithLongerVideos(const BatchMetadata& batch, double factor);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_WHATIF_CASE_H_
