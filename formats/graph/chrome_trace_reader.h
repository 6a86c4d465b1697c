// Reader of Chrome traces (JSON) as a stream of events, as PyTorch's profiler
// (Kineto) and Pipeloom write them. Memory is bounded for files of any size:
// one event at a time is kept. Format: "Trace Event Format", Google, 2016.
#ifndef PIPELOOM_FORMATS_GRAPH_CHROME_TRACE_READER_H_
#define PIPELOOM_FORMATS_GRAPH_CHROME_TRACE_READER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {

// One event of a trace.
struct ChromeEvent {
  std::string name{};
  std::string category{};
  std::string phase{};
  int64_t process = -1;
  int64_t thread = -1;
  bool has_time = false;
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  // Plain values of "args", as text; lists and objects in them are left out.
  std::vector<std::pair<std::string, std::string>> args{};

  // Returns the value of an argument; null if there is none.
  const std::string* Arg(absl::string_view key) const;
};

// Data about a whole trace.
struct ChromeTraceInfo {
  int64_t rank = -1;  // From "distributedInfo"; -1: not given.
  int64_t events = 0;
};

// A function that fills `buffer` with up to `size` bytes and returns their
// number; 0 at the end.
using ChunkReader =
    std::function<absl::StatusOr<size_t>(char* buffer, size_t size)>;

// Calls `visit` with every event, in their order, until it returns an error.
// The file is a list of events or an object with "traceEvents". InvalidArgument
// says at which byte: not JSON, truncated, no events, or a name or number of
// more than a mebibyte. O(bytes) time.
absl::StatusOr<ChromeTraceInfo> ReadChromeTrace(
    const std::string& file_name, const ChunkReader& read,
    absl::FunctionRef<absl::Status(const ChromeEvent&)> visit);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_GRAPH_CHROME_TRACE_READER_H_
