// The outcomes of `whatif` as files.
#ifndef PIPELOOM_CLI_REPORT_WHATIF_FILES_H_
#define PIPELOOM_CLI_REPORT_WHATIF_FILES_H_

#include <string>
#include <vector>

#include "studies/whatif/case_plan.h"
#include "studies/whatif/whatif_case.h"

namespace pipeloom::cli {

// Returns the value of the last change of `path` in a case; empty: none.
std::string ValueOf(const studies::WhatIfCase& c, const std::string& path);

// Returns a row for each configuration, with a column for each path that any of
// them changes. REQUIRES: an outcome for each case.
std::string WhatIfCsv(const std::vector<studies::WhatIfCase>& cases,
                      const std::vector<studies::WhatIfOutcome>& outcomes);

// Returns the same as JSON. REQUIRES: an outcome for each case.
std::string WhatIfJson(const std::string& job,
                       const std::vector<studies::WhatIfCase>& cases,
                       const std::vector<studies::WhatIfOutcome>& outcomes);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_WHATIF_FILES_H_
