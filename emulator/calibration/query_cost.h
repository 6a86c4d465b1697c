// Answers of `pipeloom cost`: the time of any operator that an OpQuery names,
// and its source.
//
// Collectives are priced by emulator/network/collective_profile.h. Other
// operators become the Ops of op_graph.h and are priced by a ProfileCost.
// Compound ones are sums: moe is its gathering, two grouped products (the first
// of both halves of the gate), their activation and scattering, with a balanced
// load; small_layer is the host's launches. The source of a sum is the weakest
// of those of its parts.
#ifndef PIPELOOM_EMULATOR_CALIBRATION_QUERY_COST_H_
#define PIPELOOM_EMULATOR_CALIBRATION_QUERY_COST_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "emulator/calibration/cross_validate.h"
#include "emulator/calibration/measurement_groups.h"
#include "emulator/network/collective_profile.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/cluster_spec.h"
#include "ir/profile/device_profile.h"
#include "ir/profile/op_query.h"

namespace pipeloom::emulator {

// The time of a query with its source.
struct QueryPrice {
  double us = 0;
  CostSource source = CostSource::kRoofline;
};

// Prices of queries. Immutable and thread-safe.
class QueryCost {
 public:
  // Uses the rates and links of the cluster for whatever the profile has not
  // measured. `profile` may be null. REQUIRES: both valid.
  QueryCost(const ClusterSpec& cluster, const DeviceProfile* profile);

  // Returns the price of a query. InvalidArgument: that of ValidateOpQuery, or
  // a group that no link joins.
  absl::StatusOr<QueryPrice> Price(const OpQuery& query) const;

 private:
  absl::StatusOr<QueryPrice> CollectivePrice(const OpQuery& query) const;

  std::unique_ptr<const OpCostModel> ops_;
  CollectiveCosts collectives_;
  double launch_us_;
};

// Returns the operators on one GPU that make up the query, in order; none for
// collectives and small_layer. REQUIRES: ValidateOpQuery(query).ok().
std::vector<Op> OpsOf(const OpQuery& query);

// Returns a cluster for a device of which only the limits are known, with
// typical efficiencies and nodes of eight GPUs.
ClusterSpec ClusterOfLimits(const DeviceLimits& limits);

// Returns a predictor by the profile alone, or the InvalidArgument of
// ValidateDeviceProfile.
absl::StatusOr<Predictor> PredictorOf(const DeviceProfile& profile,
                                      const DeviceLimits& limits);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_QUERY_COST_H_
