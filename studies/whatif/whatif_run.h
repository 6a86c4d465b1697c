// Planning and emulation of many configurations of a job: in parallel, with
// progress, and with a journal from which an interrupted run goes on.
#ifndef PIPELOOM_STUDIES_WHATIF_WHATIF_RUN_H_
#define PIPELOOM_STUDIES_WHATIF_WHATIF_RUN_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "formats/job/job_overrides.h"
#include "ir/plan/partition.h"
#include "studies/job/job_input.h"
#include "studies/job/planned_step.h"
#include "studies/job/study_context.h"
#include "studies/whatif/whatif_case.h"

namespace pipeloom::studies {

struct WhatIfOutcome {
  std::string error{};   // Why it cannot run; empty if it can.
  Duration step_time{};  // Mean over the steps, for the slowest replica.
  Duration lower_bound{};
  double bubble_ratio = 0;
  double epilogue_ratio = 0;
  double mfu = 0;
  Bytes peak{};
  Bytes limit{};
  int64_t gpus = 0;
  int64_t samples = 0;  // Number of samples of a step.
  // Whether samples are cut into more pieces than in the job as it is: another
  // training, whose times are not compared.
  bool cuts_more = false;
  bool ok() const { return error.empty(); }
  // Configurations are compared by the time of a sample, as their steps may
  // have different numbers of samples.
  double seconds_per_sample() const {
    return ToSeconds(step_time) /
           static_cast<double>(std::max<int64_t>(1, samples));
  }
  double samples_per_second() const {
    return step_time > kZero
               ? static_cast<double>(samples) / ToSeconds(step_time)
               : 0;
  }
  bool operator==(const WhatIfOutcome&) const = default;
};

// A cache of operator prices by cluster and layout. Configurations with the
// same cluster and layout share the tables, which take half the time of a short
// search to make. Threads: any. Copies share their content.
class SharedPrices {
 public:
  SharedPrices();
  // Returns CostsOf(job), which may have been made for another job with the
  // same cluster, layout and profile.
  std::unique_ptr<const emulator::OpCostModel> Of(const JobInput& job) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Which layers are where in every case.
struct CasePartition {
  std::string
      name{};  // Where it comes from, with its content: for the journal.
  // Makes the partition of a case's job; empty: the strategy's own. Called from
  // several threads at a time.
  std::function<absl::StatusOr<Partition>(const JobInput& job)> make{};
};

// The input that all cases have in common.
struct WhatIfInput {
  formats::JobTemplate job{};
  JobInput base{};  // The job as it is, its batch and profile.
  std::string data_dir{};
  std::string costs = "profile";
  bool assigned = false;  // Whether an option set the assignment of `base`.
  int64_t steps = 1;
  int64_t replicas = 0;
  std::string schedule{};  // Empty: the job's.
  CasePartition partition{};
  SearchOptions search{};
  SharedPrices prices{};
};

// Runs one case on this thread. Errors of the configuration are in the outcome.
// Cancelled: a stop was requested. `planned` (may be null) gets the first step,
// except for cases that are not a job of their own (slow_rank, recompute_all).
absl::StatusOr<WhatIfOutcome> RunCase(const WhatIfInput& input,
                                      const WhatIfCase& what,
                                      const StudyContext& context,
                                      PlannedStep* planned = nullptr);

// Runs all cases, `threads` at a time, and returns their outcomes in order.
// Reads the file `journal` (empty: none) first, does not run cases that it has,
// and appends every new outcome as soon as it is known. Ignores incomplete
// lines and those of other questions. Cancelled: a stop was requested; the
// journal has the outcomes known so far.
absl::StatusOr<std::vector<WhatIfOutcome>> RunCases(
    const WhatIfInput& input, const std::vector<WhatIfCase>& cases,
    int32_t threads, const std::string& journal, const StudyContext& context);

// Returns one line of a journal, from which ParseJournalLine reads the same
// values.
std::string JournalLine(const Fingerprint& key, const WhatIfOutcome& outcome);
// Parses a line. Returns false if it is incomplete or not of a journal.
bool ParseJournalLine(absl::string_view line, Fingerprint* key,
                      WhatIfOutcome* outcome);

// Returns, indexed by case, whether it is on the Pareto front: no other case is
// at least as good in GPUs, time of a sample and peak memory and better in one
// of them. Cases that cannot run, and those that cut samples into more pieces
// than the first case does, are never on it.
std::vector<bool> ParetoFront(const std::vector<WhatIfOutcome>& outcomes);

// Returns the configuration that fits with the shortest time of a sample for
// each number of GPUs, which a
// scheduler that grows and shrinks jobs needs; pointers into `outcomes`. Leaves
// out cases of other questions than "scale", such as those with another GPU,
// except the first.
std::map<int64_t, const WhatIfOutcome*> BestByGpus(
    const std::vector<WhatIfCase>& cases,
    const std::vector<WhatIfOutcome>& outcomes);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_WHATIF_WHATIF_RUN_H_
