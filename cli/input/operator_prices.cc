#include "cli/input/operator_prices.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/profile_reader.h"

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

}  // namespace

absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir) {
  return formats::LoadDeviceProfile(
      name, data_dir, [](const std::string& path) { return ReadFile(path); });
}

absl::StatusOr<emulator::QueryCost> LoadQueryCost(const std::string& device,
                                                  const std::string& profile,
                                                  const std::string& data_dir) {
  std::optional<DeviceProfile> measured;
  absl::StatusOr<DeviceProfile> loaded =
      LoadDeviceProfile(profile.empty() ? device : profile, data_dir);
  if (loaded.ok()) {
    measured = *std::move(loaded);
    if (!profile.empty() && measured->device != device) {
      return absl::InvalidArgumentError(absl::StrCat(
          profile, ": is of device ", measured->device, ", not of ", device));
    }
  } else if (!profile.empty() || !absl::IsNotFound(loaded.status())) {
    return loaded.status();
  }
  const absl::StatusOr<ClusterSpec> cluster = formats::LoadCluster(
      device, data_dir, [](const std::string& path) { return ReadFile(path); });
  if (cluster.ok()) {
    return emulator::QueryCost(*cluster,
                               measured.has_value() ? &*measured : nullptr);
  }
  if (!measured.has_value()) return cluster.status();
  return emulator::QueryCost(emulator::ClusterOfLimits(LimitsOf(*measured)),
                             &*measured);
}

}  // namespace pipeloom::cli
