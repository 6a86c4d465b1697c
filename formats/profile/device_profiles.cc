#include "formats/profile/device_profiles.h"

#include <cstddef>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "formats/profile/profile_reader.h"

namespace pipeloom::formats {
namespace {

constexpr size_t kLongestName = 128;  // Bytes; longer names are of no file.

bool IsName(const std::string& device) {
  return !device.empty() && device.size() <= kLongestName &&
         !absl::StrContains(device, "/") && !absl::EndsWith(device, ".json");
}

}  // namespace

struct DeviceProfiles::Shipped {
  std::string data_dir{};
  FileReader read{};
  Mutex mutex{};
  std::map<std::string, std::shared_ptr<const DeviceProfile>> known
      ABSL_GUARDED_BY(mutex){};

  // Returns the profile of the device in the data folder; null: there is none.
  absl::StatusOr<std::shared_ptr<const DeviceProfile>> Of(
      const std::string& device) {
    const MutexLock lock(&mutex);
    if (const auto it = known.find(device); it != known.end()) {
      return it->second;
    }
    absl::StatusOr<DeviceProfile> profile =
        LoadDeviceProfile(device, data_dir, read);
    if (absl::IsNotFound(profile.status())) return nullptr;
    if (!profile.ok()) return profile.status();
    if (profile->device != device) {
      return absl::InvalidArgumentError(absl::StrCat(
          data_dir, "/profiles/", device, ".json: field \"device\" is \"",
          profile->device, "\"; it must be \"", device,
          "\", as the file is named; name the file ", profile->device,
          ".json if it was measured on ", profile->device));
    }
    return known[device] =
               std::make_shared<const DeviceProfile>(*std::move(profile));
  }
};

DeviceProfiles::DeviceProfiles(std::string data_dir, FileReader read)
    : shipped_(std::make_shared<Shipped>()) {
  shipped_->data_dir = std::move(data_dir);
  shipped_->read = std::move(read);
}

absl::Status DeviceProfiles::Add(const std::string& file) {
  if (shipped_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, ": there is no reader of files"));
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, shipped_->read(file));
  PIPELOOM_ASSIGN_OR_RETURN(DeviceProfile profile,
                            ParseDeviceProfile(text, file));
  for (const Given& other : given_) {
    if (other.profile->device != profile.device) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": is of device ", profile.device, ", as is ",
                     other.file, "; give one of them"));
  }
  given_.push_back({file,
                    std::make_shared<const DeviceProfile>(std::move(profile)),
                    FingerprintBuilder().Add(text).Build()});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const DeviceProfile>> DeviceProfiles::Find(
    const std::string& device) const {
  if (!IsName(device)) return nullptr;
  const std::string family = device.substr(0, device.find('-'));
  for (const std::string& name : {device, family, family + "-sxm"}) {
    for (const Given& given : given_) {
      if (given.profile->device == name) return given.profile;
    }
    if (shipped_ == nullptr || name.empty()) continue;
    PIPELOOM_ASSIGN_OR_RETURN(auto profile, shipped_->Of(name));
    if (profile != nullptr) return profile;
  }
  return nullptr;
}

}  // namespace pipeloom::formats
