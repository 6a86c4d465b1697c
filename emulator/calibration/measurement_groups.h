// Measurements grouped by what they can be compared with.
#ifndef PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_GROUPS_H_
#define PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_GROUPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ir/profile/op_measurement.h"

namespace pipeloom::emulator {

// Limits that a device cannot exceed; 0: not known.
struct DeviceLimits {
  std::string name{};  // "h100-sxm"
  double bf16_flops_per_second = 0;
  double fp8_flops_per_second = 0;
  double memory_bytes_per_second = 0;
  // To other GPUs of the node, in one direction.
  double link_bytes_per_second = 0;
  int64_t multiprocessors = 132;
  bool operator==(const DeviceLimits&) const = default;
};

// A measurement and the file that it is from.
struct MeasuredPoint {
  const OpMeasurement* point = nullptr;
  int32_t file = 0;  // Index of its file.
};

// Points with the same operator, pass, type, mask, span and ranks, in the order
// of the files.
struct MeasurementGroup {
  std::vector<MeasuredPoint> points{};
  const OpQuery& query() const { return points.front().point->query; }
};

// Groups the measurements; the groups are sorted by those fields. REQUIRES: the
// files outlive the groups.
std::vector<MeasurementGroup> GroupMeasurements(
    absl::Span<const MeasurementFile> files);

// Returns the sizes that, when larger, make the operator take longer, all else
// equal.
const std::vector<int64_t OpQuery::*>& SizesOf(OpType op);

// Returns the shortest time in us that the device's rates allow, at four fifths
// of the peak. Uses the rates of a typical device if they are not known, as
// only ratios matter then.
double RooflineUs(const OpQuery& query, const DeviceLimits& limits);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_GROUPS_H_
