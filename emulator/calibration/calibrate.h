// From measurements to a device profile: checks (measurement_checks.h), the
// tables and curves of the profile, and how well they predict what they have
// not seen (cross_validate.h).
#ifndef PIPELOOM_EMULATOR_CALIBRATION_CALIBRATE_H_
#define PIPELOOM_EMULATOR_CALIBRATION_CALIBRATE_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "emulator/calibration/cross_validate.h"
#include "emulator/calibration/measurement_checks.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

struct CalibrationOptions {
  DeviceLimits limits{};
  // What is not measured comes from here; an empty one has nothing.
  DeviceProfile base{};
  // Refusals of these kinds are reported and do not count.
  std::set<RefusalKind> accept{};
  int folds = 5;  // At least 2.
};

struct Calibration {
  DeviceProfile profile{};
  std::vector<PredictionError> errors{};  // Of cross-validation.
  std::vector<Refusal> accepted{};
};

// FailedPrecondition lists why the measurements are refused, a reason a line.
// `predict_with` makes a predictor of a profile:
// emulator/calibration/query_cost.h.
using PredictWith = std::function<absl::StatusOr<Predictor>(
    const DeviceProfile& profile, const DeviceLimits& limits)>;
absl::StatusOr<Calibration> Calibrate(absl::Span<const MeasurementFile> files,
                                      const CalibrationOptions& options,
                                      const PredictWith& predict_with);

// The curves of the collectives among the points: the median time of each
// size, made not to descend (pool adjacent violators, on logarithms). Groups of
// several ranks on each of several nodes have no place in a profile and are
// left out.
std::vector<CollectiveCurve> CurvesOfPoints(
    absl::Span<const OpMeasurement> points);

// The profile of the points alone.
DeviceProfile ProfileOfMeasurements(absl::Span<const OpMeasurement> points,
                                    const DeviceLimits& limits);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_CALIBRATE_H_
