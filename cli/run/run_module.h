// The shared modules that `pipeloom run` loads on demand: libtorch and NCCL
// take seconds to load, or are not there.
#ifndef PIPELOOM_CLI_RUN_RUN_MODULE_H_
#define PIPELOOM_CLI_RUN_RUN_MODULE_H_

#include <string>

#include "absl/status/statusor.h"

namespace pipeloom::cli {

// The address of `entry` in `file`, beside the program or where modules are
// installed. NotFound: there is no such file, or it cannot be loaded; says
// what `what` (as "torch device") would need: `needs`.
absl::StatusOr<void*> LoadModule(const std::string& file,
                                 const std::string& entry,
                                 const std::string& what,
                                 const std::string& needs);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_RUN_MODULE_H_
