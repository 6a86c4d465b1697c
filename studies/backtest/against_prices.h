// The prices of the clusters of a backtest.
#ifndef PIPELOOM_STUDIES_BACKTEST_AGAINST_PRICES_H_
#define PIPELOOM_STUDIES_BACKTEST_AGAINST_PRICES_H_

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "formats/profile/device_profiles.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/parallel_layout.h"

namespace pipeloom::studies {

// A cache of prices, made once for each cluster and layout, which takes about
// 50 ms. Not thread-safe.
class AgainstPrices {
 public:
  struct Prices {
    // Null: no device of the cluster has a profile, so that peak rates price.
    std::unique_ptr<const emulator::OpCostModel> costs{};
    std::string name = "roofline";  // PricesName of the cluster's device.
  };

  explicit AgainstPrices(formats::DeviceProfiles profiles)
      : profiles_(std::move(profiles)) {}

  // Returns the prices by the profiles of the cluster's devices, which live as
  // long as this object. Errors are those of formats::DeviceProfiles.
  absl::StatusOr<const Prices*> Of(const ClusterSpec& cluster,
                                   const ParallelLayout& parallel);

 private:
  struct Known {
    ClusterSpec cluster{};
    ParallelLayout parallel{};
    Prices prices{};
  };

  formats::DeviceProfiles profiles_{};
  std::list<Known> known_{};
};

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BACKTEST_AGAINST_PRICES_H_
