#include "cli/input/operator_prices.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/device_profiles.h"
#include "formats/profile/profile_reader.h"
#include "studies/job/device_prices.h"

namespace pipeloom::cli {
namespace {

emulator::DeviceLimits LimitsOf(const DeviceProfile& profile) {
  emulator::DeviceLimits limits;
  limits.name = profile.device;
  limits.bf16_flops_per_second = profile.rates.bf16_flops_per_second;
  limits.fp8_flops_per_second = profile.rates.fp8_flops_per_second;
  limits.memory_bytes_per_second = profile.rates.bytes_per_second;
  return limits;
}

absl::Status UnknownDevice(const std::string& name) {
  std::vector<std::string> known = formats::ShippedClusterNames();
  for (const std::string& device : formats::ShippedProfileNames()) {
    if (!absl::c_linear_search(known, device)) known.push_back(device);
  }
  return absl::NotFoundError(
      absl::StrCat("--device: there is no GPU and no cluster \"", name,
                   "\"; shipped are ", absl::StrJoin(known, ", "),
                   "; the path of a file has a slash or ends in .json",
                   DidYouMean(name, known)));
}

}  // namespace

absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir) {
  return formats::LoadDeviceProfile(
      name, data_dir, [](const std::string& path) { return ReadFile(path); });
}

absl::StatusOr<emulator::QueryCost> LoadQueryCost(const std::string& device,
                                                  const std::string& profile,
                                                  const std::string& data_dir,
                                                  const Context& context) {
  const auto read = [](const std::string& path) { return ReadFile(path); };
  formats::DeviceProfiles profiles(data_dir, read);
  if (!profile.empty()) PIPELOOM_RETURN_IF_ERROR(profiles.Add(profile));
  const absl::StatusOr<ClusterSpec> cluster =
      formats::LoadCluster(device, data_dir, read);
  const bool is_path =
      absl::StrContains(device, "/") || absl::EndsWith(device, ".json");
  const bool is_unknown =
      !is_path && absl::IsNotFound(cluster.status()) && !FileExists(device);
  if (!cluster.ok() && (is_path || !absl::IsNotFound(cluster.status()))) {
    return cluster.status();
  }
  const std::string& name = cluster.ok() ? cluster->device.name : device;
  PIPELOOM_ASSIGN_OR_RETURN(const auto measured, profiles.Find(name));
  if (!profile.empty() && measured != profiles.given()[0].profile) {
    return absl::InvalidArgumentError(
        absl::StrCat(profile, ": is of device ",
                     profiles.given()[0].profile->device, ", not of ", name));
  }
  if (cluster.ok()) {
    const std::string note =
        studies::PriceNote(cluster->device, measured.get());
    if (!note.empty()) context.warn(note);
    return emulator::QueryCost(*cluster, measured.get());
  }
  // Without a cluster file, only the device's own profile knows its rates.
  if (measured == nullptr || measured->device != name) {
    return is_unknown ? UnknownDevice(device) : cluster.status();
  }
  return emulator::QueryCost(emulator::ClusterOfLimits(LimitsOf(*measured)),
                             measured.get());
}

}  // namespace pipeloom::cli
