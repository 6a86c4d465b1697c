// Answers of `pipeloom cost`: the time of any operator that an OpQuery names,
// and where it comes from.
//
// Collectives: emulator/network/collective_profile.h. Other operators become
// the Ops of op_graph.h and are priced by a ProfileCost. Compound ones are
// sums: moe is its gathering, two grouped products (the first of both halves of
// the gate), their activation and scattering, with a balanced load; small_layer
// is the host's launches. A sum's source is the weakest of its parts'.
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

struct QueryPrice {
  double us = 0;
  CostSource source = CostSource::kRoofline;
};

// Read-only once made; any number of threads.
class QueryCost {
 public:
  // Where the profile has no measurement, the rates and links of the cluster
  // count. `profile` may be null. REQUIRES: both valid.
  QueryCost(const ClusterSpec& cluster, const DeviceProfile* profile);

  // InvalidArgument: ValidateOpQuery's, or a group that no link joins.
  absl::StatusOr<QueryPrice> Price(const OpQuery& query) const;

 private:
  absl::StatusOr<QueryPrice> CollectivePrice(const OpQuery& query) const;

  std::unique_ptr<const OpCostModel> ops_;
  CollectiveCosts collectives_;
  double launch_us_;
};

// The operators on one GPU that make up the query, one after another; none for
// collectives and small_layer. REQUIRES: ValidateOpQuery(query).ok().
std::vector<Op> OpsOf(const OpQuery& query);

// For a device that only its limits tell of: typical efficiencies, and nodes
// of eight.
ClusterSpec ClusterOfLimits(const DeviceLimits& limits);

// Predicts from the profile alone. InvalidArgument as ValidateDeviceProfile.
absl::StatusOr<Predictor> PredictorOf(const DeviceProfile& profile,
                                      const DeviceLimits& limits);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_QUERY_COST_H_
