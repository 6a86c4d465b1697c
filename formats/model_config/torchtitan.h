// The models that torchtitan has under a name and a flavor, such as
// "llama3/8B", as configurations that the readers of this folder's parent read.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_TORCHTITAN_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_TORCHTITAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {

// Returns the configuration, a JSON object, of "MODEL/FLAVOR". NotFound lists
// the flavors of the model, or the models.
absl::StatusOr<std::string> TorchtitanConfig(absl::string_view name);
// Returns all names, such as "llama3/8B".
std::vector<std::string> TorchtitanNames();

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_TORCHTITAN_H_
