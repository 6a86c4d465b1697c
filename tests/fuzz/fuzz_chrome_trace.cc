// Chrome traces from anywhere: an error or a step, and nothing else.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "formats/graph/chrome_trace_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  size_t at = 0;
  const auto read = [&](char* buffer, size_t room) -> absl::StatusOr<size_t> {
    const size_t n = std::min({room, size - at, size_t{7}});
    std::copy_n(reinterpret_cast<const char*>(data) + at, n, buffer);
    at += n;
    return n;
  };
  size_t bytes = 0;
  const auto info = pipeloom::formats::ReadChromeTrace(
      "fuzz", read, [&](const pipeloom::formats::ChromeEvent& event) {
        bytes += event.name.size() + event.args.size();
        return absl::OkStatus();
      });
  return info.ok() && bytes > size * 64 ? -1 : 0;
}
