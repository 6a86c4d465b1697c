// Calibration: from measurements to a device profile, with checks
// (measurement_checks.h), the tables and curves of the profile, and how well
// they predict points they were not made from (cross_validate.h).
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

// Options of Calibrate().
struct CalibrationOptions {
  DeviceLimits limits{};
  // Profile that supplies whatever is not measured; an empty one supplies
  // nothing.
  DeviceProfile base{};
  // Refusals of these kinds are reported but do not fail the calibration.
  std::set<RefusalKind> accept{};
  int folds = 5;  // At least 2.
};

// The result of Calibrate().
struct Calibration {
  DeviceProfile profile{};
  std::vector<PredictionError> errors{};  // Errors of the cross-validation.
  std::vector<Refusal> accepted{};
  // The rows that a profile has no use for, by reason: their number, what they
  // are, and why. Among them are 16-bit products with a width that is no
  // multiple of 8: they take several times as long as products of almost the
  // same widths (product_alignment.h).
  std::vector<std::string> left_out{};
};

// A function that makes a predictor of a profile, such as PredictorOf() of
// emulator/calibration/query_cost.h.
using PredictWith = std::function<absl::StatusOr<Predictor>(
    const DeviceProfile& profile, const DeviceLimits& limits)>;
// Makes a profile of the measurements. FailedPrecondition lists why they are
// refused, one reason per line, or what was left out if nothing else is there.
absl::StatusOr<Calibration> Calibrate(absl::Span<const MeasurementFile> files,
                                      const CalibrationOptions& options,
                                      const PredictWith& predict_with);

// Returns the curves of the collectives among the points: the median time of
// each size, made not to descend (pool adjacent violators, on logarithms).
// Leaves out groups of several ranks on each of several nodes, which a profile
// has no place for.
std::vector<CollectiveCurve> CurvesOfPoints(
    absl::Span<const OpMeasurement> points);

// Returns the profile of the points alone.
DeviceProfile ProfileOfMeasurements(absl::Span<const OpMeasurement> points,
                                    const DeviceLimits& limits);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_CALIBRATE_H_
