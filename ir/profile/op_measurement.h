// Measured times of operators as read from a file, before any check of their
// plausibility.
#ifndef PIPELOOM_IR_PROFILE_OP_MEASUREMENT_H_
#define PIPELOOM_IR_PROFILE_OP_MEASUREMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "ir/profile/op_query.h"

namespace pipeloom {

// The measured time of one operator at one size.
struct OpMeasurement {
  OpQuery query{};
  double time_us = 0;  // Finite and positive.
  int32_t line = 0;    // Line in its file; 1 is the first.
};

// A name that a file gives its device, and its place.
struct DeviceMention {
  std::string device{};
  int32_t line = 0;  // 0: in the file's name.
};

// The measurements of one file.
struct MeasurementFile {
  std::string name{};
  Fingerprint content{};                 // Fingerprint of its bytes.
  std::vector<OpMeasurement> points{};   // In the file's order.
  std::vector<DeviceMention> devices{};  // Each name once.
  std::vector<std::string> warnings{};   // About rows that were left out.
};

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PROFILE_OP_MEASUREMENT_H_
