// Measurements of operators from CSV files, by the names of their columns.
// docs/calibration.md describes the formats: our own, which measure_gpu.py
// writes, and those of public data sets where their columns leave no doubt
// (AIConfigurator, SimuMax GEMMs, cuDNN benchmarks, vidur and vTrain networks).
#ifndef PIPELOOM_FORMATS_PROFILE_MEASUREMENT_READER_H_
#define PIPELOOM_FORMATS_PROFILE_MEASUREMENT_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/profile/op_measurement.h"

namespace pipeloom::formats {

// InvalidArgument "FILE:LINE: ...": not a CSV, columns that tell no operator
// or no time, a cell that is no number, a time that is not positive and
// finite, a shape that ValidateOpQuery refuses. Rows that say themselves that
// they failed (column "success") and passes without a time are left out with a
// warning. The file's name counts where no column does: its words for the
// operator, the type, the mask and the device.
absl::StatusOr<MeasurementFile> ParseMeasurements(absl::string_view text,
                                                  const std::string& file_name);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_MEASUREMENT_READER_H_
