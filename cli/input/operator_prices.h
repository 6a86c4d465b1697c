// What `pipeloom cost` answers from: a device's profile, shipped or given, and
// the rates and links of its cluster file where the profile has no table.
#ifndef PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_
#define PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_

#include <string>

#include "absl/status/statusor.h"
#include "emulator/calibration/query_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::cli {

// `profile` is a file, or empty for the one that ships; a device without one
// is priced by its rates alone. A device that ships no cluster file needs a
// profile, and is priced by that alone. NotFound lists the devices that ship.
absl::StatusOr<emulator::QueryCost> LoadQueryCost(const std::string& device,
                                                  const std::string& profile,
                                                  const std::string& data_dir);

// data_dir/profiles/NAME.json, or a file if there is a slash or ".json" in the
// name. NotFound if there is none.
absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_
