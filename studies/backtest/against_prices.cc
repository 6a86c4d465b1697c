#include "studies/backtest/against_prices.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "emulator/cost/profile_cost.h"
#include "ir/profile/device_profile.h"
#include "studies/job/device_prices.h"

namespace pipeloom::studies {

absl::StatusOr<const AgainstPrices::Prices*> AgainstPrices::Of(
    const ClusterSpec& cluster, const ParallelLayout& parallel) {
  for (const Known& known : known_) {
    if (known.cluster == cluster && known.parallel == parallel) {
      return &known.prices;
    }
  }
  std::map<std::string, std::shared_ptr<const DeviceProfile>> profiles;
  std::vector<std::string> devices = {cluster.device.name};
  for (const NodeGroup& group : cluster.node_groups) {
    devices.push_back(group.device.name);
  }
  bool any = false;
  for (const std::string& device : devices) {
    PIPELOOM_ASSIGN_OR_RETURN(profiles[device], profiles_.Find(device));
    any = any || profiles[device] != nullptr;
  }
  Prices prices;
  prices.name = PricesName(profiles[cluster.device.name].get());
  if (any) {
    prices.costs = emulator::MakeOpCosts(
        cluster, parallel,
        [&](const std::string& device) { return profiles[device].get(); });
  }
  known_.push_back({cluster, parallel, std::move(prices)});
  return &known_.back().prices;
}

}  // namespace pipeloom::studies
