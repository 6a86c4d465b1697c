// Whether measurements can be what they say: checks before a device profile is
// made of them.
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

enum class RefusalKind {
  kMislabelled,    // Another device, type or operator than it says.
  kDuplicateFile,  // Two files of the same bytes.
  kDisagreeing,    // One shape, two times far apart.
  kNonPhysical,    // Faster than the device can be.
  kNonMonotone,    // More work, much less time.
  kColdStart,      // The first rows, or all along a trend, much slower.
  kTooFew,         // Not enough points for an operator.
};
inline constexpr int kNumRefusalKinds = 7;

// "mislabelled", "duplicate-file", ...
absl::string_view Name(RefusalKind kind);

struct Refusal {
  RefusalKind kind = RefusalKind::kMislabelled;
  std::string why{};  // Names the file, the line and what is wrong.
};

// By kind; at most a few of each kind. Empty: all is well.
std::vector<Refusal> CheckMeasurements(absl::Span<const MeasurementFile> files,
                                       const DeviceLimits& limits);

// Whether a file's word for its GPU ("NVIDIA H100 80GB HBM3", "a100_sxm")
// can be the device `name`: the same model, no other form factor.
bool SameDevice(absl::string_view mention, absl::string_view name);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_MEASUREMENT_CHECKS_H_
