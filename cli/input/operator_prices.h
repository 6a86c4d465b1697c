// The prices of `pipeloom cost`: a device's profile, shipped or given, and the
// rates and links of its cluster file where the profile has no table.
#ifndef PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_
#define PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_

#include <string>

#include "absl/status/statusor.h"
#include "emulator/calibration/query_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::cli {

// Loads the prices of a device. `profile` is a file, or empty for the shipped
// profile; a device without a shipped profile is priced by its rates alone. A
// device without a shipped cluster file needs a profile and is priced by that
// alone. NotFound lists the shipped devices.
absl::StatusOr<emulator::QueryCost> LoadQueryCost(const std::string& device,
                                                  const std::string& profile,
                                                  const std::string& data_dir);

// Loads data_dir/profiles/NAME.json, or the file `name` if the name has a slash
// or ".json" in it. NotFound: there is no such file.
absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_
