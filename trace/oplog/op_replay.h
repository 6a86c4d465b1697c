// Replays one step of an operation log with other durations.
//
// A worker runs its operations one after another, in the order of the log.
// Sends and receives that a worker began at the same time are one group: it
// goes on when all of them have ended. A communication begins to transfer when
// all workers that take part have come to it, and takes its own time from then
// on:
//
//   FS, FR; BS, BR   of two neighbouring stages, the n-th with the n-th
//   AG, RS           the replicas of a stage
//   EM               first and last stage of a replica
//   CLIP             all workers
//
// The own time of a communication is what of the measured time came after the
// last had arrived. Of a send or receive in a group it is at most the median of
// its kind, as the group's end may be another's. Between two operations a
// worker waits for as long as it did in the log: launches and the trainer's own
// code.
#ifndef PIPELOOM_TRACE_OPLOG_OP_REPLAY_H_
#define PIPELOOM_TRACE_OPLOG_OP_REPLAY_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "trace/oplog/op_log.h"

namespace pipeloom::trace {

// An operation with the time that is its own.
struct OwnTime {
  OpKind kind = OpKind::kForward;
  int32_t replica = 0;
  int32_t stage = 0;
  int32_t microbatch = -1;  // Also of sends and receives; -1: none.
  Duration time{};          // Without waiting for others.
};

class OpReplay {
 public:
  // Prepares a replay; O(n log n). InvalidArgument: sends and receives of two
  // stages, or the calls of a collective, do not match in number, or no order
  // can carry them out; names step and worker.
  static absl::StatusOr<OpReplay> Create(const OpLogStep& step);

  // The operations of all workers, in the order of the log.
  const std::vector<OwnTime>& operations() const { return operations_; }
  // Returns the time of the step if operation i takes own_times[i]; `gaps`:
  // whether workers wait between operations as in the log. O(n). REQUIRES: one
  // time for each operation.
  Duration StepTime(absl::Span<const Duration> own_times,
                    bool gaps = true) const;
  // The same with the log's own times.
  Duration StepTime(bool gaps = true) const;

 private:
  // Operations that a worker began at once.
  struct Group {
    int32_t first = 0;  // Its operations: [first, end).
    int32_t end = 0;
    int32_t before = -1;  // The worker's group before; -1: none.
    Duration gap{};       // Between that one and this.
  };

  class Builder;

  OpReplay() = default;

  std::vector<OwnTime> operations_{};
  std::vector<Group> groups_{};
  // Indexed by operation: the communication that it takes part in; -1: local.
  std::vector<int32_t> meeting_of_{};
  int32_t num_meetings_ = 0;
  // Starts and ends of groups in an order that can be carried out; group, and
  // whether it is the end.
  std::vector<std::pair<int32_t, bool>> events_{};
};

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_OPLOG_OP_REPLAY_H_
