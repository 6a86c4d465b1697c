// Check that a group of measurements was taken on a device in its steady state.
//
// Each row is compared with its nearest neighbours in size, both as multiples
// of a roofline with a floor, so that the order of sizes in a file does not
// matter. Rows at the front that are slower than their neighbours were taken
// cold; a difference between the last and the first third is a drift.
#ifndef PIPELOOM_EMULATOR_CALIBRATION_WARMTH_CHECK_H_
#define PIPELOOM_EMULATOR_CALIBRATION_WARMTH_CHECK_H_

#include <vector>

#include "emulator/calibration/measurement_groups.h"
#include "ir/profile/op_measurement.h"

namespace pipeloom::emulator {

// How far measurements deviate from a steady state.
struct Warmth {
  // How many times slower than their neighbours the first rows are, and
  // (`drift`) the last third against the first; 1: not slower.
  double first_rows = 1;
  int first_count = 0;  // Number of first rows.
  double drift = 1;
  // Returns whether the first rows were taken cold.
  bool cold() const;
  // Returns whether the measurements drift.
  bool drifts() const;
};

// Measures the points that a group has of one file, in the file's order.
Warmth MeasureWarmth(const std::vector<const OpMeasurement*>& rows,
                     const DeviceLimits& limits);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CALIBRATION_WARMTH_CHECK_H_
