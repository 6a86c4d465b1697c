// Loading of the shared modules that `pipeloom run` needs only for some
// options: libtorch and NCCL take seconds to load, or are not there.
#ifndef PIPELOOM_CLI_RUN_RUN_MODULE_H_
#define PIPELOOM_CLI_RUN_RUN_MODULE_H_

#include <string>

#include "absl/status/statusor.h"

namespace pipeloom::cli {

// Loads `file` from the program's folder or from where modules are installed,
// and returns the address of `entry` in it. NotFound: there is no such file, or
// it cannot be loaded; FailedPrecondition: it has no such entry. Messages call
// the module `what` (such as "torch device") and say that a build needs
// `needs`.
absl::StatusOr<void*> LoadModule(const std::string& file,
                                 const std::string& entry,
                                 const std::string& what,
                                 const std::string& needs);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_MODULE_H_
