// Chrome traces (JSON) as a stream of events: what PyTorch's profiler (Kineto)
// and Pipeloom write. Memory is bounded whatever the size of the file: one
// event at a time is kept. Format: "Trace Event Format", Google, 2016.
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

  // Null if there is none.
  const std::string* Arg(absl::string_view key) const;
};

struct ChromeTraceInfo {
  int64_t rank = -1;  // Of "distributedInfo"; -1: it does not say.
  int64_t events = 0;
};

// Fills `buffer` with up to `size` bytes; 0 is the end.
using ChunkReader =
    std::function<absl::StatusOr<size_t>(char* buffer, size_t size)>;

// Calls `visit` with every event, in their order, until it returns an error.
// The file is a list of events or an object with "traceEvents".
// InvalidArgument: not JSON, cut off, no events in it, a name or number of more
// than a mebibyte; says at which byte. O(bytes) time.
absl::StatusOr<ChromeTraceInfo> ReadChromeTrace(
    const std::string& file_name, const ChunkReader& read,
    absl::FunctionRef<absl::Status(const ChromeEvent&)> visit);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_GRAPH_CHROME_TRACE_READER_H_
