// The measured prices of the clusters of a backtest.
#ifndef PIPELOOM_STUDIES_BACKTEST_AGAINST_PRICES_H_
#define PIPELOOM_STUDIES_BACKTEST_AGAINST_PRICES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "formats/job/spec_loader.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::studies {

// A cache of prices, made once for each cluster and layout, which takes about
// 50 ms. Not thread-safe.
class AgainstPrices {
 public:
  // Returns prices by the shipped profile of the cluster's device, or else of
  // its model ("a100-vtrain": a100-sxm). They live as long as this object.
  // NotFound: neither profile ships.
  absl::StatusOr<const emulator::OpCostModel*> Of(
      const ClusterSpec& cluster, const ParallelLayout& parallel,
      const std::string& data_dir, const formats::FileReader& read);

 private:
  struct Known {
    ClusterSpec cluster{};
    ParallelLayout parallel{};
    std::unique_ptr<const emulator::OpCostModel> costs{};
  };

  absl::StatusOr<const DeviceProfile*> ProfileOf(
      const std::string& device, const std::string& data_dir,
      const formats::FileReader& read);

  std::map<std::string, DeviceProfile> profiles_{};
  std::vector<Known> known_{};
};

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BACKTEST_AGAINST_PRICES_H_
