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

// Of each cluster and layout made once, about 50 ms each. One thread.
class AgainstPrices {
 public:
  // By the shipped profile of the cluster's device, or else of its model
  // ("a100-vtrain": a100-sxm); lives as long as this. NotFound: neither ships.
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
