// Decides which tensors wait on the rank that made them until the rank that
// needs them has room.
//
// An encoder that runs ahead sends outputs that wait for their consumer, often
// for many tasks, and all on one rank. A schedule's order is the same wherever
// they wait: a tensor may be sent after any later task of the sender that ends
// early enough for the transfer. So a schedule that breaks a limit only by
// tensors that wait may keep it if some of them wait where there is room.
#ifndef PIPELOOM_PLANNER_LOWER_LATE_SENDS_H_
#define PIPELOOM_PLANNER_LOWER_LATE_SENDS_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// A point in a schedule: events of one time that must follow each other differ
// in level.
struct EventKey {
  SimTime at{};
  int32_t level = 0;
  auto operator<=>(const EventKey&) const = default;
};

struct TaskEvents {
  EventKey start{};
  EventKey end{};
};

// A tensor that is sent after a later task of its rank than the one that makes
// it.
struct LateSend {
  EdgeId edge{};
  TaskId after{};
  bool operator==(const LateSend&) const = default;
};

// Returns the tensors that are to be sent late, each as early as its receiver's
// limit allows, no later than is in time for its consumer by the schedule, and
// only where its sender stays within its own limit. Of several that wait, those
// whose consumers come last are sent late. Ranks may still be over their limits
// afterwards.
//
// `most`: the most bytes that each rank holds at each position of its order,
// from the gap before the task until it has run, if all are sent at once; empty
// for ranks without a limit. REQUIRES: every rank's events increase along its
// order. Takes O(tasks) if no rank is over, and else O(E log E) for E edges
// between ranks, plus, for each tensor sent late, the tasks during which it
// waits.
std::vector<LateSend> ChooseLateSends(
    const StageGraph& graph, const RankOrders& orders,
    const IdVector<TaskId, TaskEvents>& events,
    IdVector<RankId, std::vector<Bytes>> most);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LOWER_LATE_SENDS_H_
