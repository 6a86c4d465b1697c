// The identity of a program's build, by which programs that belong together are
// told from others that lie in the same folder.
#ifndef PIPELOOM_CLI_CONSOLE_BUILD_ID_H_
#define PIPELOOM_CLI_CONSOLE_BUILD_ID_H_

#include <string>

#include "absl/status/status.h"

namespace pipeloom::cli {

// The line "pipeloom build: VERSION-NAME\n", which cmake/PipeloomBuildId.cmake
// makes from the libraries that `pipeloom` and `pipeloom-service` share.
extern const char kBuildLine[];

// Returns the "VERSION-NAME" of this program.
std::string OwnBuild();

// Returns the "VERSION-NAME" in another program's file; empty if it has none.
// Searches the whole file, which takes some ms.
std::string BuildOf(const std::string& program);

// Checks that `program` is of the same build. FailedPrecondition gives both
// names. Returns OK also if the file cannot be read.
absl::Status CheckSameBuild(const std::string& program);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_BUILD_ID_H_
