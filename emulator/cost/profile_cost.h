// Operator times from a device profile, each by the first that applies:
//
//   1. a measured point of exactly this operator, pass, type and size;
//   2. between points, in utilisation: gemm_cost.h, attention_cost.h,
//      stream_cost.h, each a small model of the kernel times a factor that is
//      interpolated from nearby points and constant beyond them;
//   3. roofline_cost.h.
//
// A profile of another device than the cluster's, or of that device with other
// rates, is adapted by the rates alone: the models use those of the cluster's
// device, the factors stay, and no point of an operator that uses a changed
// rate counts as measured; on another device, none at all.
//
// Collectives, if the profile has curves of them (collective_profile.h), are
// priced by operation, group size and link, else by the ring model, with the
// cluster's cards between nodes. If the link inside the node differs from the
// profile's (CollectiveProfile::node_bytes_per_second), their times are scaled
// as those of the ring model; where latencies differ from the profile's
// (node_latency_us, nic_latency_us), by the steps that the ring model takes.
// Without curves: the links of the cluster
// (roofline_cost.h).
#ifndef PIPELOOM_EMULATOR_COST_PROFILE_COST_H_
#define PIPELOOM_EMULATOR_COST_PROFILE_COST_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

// Prices of operators by a device profile.
class ProfileCost : public OpCostModel {
 public:
  // Copies what it needs. REQUIRES: all three valid. About 10 ms for a table of
  // 20,000 points, and 100 ms more for one that is not fitted yet. `least` is
  // the least time of an operator with work, when the host's launches are the
  // bottleneck; a price that it raises counts as roofline.
  ProfileCost(const ClusterSpec& cluster, const ParallelLayout& parallel,
              const DeviceProfile& profile, Duration least = kZero);
  ~ProfileCost() override;

  Duration Cost(const Op& op) const override { return Price(op).time; }
  OpPrice Price(const Op& op) const override;
  // Applies the slowdowns of the profile's collectives; with factors of 1 (or a
  // profile without any) it is the longer of the two.
  Duration Overlap(Duration compute, Duration communication) const override;
  // Returns 0 if compute slows communication down.
  Duration RoomDuring(Duration communication) const override;

  // Returns the model for another layout of the cluster. Times of a GPU alone,
  // and prices found so far, are shared. Takes microseconds.
  std::unique_ptr<const ProfileCost> ForLayout(
      const ParallelLayout& parallel) const;

 private:
  struct Alone;
  struct State;
  explicit ProfileCost(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

// Returns what MakeOpCosts would return for another layout of the same cluster,
// without fitting the tables again; null if `like` does not support that.
std::unique_ptr<const OpCostModel> OpCostsForLayout(
    const OpCostModel& like, const ParallelLayout& parallel);

// Returns a ProfileCost, or, if `profile` is null, a RooflineCost, which has
// the device's kernel_overhead as its least time instead of `least`. Node
// groups of the cluster use the profile if it is of their device.
std::unique_ptr<const OpCostModel> MakeOpCosts(const ClusterSpec& cluster,
                                               const ParallelLayout& parallel,
                                               const DeviceProfile* profile,
                                               Duration least = kZero);

// Returns the same with the profiles that `profile_of` returns for the names of
// devices; null: none. The least time on each device is its kernel_overhead.
std::unique_ptr<const OpCostModel> MakeOpCosts(
    const ClusterSpec& cluster, const ParallelLayout& parallel,
    absl::FunctionRef<const DeviceProfile*(const std::string&)> profile_of);

// Returns a line for each kind of operator that the profile has no measurements
// of, with what prices it instead: "attention full backward bf16: forward times
// the ratio of the causal one". One line for a null profile.
std::vector<std::string> MissingMeasurements(const DeviceProfile* profile);

// Returns a sorted line for each look-up of a job that no measurement answers,
// with what prices it instead. Covers every layer of its model on a typical
// shape, and the update. Pure; takes milliseconds.
std::vector<std::string> MissingLookups(const JobSpec& job,
                                        const OpCostModel& costs);

// Describes the rates of the device that differ from those that the profile was
// measured at, and their factors: "memory bandwidth x 0.5". Prices then follow
// the rates, and no point counts as measured. Empty if none differ, or if the
// profile is the device's own and was derived from another's.
std::string RateChange(const DeviceSpec& device, const DeviceProfile& profile);

// Fits the constants of all tables that have none. About 100 ms per table.
void FitProfile(DeviceProfile* profile);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_PROFILE_COST_H_
