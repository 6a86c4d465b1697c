// Any bytes as a CSV of measurements: an error, or points that are operators
// with a time, and checks that survive them. The first byte picks the file's
// name, which tells what columns do not.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "emulator/calibration/measurement_checks.h"
#include "formats/profile/measurement_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const char* const kNames[] = {"fuzz.csv", "gemm_h100_fp8.csv",
                                       "attn_causal.csv", "all_reduce.csv",
                                       "attn_encoder_l40s.csv"};
  const std::string name = size > 0 ? kNames[data[0] % 5] : kNames[0];
  absl::string_view text(reinterpret_cast<const char*>(data), size);
  if (!text.empty()) text.remove_prefix(1);
  const auto file = pipeloom::formats::ParseMeasurements(text, name);
  if (!file.ok()) {
    PIPELOOM_CHECK(!file.status().message().empty());
    return 0;
  }
  PIPELOOM_CHECK(!file->points.empty());
  for (const pipeloom::OpMeasurement& point : file->points) {
    PIPELOOM_CHECK(pipeloom::ValidateOpQuery(point.query).ok());
    PIPELOOM_CHECK(std::isfinite(point.time_us) && point.time_us > 0);
    PIPELOOM_CHECK(point.line > 1);
  }
  pipeloom::emulator::DeviceLimits limits;
  limits.name = "h100-sxm";
  limits.bf16_flops_per_second = 989e12;
  limits.memory_bytes_per_second = 3350e9;
  limits.link_bytes_per_second = 450e9;
  for (const auto& refusal :
       pipeloom::emulator::CheckMeasurements({*file}, limits)) {
    PIPELOOM_CHECK(!refusal.why.empty());
  }
  return 0;
}
