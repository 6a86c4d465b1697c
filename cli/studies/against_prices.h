// The measured prices that `pipeloom emulate --against --measured` takes.
#ifndef PIPELOOM_CLI_STUDIES_AGAINST_PRICES_H_
#define PIPELOOM_CLI_STUDIES_AGAINST_PRICES_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::cli {

// A cache of prices, made once for each cluster and layout, which takes about
// 50 ms. Not thread-safe.
class AgainstPrices {
 public:
  // Returns prices by the shipped profile of the cluster's device, or else of
  // its model ("a100-vtrain": a100-sxm). They live as long as this object.
  // NotFound: neither profile ships.
  absl::StatusOr<const emulator::OpCostModel*> Of(
      const ClusterSpec& cluster, const ParallelLayout& parallel,
      const std::string& data_dir);

 private:
  struct Known {
    ClusterSpec cluster{};
    ParallelLayout parallel{};
    std::unique_ptr<const emulator::OpCostModel> costs{};
  };

  absl::StatusOr<const DeviceProfile*> ProfileOf(const std::string& device,
                                                 const std::string& data_dir);

  std::map<std::string, DeviceProfile> profiles_{};
  std::vector<Known> known_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_AGAINST_PRICES_H_
