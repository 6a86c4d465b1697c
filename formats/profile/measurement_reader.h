// Reader of measurements of operators in CSV files, by the names of their
// columns. docs/calibration.md describes the formats: our own, which
// measure_gpu.py writes, and those of public data sets if their columns leave
// no doubt (AIConfigurator, SimuMax GEMMs, cuDNN benchmarks, vidur and vTrain
// networks).
#ifndef PIPELOOM_FORMATS_PROFILE_MEASUREMENT_READER_H_
#define PIPELOOM_FORMATS_PROFILE_MEASUREMENT_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/profile/op_measurement.h"

namespace pipeloom::formats {

// Parses a file. InvalidArgument "FILE:LINE: ...": not a CSV, columns that name
// no operator or no time, a cell that is not a number, a time that is not
// positive and finite, a shape that ValidateOpQuery refuses. Rows marked as
// failed (column "success") and passes without a time are left out with a
// warning. Words of the file's name give the operator, the type, the mask and
// the device if no column does.
absl::StatusOr<MeasurementFile> ParseMeasurements(absl::string_view text,
                                                  const std::string& file_name);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_MEASUREMENT_READER_H_
