// The console as a study sees it.
#ifndef PIPELOOM_CLI_CONSOLE_STUDY_CONTEXT_H_
#define PIPELOOM_CLI_CONSOLE_STUDY_CONTEXT_H_

#include "cli/console/command.h"
#include "cli/console/progress.h"
#include "studies/job/study_context.h"

namespace pipeloom::cli {

// Lets a study read files, print notes and show its progress. REQUIRES:
// `context` outlives the result.
studies::StudyContext StudyContextOf(const Context& context);

// Returns Set() of `progress` as a function. REQUIRES: `progress` outlives it.
studies::ProgressCallback SetterOf(Progress& progress);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_STUDY_CONTEXT_H_
