// The events of measured traces that Pipeloom understands (trace_import.h lists
// them), read as a stream: only tasks and transfers are kept.
#ifndef PIPELOOM_TRACE_TRACE_EVENTS_H_
#define PIPELOOM_TRACE_TRACE_EVENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/graph/chrome_trace_reader.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::trace {

struct TraceSource {
  std::string name{};  // The file's name, for errors.
  formats::ChunkReader read{};
};

struct TraceTaskKey {
  std::string module{};
  int32_t stage = 0;
  Pass pass = Pass::kForward;
  int32_t microbatch = 0;
  int32_t sub = 0;
  friend auto operator<=>(const TraceTaskKey&, const TraceTaskKey&) = default;
};

struct TraceTask {
  TraceTaskKey key{};
  int32_t rank = 0;
  int64_t start = 0;  // On the local clock, ns.
  int64_t end = 0;
  int64_t id = -1;    // Task number in Pipeloom's own traces; -1: unknown.
  int32_t step = -1;  // The training's; -1: unknown.
  std::vector<int64_t> inputs{};
  bool has_inputs = false;
  bool recomputes = false;
  bool only_input_grad = false;  // Whether a weight gradient has to follow it.
  bool overlaps = false;  // Whether a part of it ran in an earlier backward.
};

// A send or receive of the tensor that a pass makes.
struct TraceMove {
  bool send = false;
  Pass pass = Pass::kForward;
  int32_t stage = 0;  // The stage that sends or receives.
  int32_t microbatch = 0;
  int64_t start = 0;
  int64_t end = 0;
};

struct TraceEvents {
  std::vector<TraceTask> tasks{};
  std::vector<TraceMove> moved{};
  std::vector<TraceTask> epilogues{};
  int64_t count = 0;  // Number of all events in the files.
};

// Reads the events of all files. Each file is one rank, or its tasks say their
// rank. Where a file of PyTorch's profiler has the executions of named ranges
// on the GPU, their launches on the CPU are left out. InvalidArgument: a file
// is malformed or compressed, an event takes less than 0 us, or two files
// belong to the same rank. ResourceExhausted: there are more than four million
// tasks.
absl::StatusOr<TraceEvents> ReadTraceEvents(
    const std::vector<TraceSource>& sources);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_TRACE_EVENTS_H_
