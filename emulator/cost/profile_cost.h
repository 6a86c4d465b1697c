// Operator times from a device profile, each by the first that applies:
//
//   1. a measured point of exactly this operator, pass, type and size;
//   2. between points, in utilisation: gemm_cost.h, attention_cost.h,
//      stream_cost.h, each a small model of the kernel times a factor that is
//      interpolated from the points near by and held beyond them;
//   3. roofline_cost.h.
//
// A profile of another device than the cluster's, or of that device with other
// rates, is carried over by the rates alone: the models see those of the
// cluster's device, the factors stay, and no point counts as measured.
//
// Collectives, where the profile has curves of them (collective_profile.h): by
// operation, group size and link, else the ring model, with the cluster's
// cards between nodes. A link inside the node that is not the profile's
// (CollectiveProfile::node_bytes_per_second) stretches them as it stretches
// the ring model. Without curves: the links of the cluster (roofline_cost.h).
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

class ProfileCost : public OpCostModel {
 public:
  // Copies what it needs. REQUIRES: all three valid. About 10 ms for a table
  // of 20,000 points, and 50 ms more for one that is not fitted yet.
  // `least`: of an operator with work, where the host's launches are the bound;
  // a price that it raises counts as roofline.
  ProfileCost(const ClusterSpec& cluster, const ParallelLayout& parallel,
              const DeviceProfile& profile, Duration least = kZero);
  ~ProfileCost() override;

  Duration Cost(const Op& op) const override { return Price(op).time; }
  OpPrice Price(const Op& op) const override;
  // Slowed down as the profile's collectives say; factors of 1 (or a profile
  // without any): the longer of the two.
  Duration Overlap(Duration compute, Duration communication) const override;
  // None where compute slows communication down.
  Duration RoomDuring(Duration communication) const override;

  // The same for another layout of the cluster: what a GPU does alone, and its
  // prices so far, are shared. Microseconds.
  std::unique_ptr<const ProfileCost> ForLayout(
      const ParallelLayout& parallel) const;

 private:
  struct Alone;
  struct State;
  explicit ProfileCost(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

// What MakeOpCosts gives for another layout of the same cluster, without
// fitting the tables anew; null where it cannot be had from `like` so.
std::unique_ptr<const OpCostModel> OpCostsForLayout(
    const OpCostModel& like, const ParallelLayout& parallel);

// A ProfileCost, or a RooflineCost where `profile` is null; that has the
// device's kernel_overhead as its least time, whatever `least` is. Node groups
// of the cluster: by the profile of their device, if it is the cluster's.
std::unique_ptr<const OpCostModel> MakeOpCosts(const ClusterSpec& cluster,
                                               const ParallelLayout& parallel,
                                               const DeviceProfile* profile,
                                               Duration least = kZero);

// The same with the profile of each device by `profile_of`, called with the
// device's name; null: none. Each device's kernel_overhead is its least time.
std::unique_ptr<const OpCostModel> MakeOpCosts(
    const ClusterSpec& cluster, const ParallelLayout& parallel,
    absl::FunctionRef<const DeviceProfile*(const std::string&)> profile_of);

// The kinds of operators that the profile has no measurements of, and what
// they cost instead, a line each: "attention full backward bf16: forward times
// the ratio of the causal one". A null profile: one line.
std::vector<std::string> MissingMeasurements(const DeviceProfile* profile);

// The look-ups of a job that no measurement answers, a line each with what
// prices them instead: of every layer of its model on a typical shape, and of
// the update. Sorted. Pure; milliseconds.
std::vector<std::string> MissingLookups(const JobSpec& job,
                                        const OpCostModel& costs);

// Which rates of the device are not those that its profile was measured at, and
// by which factors: "memory bandwidth x 0.5". Prices then follow the rates, and
// no point counts as measured. Empty: none, or a profile of another device.
std::string RateChange(const DeviceSpec& device, const DeviceProfile& profile);

// Fits the constants of all tables that have none. About 50 ms a table.
void FitProfile(DeviceProfile* profile);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_PROFILE_COST_H_
