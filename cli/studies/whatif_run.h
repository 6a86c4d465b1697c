// Plans and emulates many configurations of a job: in parallel, with progress,
// and with a journal from which an interrupted run goes on.
#ifndef PIPELOOM_CLI_STUDIES_WHATIF_RUN_H_
#define PIPELOOM_CLI_STUDIES_WHATIF_RUN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/input/planned_step.h"
#include "cli/studies/whatif_case.h"
#include "emulator/ops/op_cost.h"

namespace pipeloom::cli {

struct WhatIfOutcome {
  std::string error{};   // Why it cannot run; empty: it can.
  Duration step_time{};  // Mean over the steps, of the slowest replica.
  Duration lower_bound{};
  double bubble_ratio = 0;
  double epilogue_ratio = 0;
  double mfu = 0;
  Bytes peak{};
  Bytes limit{};
  int64_t gpus = 0;
  int64_t samples = 0;  // Of a step.
  bool ok() const { return error.empty(); }
  double samples_per_second() const {
    return step_time > kZero
               ? static_cast<double>(samples) / ToSeconds(step_time)
               : 0;
  }
  bool operator==(const WhatIfOutcome&) const = default;
};

// The operator prices of clusters and layouts already met: configurations that
// share them share the tables, which take half the time of a short search to
// make. Any number of threads; copies share what they hold.
class SharedPrices {
 public:
  SharedPrices();
  // CostsOf(job), perhaps made before for a job with the same cluster, layout
  // and profile.
  std::unique_ptr<const emulator::OpCostModel> Of(const JobInput& job) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// What all cases have in common.
struct WhatIfInput {
  formats::JobTemplate job{};
  JobInput base{};  // The job as it is, its batch and profile.
  std::string data_dir{};
  std::string costs = "profile";
  bool assigned = false;  // The assignment of `base` is an option's.
  int64_t steps = 1;
  int64_t replicas = 0;
  std::string schedule{};  // Empty: the job's.
  SearchFlags search{};
  SharedPrices prices{};
};
absl::StatusOr<WhatIfInput> ReadWhatIfInput(const std::string& job,
                                            const JobFlags& flags,
                                            const Context& context);

// One case, on this thread. Errors of the configuration are in the outcome;
// Cancelled: a stop request. `planned` (may be null) gets the first step, not
// of cases that are no job of their own (a slow rank, recompute_all).
absl::StatusOr<WhatIfOutcome> RunCase(const WhatIfInput& input,
                                      const WhatIfCase& what,
                                      const Context& context,
                                      PlannedStep* planned = nullptr);

// All cases, `threads` at a time, in their order. `journal` (empty: none) is
// read first, what it has is not run again, and every outcome is appended to
// it as soon as it is known; lines of other questions and torn ones are passed
// over. Cancelled: a stop request; the journal then has what was done.
absl::StatusOr<std::vector<WhatIfOutcome>> RunCases(
    const WhatIfInput& input, const std::vector<WhatIfCase>& cases,
    int32_t threads, const std::string& journal, const Context& context);

// One line of a journal; parse gives back what was printed.
std::string JournalLine(const Fingerprint& key, const WhatIfOutcome& outcome);
// False: it is torn or no such line.
bool ParseJournalLine(absl::string_view line, Fingerprint* key,
                      WhatIfOutcome* outcome);

// By case: whether no other is at least as good in GPUs, step time and peak
// memory and better in one. Cases that cannot run are never in it.
std::vector<bool> ParetoFront(const std::vector<WhatIfOutcome>& outcomes);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_WHATIF_RUN_H_
