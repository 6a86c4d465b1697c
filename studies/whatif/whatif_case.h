// The configurations that what-if questions try.
#ifndef PIPELOOM_STUDIES_WHATIF_WHATIF_CASE_H_
#define PIPELOOM_STUDIES_WHATIF_WHATIF_CASE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fingerprint.h"
#include "formats/job/job_overrides.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::studies {

// One job to try: changes of its fields, and changes that are not fields of a
// job.
struct WhatIfCase {
  std::string label{};
  std::vector<formats::JobOverride> changes{};
  double video_factor = 1;  // Multiplies seconds and frames of every clip.
  int32_t slow_rank = -1;   // Computes `slow_factor` times as long; -1: none.
  double slow_factor = 1;
  // Whether the schedule is searched again with the slow rank's times.
  bool replan = true;
  // Whether every stage recomputes, even if it fits without.
  bool recompute_all = false;
  bool scales = false;  // Whether it belongs to the question "scale".

  // Returns whether it is a configuration that one can have, not a fault or
  // another batch that the job may meet.
  bool can_be_chosen() const { return slow_rank < 0 && video_factor == 1; }
  // Adds all fields that the outcome depends on.
  void AddTo(FingerprintBuilder* builder) const;
};

// Returns a case for every combination of the sweeps' values ("path=a,b,c";
// commas inside brackets or quotes do not count), the last sweep varying
// fastest, each with all of `sets`; one case if there are no sweeps.
// InvalidArgument: no path, no value, a path twice, or more than 1'000'000
// cases.
absl::StatusOr<std::vector<WhatIfCase>> SweepCases(
    absl::Span<const std::string> sets, absl::Span<const std::string> sweeps);

// A named question, and the text that explains it. docs/whatif.md lists all.
struct WhatIfQuestion {
  std::string name{};
  std::string asks{};
  std::string about{};  // Questions about one thing follow one another.
};
const std::vector<WhatIfQuestion>& WhatIfQuestions();

// A value of training.shape_buckets.
struct BucketChoice {
  int32_t shapes = 1;  // Most shapes of a module.
  std::string value{};
};

// Values that some questions need.
struct WhatIfGiven {
  int64_t gpus = 0;   // For "layout"; 0: as many as the job has.
  double budget = 0;  // For "budget": what all GPUs may cost an hour.
  // For "budget": shipped clusters with the price of a GPU and hour.
  std::vector<std::pair<std::string, double>> prices{};
  std::vector<BucketChoice> buckets{};  // For "graphs".
};
// Returns the cases of a question; empty if it has no sensible case for the
// job. REQUIRES: the question is one of WhatIfQuestions().
std::vector<WhatIfCase> CasesOf(const std::string& question, const JobSpec& job,
                                const WhatIfGiven& given = {});

// Returns `batch` with every clip `factor` times as long.
BatchMetadata WithLongerVideos(const BatchMetadata& batch, double factor);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_WHATIF_WHATIF_CASE_H_
