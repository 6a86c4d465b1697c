// The hardware as a measured step's idle times show it: a rank's hand-over
// from one task to the next, and the time of each link.
#ifndef PIPELOOM_TRACE_IDLE_GAPS_H_
#define PIPELOOM_TRACE_IDLE_GAPS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "ir/ids.h"
#include "trace/trace_iteration.h"

namespace pipeloom::trace {

// When a measured task ran, in ns of the common clock.
struct MeasuredTask {
  RankId rank{};
  int64_t start = 0;
  int64_t end = 0;
};

struct IdleGaps {
  // The median time between two tasks of a rank if the second waits for no
  // tensor; 0 where fewer than four of them say it.
  IdVector<RankId, Duration> handover{};
  // Indexed by sender and receiver: the median time for which receivers waited
  // after the sender's task and hand-over; where none waited, the quickest
  // message.
  std::map<std::pair<RankId, RankId>, Duration> links{};
};

// `tasks` are in order of start on each rank. O(n log n) for n inputs.
IdleGaps MeasureIdleGaps(int32_t num_ranks,
                         const std::vector<MeasuredTask>& tasks,
                         const std::vector<TraceInput>& inputs);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_IDLE_GAPS_H_
