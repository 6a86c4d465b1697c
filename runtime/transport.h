// The interface for ordered messages between the ranks of one plan.
//
// Messages from one rank to another arrive in the order in which they were
// sent; the receiver posts its receives in the same order. Nothing is promised
// across pairs of ranks. Every message is the tensor of one edge, known to
// both sides from the plan, so nothing is negotiated: a receive that meets a
// send of another edge or of another size is an error for both sides.
//
// Posts do not block. Waits block until the message has met its other side,
// `deadline` has passed or the transport is aborted.
//
// Threads: posts and waits of a rank come from that rank's thread only; Abort
// from any thread.
#ifndef PIPELOOM_RUNTIME_TRANSPORT_H_
#define PIPELOOM_RUNTIME_TRANSPORT_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/ids.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// One edge's tensor on its way between two ranks.
struct Message {
  EdgeId edge{};
  RankId from{};
  RankId to{};
  // In plan time, as those of Dependency. A real transport ignores both.
  Duration delay{};
  Duration occupancy{};
  bool operator==(const Message&) const = default;
};

// The times at which a transfer began, its source could be reused and its data
// were there. They may lie in the future: the caller then waits with its
// RankClock.
struct TransferTimes {
  WallTime begin{};
  WallTime sent{};
  WallTime arrival{};
  // The transfer ended while it was waited for, and the transport did not read
  // the clock. Then `sent` and `arrival` hold `begin`, and the caller reads the
  // clock for the true value, the moment at which the wait returned.
  bool just_now = false;
};

// See the top of the file.
class Transport {
 public:
  virtual ~Transport() = default;

  // Start one side of a message. `at` is the rank's progress. `data` and `into`
  // belong to the transport until the matching wait has returned, or the
  // transport is aborted and the rank has stopped. FailedPrecondition: the
  // other side has posted another message.
  virtual absl::Status PostSend(const Message& message, WallTime at,
                                absl::Span<const std::byte> data) = 0;
  virtual absl::Status PostRecv(const Message& message, WallTime at,
                                absl::Span<std::byte> into) = 0;

  // Wait for one side of a message. DeadlineExceeded: it has not met its other
  // side in time; names the rank waited for. After Abort: its reason. REQUIRES:
  // that side was posted and not yet waited for.
  virtual absl::StatusOr<TransferTimes> WaitSend(const Message& message,
                                                 WallTime deadline) = 0;
  virtual absl::StatusOr<TransferTimes> WaitRecv(const Message& message,
                                                 WallTime deadline) = 0;

  // Makes all present and later waits and posts fail with `reason`. Only the
  // first call counts. REQUIRES: `reason` is not OK.
  virtual void Abort(absl::Status reason) = 0;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TRANSPORT_H_
