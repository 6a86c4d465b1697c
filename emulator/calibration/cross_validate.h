// Cross-validation: how well a model made of measurements predicts points that
// it was not made from.
//
// Points are split by site, not by row: all points of one pair of matrix
// widths, one shape of heads or one size of a collective go together, so that a
// site is predicted from others. Deterministic: the fold is a hash of the site.
#ifndef PIPELOOM_EMULATOR_CALIBRATION_CROSS_VALIDATE_H_
#define PIPELOOM_EMULATOR_CALIBRATION_CROSS_VALIDATE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/profile/op_measurement.h"

namespace pipeloom::emulator {

// A function that returns the time of a query in us.
using Predictor = std::function<double(const OpQuery&)>;
// A function that makes a predictor of points, which need not outlive the call.
using FitPoints =
    std::function<absl::StatusOr<Predictor>(absl::Span<const OpMeasurement>)>;

// The prediction errors of one operator, pass and type.
struct PredictionError {
  OpType op = OpType::kGemm;
  QueryPass pass = QueryPass::kForward;
  QueryDtype dtype = QueryDtype::kBf16;
  int64_t points = 0;
  int64_t sites = 0;
  // Statistics of |predicted / measured - 1|.
  double mean = 0;
  double median = 0;
  double worst = 0;
  OpMeasurement worst_point{};
  double worst_us = 0;  // Predicted time of worst_point, us.
};

// Returns the errors sorted by op, pass and type. An operator with only one
// site cannot be judged and has no row. REQUIRES: folds >= 2.
absl::StatusOr<std::vector<PredictionError>> CrossValidate(
    absl::Span<const OpMeasurement> points, int folds, const FitPoints& fit);

// Returns the errors of a predictor on points, by op, pass and type.
std::vector<PredictionError> ErrorsOf(absl::Span<const OpMeasurement> points,
                                      const Predictor& predict);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_CROSS_VALIDATE_H_
