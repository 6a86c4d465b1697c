#include "studies/backtest/against_prices.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "emulator/cost/profile_cost.h"
#include "formats/profile/profile_reader.h"

namespace pipeloom::studies {

absl::StatusOr<const emulator::OpCostModel*> AgainstPrices::Of(
    const ClusterSpec& cluster, const ParallelLayout& parallel,
    const std::string& data_dir, const formats::FileReader& read) {
  for (const Known& known : known_) {
    if (known.cluster == cluster && known.parallel == parallel) {
      return known.costs.get();
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(const DeviceProfile* profile,
                            ProfileOf(cluster.device.name, data_dir, read));
  known_.push_back({cluster, parallel,
                    emulator::MakeOpCosts(cluster, parallel, profile,
                                          cluster.device.kernel_overhead)});
  return known_.back().costs.get();
}

absl::StatusOr<const DeviceProfile*> AgainstPrices::ProfileOf(
    const std::string& device, const std::string& data_dir,
    const formats::FileReader& read) {
  if (const auto it = profiles_.find(device); it != profiles_.end()) {
    return &it->second;
  }
  const std::string model = device.substr(0, device.find('-'));
  for (const std::string& name : {device, model, model + "-sxm"}) {
    const std::string path =
        absl::StrCat(data_dir, "/profiles/", name, ".json");
    const absl::StatusOr<std::string> text = read(path);
    if (!text.ok()) continue;
    PIPELOOM_ASSIGN_OR_RETURN(DeviceProfile profile,
                              formats::ParseDeviceProfile(*text, path));
    return &profiles_.emplace(device, std::move(profile)).first->second;
  }
  return absl::NotFoundError(absl::StrCat(
      "no measured profile of device ", device, " in ", data_dir,
      "/profiles; without --measured operators are priced by roofline"));
}

}  // namespace pipeloom::studies
