#include "base/units.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/str_format.h"

namespace pipeloom {

std::string FormatDuration(Duration d) {
  const int64_t magnitude = std::abs(d.count());
  if (magnitude >= 1'000'000'000)
    return absl::StrFormat("%.3f s", ToSeconds(d));
  if (magnitude >= 1'000'000) {
    return absl::StrFormat("%.3f ms", ToMilliseconds(d));
  }
  if (magnitude >= 1'000) return absl::StrFormat("%.3f us", ToMicroseconds(d));
  return absl::StrFormat("%d ns", d.count());
}

namespace {

struct ByteUnit {
  double bytes;
  const char* name;
};

// Returns the unit that a size is given in; null for bytes.
const ByteUnit* UnitOf(Bytes b) {
  static constexpr ByteUnit kUnits[] = {
      {1024.0 * 1024 * 1024, "GiB"}, {1024.0 * 1024, "MiB"}, {1024.0, "KiB"}};
  for (const ByteUnit& unit : kUnits) {
    if (std::abs(static_cast<double>(b.count())) >= unit.bytes) return &unit;
  }
  return nullptr;
}

Bytes RoundAsFormatted(Bytes b, double (*round)(double)) {
  const ByteUnit* const unit = UnitOf(b);
  if (unit == nullptr) return b;
  const double hundredths =
      round(static_cast<double>(b.count()) / unit->bytes * 100);
  return Bytes(std::llround(hundredths / 100 * unit->bytes));
}

}  // namespace

std::string FormatBytes(Bytes b) {
  const ByteUnit* const unit = UnitOf(b);
  if (unit == nullptr) return absl::StrFormat("%d B", b.count());
  return absl::StrFormat(
      "%.2f %s", static_cast<double>(b.count()) / unit->bytes, unit->name);
}

Bytes RoundUpAsFormatted(Bytes b) {
  return RoundAsFormatted(b, [](double x) { return std::ceil(x); });
}
Bytes RoundDownAsFormatted(Bytes b) {
  return RoundAsFormatted(b, [](double x) { return std::floor(x); });
}

}  // namespace pipeloom
