// Measured times of operators as they come out of a file, before anyone has
// looked at whether they make sense.
#ifndef PIPELOOM_IR_PROFILE_OP_MEASUREMENT_H_
#define PIPELOOM_IR_PROFILE_OP_MEASUREMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "ir/profile/op_query.h"

namespace pipeloom {

struct OpMeasurement {
  OpQuery query{};
  double time_us = 0;  // Finite and positive.
  int32_t line = 0;    // Of its file; 1 is the first.
};

// A name that a file gives its device, and where.
struct DeviceMention {
  std::string device{};
  int32_t line = 0;  // 0: in the file's name.
};

struct MeasurementFile {
  std::string name{};
  Fingerprint content{};                 // Of its bytes.
  std::vector<OpMeasurement> points{};   // In the file's order.
  std::vector<DeviceMention> devices{};  // Each name once.
  std::vector<std::string> warnings{};   // Rows that were left out.
};

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PROFILE_OP_MEASUREMENT_H_
