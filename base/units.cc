#include "base/units.h"

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

std::string FormatBytes(Bytes b) {
  const double count = static_cast<double>(b.count());
  const double magnitude = std::abs(count);
  if (magnitude >= 1024.0 * 1024 * 1024) {
    return absl::StrFormat("%.2f GiB", count / (1024.0 * 1024 * 1024));
  }
  if (magnitude >= 1024.0 * 1024) {
    return absl::StrFormat("%.2f MiB", count / (1024.0 * 1024));
  }
  if (magnitude >= 1024.0) return absl::StrFormat("%.2f KiB", count / 1024.0);
  return absl::StrFormat("%d B", b.count());
}

}  // namespace pipeloom
