#include "formats/job/device_share_notes.h"

#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {
namespace {

struct Share {
  absl::string_view name;
  double DeviceSpec::*value;
};
constexpr Share kShares[] = {
    {"sustained_bf16", &DeviceSpec::sustained_bf16},
    {"sustained_fp8", &DeviceSpec::sustained_fp8},
    {"sustained_attention", &DeviceSpec::sustained_attention},
};

}  // namespace

std::vector<std::string> DeviceShareNotes(const ClusterSpec& cluster,
                                          const std::string& data_dir,
                                          const FileReader& read) {
  std::vector<const DeviceSpec*> devices = {&cluster.device};
  for (const NodeGroup& group : cluster.node_groups) {
    devices.push_back(&group.device);
  }
  std::vector<std::string> notes;
  std::set<std::string> noted;
  for (const DeviceSpec* device : devices) {
    if (!absl::c_linear_search(ShippedClusterNames(), device->name) ||
        !noted.insert(device->name).second) {
      continue;
    }
    const auto shipped = LoadCluster(device->name, data_dir, read);
    if (!shipped.ok() || shipped->device.name != device->name) continue;
    bool follows = false;  // A share of attention not given is that of bf16.
    for (const Share& share : kShares) {
      const double known = shipped->device.*share.value;
      if (device->*share.value < 1 || known >= 1) continue;
      if (share.value == &DeviceSpec::sustained_attention && follows) continue;
      follows = share.value == &DeviceSpec::sustained_bf16 || follows;
      notes.push_back(absl::StrFormat(
          "cluster %s: device \"%s\" has no %s, so its power limit makes no "
          "step longer; the shipped one has %g: add it to \"device\"",
          cluster.name, device->name, share.name, known));
    }
  }
  return notes;
}

}  // namespace pipeloom::formats
