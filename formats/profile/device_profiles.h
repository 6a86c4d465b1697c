// The profiles that price the devices of jobs: given files, then those of the
// data folder. All who price a device's operators find its profile here, so
// that a backtest has the errors of the user's plans.
#ifndef PIPELOOM_FORMATS_PROFILE_DEVICE_PROFILES_H_
#define PIPELOOM_FORMATS_PROFILE_DEVICE_PROFILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "formats/job/spec_loader.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::formats {

// A file is read once, so that equal profiles are equal pointers. Threads: any,
// but for Add(). Copies share what they have read.
class DeviceProfiles {
 public:
  // A profile that was given as a file.
  struct Given {
    std::string file{};
    std::shared_ptr<const DeviceProfile> profile{};
    Fingerprint content{};
  };

  DeviceProfiles() = default;  // Has no profile of any device.
  DeviceProfiles(std::string data_dir, FileReader read);

  // Reads a profile, which precedes the one of its device in the data folder.
  // InvalidArgument: the file is no profile, or another file was given for the
  // same device.
  absl::Status Add(const std::string& file);
  const std::vector<Given>& given() const { return given_; }

  // Looks for a profile under three names, in this order: `device`, the part of
  // it before the first dash, and that part with "-sxm". So
  // "h100-96g", an H100 with other memory, has the profile of h100-sxm, which
  // its rates then scale. Null: there is none, or `device` looks like a path.
  // InvalidArgument: the file in the data folder is no profile, or its field
  // "device" is not the name of the file.
  absl::StatusOr<std::shared_ptr<const DeviceProfile>> Find(
      const std::string& device) const;

 private:
  struct Shipped;

  std::vector<Given> given_{};
  std::shared_ptr<Shipped> shipped_{};  // Null: there is no data folder.
};

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_DEVICE_PROFILES_H_
