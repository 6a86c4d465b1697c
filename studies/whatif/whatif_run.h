// Planning and emulation of many configurations of a job: in parallel, with
// progress, and with a journal from which an interrupted run goes on.
#ifndef PIPELOOM_STUDIES_WHATIF_WHATIF_RUN_H_
#define PIPELOOM_STUDIES_WHATIF_WHATIF_RUN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "studies/job/study_context.h"
#include "studies/whatif/case_plan.h"
#include "studies/whatif/whatif_case.h"

namespace pipeloom::studies {

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
// of them. Some cases are never on it and keep no other case off it: those that
// cannot run or do not fit; faults and other batches, as nobody chooses them;
// and those that cut samples into more pieces than the first case does.
std::vector<bool> ParetoFront(const std::vector<WhatIfCase>& cases,
                              const std::vector<WhatIfOutcome>& outcomes);

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
