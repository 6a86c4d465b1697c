#include "ir/profile/collective_profile.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

constexpr double kMaxSlowdown = 10;
constexpr double kMaxUs = 1e12;

absl::Status Refuse(const CollectiveCurve& curve, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("collectives: ", Name(curve.op), " of ", curve.ranks,
                   " ranks, ", Name(curve.span), ": ", what));
}

absl::Status ValidateCurve(const CollectiveCurve& curve) {
  if (!IsCollective(curve.op)) return Refuse(curve, "op must be a collective");
  if (curve.ranks < 2) return Refuse(curve, "ranks must be at least 2");
  if (curve.bytes.empty() || curve.bytes.size() != curve.us.size()) {
    return Refuse(
        curve, absl::StrCat(curve.bytes.size(), " bytes and ", curve.us.size(),
                            " us; there must be as many of each, and "
                            "one at least"));
  }
  for (size_t i = 0; i < curve.bytes.size(); ++i) {
    if (curve.bytes[i] < 1 || (i > 0 && curve.bytes[i] <= curve.bytes[i - 1])) {
      return Refuse(curve, absl::StrCat("bytes[", i, "] is ", curve.bytes[i],
                                        "; sizes must be positive and ascend"));
    }
    if (!(curve.us[i] > 0) || curve.us[i] > kMaxUs ||
        (i > 0 && curve.us[i] < curve.us[i - 1])) {
      return Refuse(curve,
                    absl::StrCat("us[", i, "] is ", curve.us[i],
                                 "; times must be positive and not descend"));
    }
  }
  for (const int64_t size : curve.estimated) {
    if (!std::binary_search(curve.bytes.begin(), curve.bytes.end(), size)) {
      return Refuse(
          curve, absl::StrCat("estimated has ", size, ", which bytes has not"));
    }
  }
  if (!std::is_sorted(curve.estimated.begin(), curve.estimated.end())) {
    return Refuse(curve, "estimated must ascend");
  }
  return absl::OkStatus();
}

absl::Status CheckNumber(absl::string_view name, double value, double least,
                         double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("collectives: field \"", name, "\" is ", value,
                   "; it must be in [", least, ", ", most, "]"));
}

}  // namespace

absl::Status ValidateCollectiveProfile(const CollectiveProfile& profile) {
  const auto key = [](const CollectiveCurve& c) {
    return std::tuple(c.op, c.span, c.ranks);
  };
  for (size_t i = 0; i < profile.curves.size(); ++i) {
    PIPELOOM_RETURN_IF_ERROR(ValidateCurve(profile.curves[i]));
    if (i > 0 && key(profile.curves[i]) <= key(profile.curves[i - 1])) {
      return Refuse(profile.curves[i],
                    "curves must be sorted by op, span and ranks, and no two "
                    "may have the same");
    }
  }
  PIPELOOM_RETURN_IF_ERROR(CheckNumber("nic_bytes_per_second",
                                       profile.nic_bytes_per_second, 0, 1e15));
  PIPELOOM_RETURN_IF_ERROR(CheckNumber("node_bytes_per_second",
                                       profile.node_bytes_per_second, 0, 1e15));
  PIPELOOM_RETURN_IF_ERROR(
      CheckNumber("node_latency_us", profile.node_latency_us, 0, 1e9));
  PIPELOOM_RETURN_IF_ERROR(
      CheckNumber("nic_latency_us", profile.nic_latency_us, 0, 1e9));
  PIPELOOM_RETURN_IF_ERROR(CheckNumber(
      "gpus_per_node", static_cast<double>(profile.gpus_per_node), 1, 1e6));
  PIPELOOM_RETURN_IF_ERROR(CheckNumber(
      "compute_slowdown", profile.compute_slowdown, 1, kMaxSlowdown));
  return CheckNumber("communication_slowdown", profile.communication_slowdown,
                     1, kMaxSlowdown);
}

}  // namespace pipeloom
