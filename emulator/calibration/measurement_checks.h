// Plausibility checks of measurements, made before a device profile is made of
// them.
//
// Thresholds are wide enough for real data: in public tables with unlocked
// clocks, one shape measured on one GPU twice differs by up to 1.9 times.
// docs/calibration.md lists them. Cost: O(n log n), and a few hundred scans of
// all points for the check of cold starts.
#ifndef PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_CHECKS_H_
#define PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_CHECKS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "emulator/calibration/measurement_groups.h"
#include "ir/profile/op_measurement.h"

namespace pipeloom::emulator {

// The reasons for refusing measurements.
enum class RefusalKind {
  kMislabelled,    // The device, type or operator is not the one stated.
  kDuplicateFile,  // Two files with the same bytes.
  kDisagreeing,    // Times of one shape that are far apart.
  kNonPhysical,    // Faster than the device can be.
  kNonMonotone,    // More work in much less time.
  kColdStart,      // The first rows much slower, or a trend over all rows.
  kTooFew,         // Not enough points for an operator.
};
inline constexpr int kNumRefusalKinds = 7;

// Returns "mislabelled", "duplicate-file", ...
absl::string_view Name(RefusalKind kind);

// A refusal of measurements.
struct Refusal {
  RefusalKind kind = RefusalKind::kMislabelled;
  std::string why{};  // Names the file, the line and the fault.
};

// Returns the refusals sorted by kind, at most a few of each kind. Empty: none.
std::vector<Refusal> CheckMeasurements(absl::Span<const MeasurementFile> files,
                                       const DeviceLimits& limits);

// Returns whether a file's name for its GPU ("NVIDIA H100 80GB HBM3",
// "a100_sxm") can mean the device `name`: the same model, no other form factor.
bool SameDevice(absl::string_view mention, absl::string_view name);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_CHECKS_H_
