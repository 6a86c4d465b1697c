// Ordered messages between the ranks of one plan.
//
// Messages from one rank to another arrive in the order in which they were
// sent; the receiver posts its receives in the same order. Nothing is promised
// across pairs of ranks. Every message is the tensor of one edge, known to
// both sides from the plan, so nothing is negotiated: a receive that meets
// another edge, or another size, is an error for both sides.
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

struct Message {
  EdgeId edge{};
  RankId from{};
  RankId to{};
  Duration delay{};      // In plan time, as of Dependency; a real transport
  Duration occupancy{};  // takes the time it takes and ignores both.
  bool operator==(const Message&) const = default;
};

// When a transfer began, when its source could be reused and when its data
// were there. They may lie ahead: the caller then waits with its RankClock.
struct TransferTimes {
  WallTime begin{};
  WallTime sent{};
  WallTime arrival{};
  // The transfer ended while it was waited for, and the transport has not
  // looked at the clock: `sent` and `arrival` are the moment at which the wait
  // returned, which the caller's next look tells; they hold `begin`.
  bool just_now = false;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Starts a side of a message. `at` is the rank's progress. `data` and `into`
  // belong to the transport until the matching wait has returned or the
  // transport is aborted and the rank has stopped.
  // FailedPrecondition: the other side has posted another message.
  virtual absl::Status PostSend(const Message& message, WallTime at,
                                absl::Span<const std::byte> data) = 0;
  virtual absl::Status PostRecv(const Message& message, WallTime at,
                                absl::Span<std::byte> into) = 0;

  // REQUIRES: that side of the message was posted and not yet waited for.
  // DeadlineExceeded: it has not met its other side in time, which names the
  // rank waited for. After Abort: its reason.
  virtual absl::StatusOr<TransferTimes> WaitSend(const Message& message,
                                                 WallTime deadline) = 0;
  virtual absl::StatusOr<TransferTimes> WaitRecv(const Message& message,
                                                 WallTime deadline) = 0;

  // Lets all waits and posts, now and later, fail with `reason`, which must
  // not be OK. The first call counts.
  virtual void Abort(absl::Status reason) = 0;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TRANSPORT_H_
