// Measurements of a device: times of operators on one GPU as columns, times of
// collectives, and a few constants. emulator/cost/profile_cost.h makes costs of
// them.
//
// A table holds the points of one operator, pass and number type; row i of all
// its columns is one point. Rows may be in any order; no two rows have equal
// sizes.
#ifndef PIPELOOM_IR_PROFILE_DEVICE_PROFILE_H_
#define PIPELOOM_IR_PROFILE_DEVICE_PROFILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ir/profile/collective_profile.h"
#include "ir/profile/op_measurement.h"
#include "ir/profile/op_query.h"

namespace pipeloom {

// Matrix products Y[m, n] = X[m, k] W[n, k]^T, `groups` times. As in OpQuery
// the sizes are those of the forward product in every pass: the input gradient
// is [m, k] = [m, n] [n, k], the weight gradient, added to an fp32 buffer, [n,
// k] = [n, m] [m, k].
struct GemmTable {
  QueryPass pass = QueryPass::kForward;  // Not kBackward.
  QueryDtype dtype = QueryDtype::kBf16;
  std::vector<int64_t> m{};
  std::vector<int64_t> n{};
  std::vector<int64_t> k{};
  std::vector<int64_t> groups{};  // Empty: all 1.
  std::vector<double> us{};
  // Constants of emulator/cost/gemm_cost.h, fitted to a forward table; empty:
  // not yet fitted.
  std::vector<double> fit{};
  size_t size() const { return us.size(); }
  bool operator==(const GemmTable&) const = default;
};

// Fused attention over sequences of equal length.
struct AttentionTable {
  QueryPass pass = QueryPass::kForward;  // Or kBackward.
  QueryDtype dtype = QueryDtype::kBf16;
  QueryMask mask = QueryMask::kCausal;
  std::vector<int64_t> batch{};
  std::vector<int64_t> seq{};
  std::vector<int64_t> heads{};
  std::vector<int64_t> kv_heads{};
  std::vector<int64_t> head_dim{};   // Width of queries and keys.
  std::vector<int64_t> value_dim{};  // Empty: head_dim.
  std::vector<int64_t> window{};     // Empty: none.
  std::vector<double> us{};
  // Constants of emulator/cost/attention_cost.h; empty: not yet fitted.
  std::vector<double> fit{};
  size_t size() const { return us.size(); }
  bool operator==(const AttentionTable&) const = default;
};

// An operator bound by memory: IsStreaming(op), or kOptimizer (its rows have
// the parameters in `tokens`, and width 1). Its time depends on the bytes
// moved, MemoryBytesOf(), and a little on the width.
struct StreamTable {
  OpType op = OpType::kRmsNorm;
  QueryPass pass = QueryPass::kForward;
  QueryDtype dtype = QueryDtype::kBf16;
  std::vector<int64_t> tokens{};
  std::vector<int64_t> width{};
  std::vector<double> us{};
  size_t size() const { return us.size(); }
  bool operator==(const StreamTable&) const = default;
};

// The routed experts of one GPU: dispatch by index, two grouped products, the
// activation between them and the weighted sum.
struct MoeTable {
  QueryPass pass = QueryPass::kForward;
  QueryDtype dtype = QueryDtype::kBf16;
  std::vector<int64_t> tokens{};
  std::vector<int64_t> width{};
  std::vector<int64_t> ffn{};      // Width of one expert in this GPU's share.
  std::vector<int64_t> experts{};  // On this GPU.
  std::vector<int64_t> top_k{};    // Rows: tokens * top_k.
  std::vector<double> us{};
  size_t size() const { return us.size(); }
  bool operator==(const MoeTable&) const = default;
};

// Origin of the numbers, for the licence and for checking them.
struct ProfileSource {
  std::string section{};     // "gemm bf16", "attention backward", ...
  std::string repository{};  // "github.com/ai-dynamo/aiconfigurator"
  std::string commit{};
  std::string licence{};  // SPDX: "Apache-2.0".
  std::string changes{};  // How the numbers were processed.
  bool operator==(const ProfileSource&) const = default;
};

// Rates of the data sheet; utilisation is measured against them.
struct DeviceRates {
  double bf16_flops_per_second = 0;  // Dense.
  double fp8_flops_per_second = 0;   // 0: no fp8 units.
  double bytes_per_second = 0;       // Memory bandwidth.
  int64_t multiprocessors = 132;
  bool operator==(const DeviceRates&) const = default;
};

inline constexpr int kDeviceProfileVersion = 1;

// The measurements of one device.
struct DeviceProfile {
  std::string device{};  // As in ClusterSpec: "h100-sxm".
  // The device that was measured, if it is another: the tables hold its times,
  // and predictions are scaled by the rates of the data sheets.
  std::string derived_from{};
  DeviceRates rates{};  // Rates of the device whose times the tables hold.
  // Multiprocessors of this device if they differ from those of the device that
  // was measured; 0: the same.
  int64_t derived_multiprocessors = 0;
  // Least time from one launch to the next when the host is the bottleneck.
  double launch_us = 0;
  std::vector<GemmTable> gemm{};
  std::vector<AttentionTable> attention{};
  std::vector<StreamTable> stream{};
  std::vector<MoeTable> moe{};
  CollectiveProfile collectives{};  // Including the slowdowns by overlap.
  std::vector<ProfileSource> sources{};
  bool operator==(const DeviceProfile&) const = default;
};

// Checks the profile. Returns InvalidArgument that names table, row and field:
// columns of unequal length, sizes below 1, times not positive and finite, a
// pass that the operator does not have, two tables of one kind, rates not
// positive.
absl::Status ValidateDeviceProfile(const DeviceProfile& profile);

// Sorts the tables and their rows by kind and size; of rows with equal sizes,
// the one with the median time remains. Drops group columns that are all 1 and
// window columns that are all 0; fills in the value dimensions.
void Canonicalize(DeviceProfile* profile);

// Returns a profile with the tables of a list of points, without collectives
// and operators that no table holds (small layers). The caller fills in the
// rest.
DeviceProfile ProfileOfPoints(absl::Span<const OpMeasurement> points);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PROFILE_DEVICE_PROFILE_H_
