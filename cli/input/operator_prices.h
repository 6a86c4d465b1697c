// The prices of `pipeloom cost`: a device's profile, shipped or given, and the
// rates and links of its cluster file where the profile has no table.
#ifndef PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_
#define PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_

#include <string>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "emulator/calibration/query_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::cli {

// Loads the prices of a device: those of a cluster, by the name of one that
// ships or its file, priced as planning does (formats::DeviceProfiles); or, if
// there is no cluster `device`, those of its profile alone. `profile` is a
// file, or empty for the shipped profile. Prints a note if the cluster's device
// has no profile of its own. NotFound lists the shipped clusters.
// InvalidArgument: the profile is of another device.
absl::StatusOr<emulator::QueryCost> LoadQueryCost(const std::string& device,
                                                  const std::string& profile,
                                                  const std::string& data_dir,
                                                  const Context& context);

// Loads data_dir/profiles/NAME.json, or the file `name` if the name has a slash
// or ".json" in it. NotFound: there is no such file.
absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_OPERATOR_PRICES_H_
