// Alignment of the clocks of ranks by messages, each of which says that an
// event on one rank's clock was before an event on another's.
//
// A rank's clock is taken to be linear in that of rank 0:
//
//   common = local + offset + drift * (local - origin)
//
// For each pair of ranks that exchange messages both ways, the line is chosen
// that leaves the most slack to every message (a message takes time in either
// direction, so the true line lies between the bounds of both). The largest
// slack for a drift is concave in it, so it is found by ternary search. Pairs
// are joined along the ranks that exchange most messages, from rank 0. The
// error is half the difference of the quickest messages' times each way.
//
// O(messages * searches of pairs); thread-safe.
#ifndef PIPELOOM_TRACE_CLOCK_ALIGNMENT_H_
#define PIPELOOM_TRACE_CLOCK_ALIGNMENT_H_

#include <cstdint>
#include <vector>

#include "ir/ids.h"

namespace pipeloom::trace {

// A message between two ranks, each time on the clock of its rank.
struct TimedMessage {
  RankId from{};
  RankId to{};
  int64_t sent_ns = 0;     // On the sender's clock: not before.
  int64_t arrived_ns = 0;  // On the receiver's clock: not after.
};

// The line from a rank's clock to the common clock.
struct ClockFit {
  double offset_ns = 0;  // At `origin_ns` of the rank's own clock.
  double drift = 0;      // Deviation from 1 second per second.
  int64_t origin_ns = 0;
  bool aligned = false;  // False: no message joins it to rank 0.

  // Converts a time of the rank's clock to the common clock.
  int64_t ToCommon(int64_t local_ns) const {
    const double shift =
        offset_ns + drift * static_cast<double>(local_ns - origin_ns);
    return local_ns +
           static_cast<int64_t>(shift < 0 ? shift - 0.5 : shift + 0.5);
  }
};

// Fits the clock of each rank. Searches drifts within `most_drift` either way;
// 0: offsets alone, which a pair also gets if its messages would need as much
// drift as allowed. A pair with messages in one direction only gets the
// tightest line without drift that they allow.
IdVector<RankId, ClockFit> AlignClocks(
    int32_t num_ranks, const std::vector<TimedMessage>& messages,
    double most_drift = 1e-3);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_CLOCK_ALIGNMENT_H_
