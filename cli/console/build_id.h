// Which build a program is, so that two that belong together can be told from
// two that merely lie in one folder.
#ifndef PIPELOOM_CLI_CONSOLE_BUILD_ID_H_
#define PIPELOOM_CLI_CONSOLE_BUILD_ID_H_

#include <string>

#include "absl/status/status.h"

namespace pipeloom::cli {

// "pipeloom build: VERSION-NAME\n", made by cmake/PipeloomBuildId.cmake from
// the libraries that `pipeloom` and `pipeloom-service` have in common.
extern const char kBuildLine[];

// "VERSION-NAME" of this program.
std::string OwnBuild();

// What the line says in another program's file; empty: there is none. Looks
// through the file, some ms.
std::string BuildOf(const std::string& program);

// FailedPrecondition, with both names: `program` is of another build. Ok, too,
// if it cannot be read.
absl::Status CheckSameBuild(const std::string& program);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_BUILD_ID_H_
