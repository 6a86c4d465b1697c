// Why no set of ranks can wait on itself, even if each Send blocks until its
// Recv has been posted:
//
// Every task t has two events, S(t) and E(t), its start and end. Each event
// gets a key (time in the schedule, level). Levels tell apart events of equal
// time of which one must follow the other: S(t) -> E(t), E(t) -> S(next task
// of the rank), E(producer) -> S(consumer). Along these arrows time never
// falls, and where it stays the level rises, so keys strictly increase.
//
// The program of a rank is, for its tasks Z1, Z2, ... in order:
//
//   recvs of gap 0, waits of Z1, Compute Z1, frees of Z1,
//   early sent waits of gap 1, recvs of gap 1, sends of Z1,
//   late sent waits of gap 1, waits of Z2, Compute Z2, ...
//
// where a sent wait is a WaitSend, of a send that stands before it. The waits
// of the second pass of a pair stand with those of the first, and each producer
// of the second has an arrow to the start of the first. Recv(e) stands in the
// gap after the last Zi with E(Zi) <= E(from of e). Where e is sent late,
// `from` is, here and below, the task of the sender after which it is sent,
// whose end is before S(to) too. Only waits and sends block. Their keys are
// S(consumer) for WaitRecv(e), E(producer) for Send(e), and for a WaitSend of
// the gap after Zi: E(Zi) if it is early, S(Zi+1) if it is late. Of equal keys
// a WaitSend's is the smaller one. So keys never fall along a program. Suppose
// some ranks are stuck for ever, and take the one whose blocked instruction has
// the smallest key.
// - It blocks in WaitRecv(e), so Send(e) has not been reached: the producer's
//   rank is stuck at or before a key of at most E(from) < S(to). Smaller.
// - It blocks in Send(e), so Recv(e) has not been reached: the receiver is
//   stuck at something before it. That is a wait of some Zj or a late WaitSend
//   before it, j <= i, with key S(Zj) < E(Zi) <= E(from); a send of some Zj,
//   j < i, with key E(Zj) < E(Zi) <= E(from); or an early WaitSend of a gap up
//   to i, whose key is at most E(Zi) <= E(from), and smaller where it is equal.
// - It blocks in WaitSend(e), so Recv(e) has not been reached, and the receiver
//   is stuck at a key of at most E(from), as in the case before. An early
//   WaitSend(e) stands before the sends of its Zi, so `from` ran before Zi and
//   E(from) < E(Zi); of a late one, E(from) <= E(Zi) < S(Zi+1). Smaller.
// All contradict the choice. What is left of the WaitSends stands after all of
// these in its program, so all ranks get there, and then every Recv has been
// posted.
//
// Both ends of a pair list its transfers in one order: producers on one rank
// have increasing E, recvs are sorted by (E(from), edge), and so are the sends
// by construction.
#include "planner/lower/lower_plan.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "ir/plan/pass_pairs.h"
#include "planner/lower/late_sends.h"

namespace pipeloom::planner {
namespace {

absl::Status Mismatch(const std::string& what) {
  return absl::FailedPreconditionError("the schedule does not fit the graph: " +
                                       what);
}

absl::Status CheckOrders(const StageGraph& graph, const Schedule& schedule) {
  if (schedule.order.size() != graph.num_ranks() ||
      schedule.start.size() != graph.num_tasks()) {
    return Mismatch(
        absl::StrFormat("it has %d ranks and %d tasks; the graph has %d and %d",
                        schedule.order.size(), schedule.start.size(),
                        graph.num_ranks(), graph.num_tasks()));
  }
  IdVector<TaskId, uint8_t> listed(graph.num_tasks(), 0);
  int32_t count = 0;
  for (const RankId rank : graph.rank_ids()) {
    for (const TaskId t : schedule.order[rank]) {
      if (!graph.tasks().Contains(t) || graph.task(t).rank != rank ||
          listed[t] != 0) {
        return Mismatch(absl::StrFormat(
            "rank %d: task %d is unknown, listed twice or of another rank",
            rank.value(), t.value()));
      }
      listed[t] = 1;
      ++count;
    }
  }
  if (count != graph.num_tasks()) {
    return Mismatch(
        absl::StrFormat("%d of %d tasks are listed", count, graph.num_tasks()));
  }
  return absl::OkStatus();
}

// Returns the keys of all events, and checks that the starts respect orders and
// dependencies.
absl::StatusOr<IdVector<TaskId, TaskEvents>> EventKeys(
    const StageGraph& graph, const Schedule& schedule) {
  IdVector<TaskId, TaskId> next_on_rank(graph.num_tasks());
  IdVector<TaskId, int32_t> missing(graph.num_tasks(), 0);
  const bool has_pairs =
      std::any_of(graph.tasks().begin(), graph.tasks().end(), IsSecondOfPair);
  for (const Dependency& d : graph.edges()) {
    ++missing[d.to];
    // The first pass of a pair waits for the inputs of both.
    if (has_pairs && IsSecondOfPair(graph.task(d.to))) {
      ++missing[graph.task(d.to).overlaps];
    }
  }
  for (const std::vector<TaskId>& order : schedule.order) {
    for (size_t k = 1; k < order.size(); ++k) {
      next_on_rank[order[k - 1]] = order[k];
      ++missing[order[k]];
    }
  }
  IdVector<TaskId, TaskEvents> events(graph.num_tasks());
  std::vector<TaskId> ready;
  for (const TaskId t : graph.task_ids()) {
    events[t].start.at = schedule.start[t];
    if (missing[t] == 0) ready.push_back(t);
  }
  int32_t done = 0;
  for (; !ready.empty(); ++done) {
    const TaskId t = ready.back();
    ready.pop_back();
    TaskEvents& own = events[t];
    own.end.at = own.start.at + graph.task(t).duration;
    own.end.level = graph.task(t).duration == kZero ? own.start.level + 1 : 0;
    const auto precede = [&](TaskId after, Duration delay) -> absl::Status {
      EventKey& start = events[after].start;
      if (start.at < own.end.at + delay) {
        return Mismatch(absl::StrFormat(
            "%s starts at %.3f us, but must follow %s, which ends at %.3f us, "
            "by %.3f us",
            DescribeTask(graph, after), ToMicroseconds(start.at),
            DescribeTask(graph, t), ToMicroseconds(own.end.at),
            ToMicroseconds(delay)));
      }
      if (start.at == own.end.at) {
        start.level = std::max(start.level, own.end.level + 1);
      }
      if (--missing[after] == 0) ready.push_back(after);
      return absl::OkStatus();
    };
    for (const EdgeId e : graph.outgoing(t)) {
      const Dependency& d = graph.edge(e);
      PIPELOOM_RETURN_IF_ERROR(precede(d.to, d.delay));
      if (has_pairs && IsSecondOfPair(graph.task(d.to))) {
        PIPELOOM_RETURN_IF_ERROR(precede(graph.task(d.to).overlaps, d.delay));
      }
    }
    if (!next_on_rank[t].is_none()) {
      PIPELOOM_RETURN_IF_ERROR(precede(next_on_rank[t], kZero));
    }
  }
  if (done < graph.num_tasks()) {
    return Mismatch("the orders contradict the dependencies");
  }
  if (!has_pairs) return events;
  for (const std::vector<TaskId>& order : schedule.order) {
    for (size_t k = 0; k < order.size(); ++k) {
      const TaskId first = graph.task(order[k]).overlaps;
      if (!IsSecondOfPair(graph.task(order[k]))) continue;
      if (k > 0 && order[k - 1] == first) continue;
      return Mismatch(absl::StrFormat(
          "%s does not directly follow %s, with which it runs together",
          DescribeTask(graph, order[k]), DescribeTask(graph, first)));
    }
  }
  return events;
}

// A transfer that a rank receives.
struct Arrival {
  EventKey sent{};  // End of the task after which it is sent.
  EdgeId edge{};
};

constexpr uint8_t kLate = 2;

// The transfers between ranks.
struct Crossings {
  // Indexed by edge: whether it joins two ranks, and is kLate if it is in
  // `late`.
  std::vector<uint8_t> crosses{};
  // Sorted by `sent` and edge.
  IdVector<RankId, std::vector<Arrival>> arrivals{};
  IdVector<RankId, size_t> num_sent{};
  // Sorted by task and edge. All other transfers are sent after the task that
  // makes them.
  std::vector<LateSend> late{};
  // Indexed by edge between ranks: when the transfer has left, if the tasks run
  // as in the schedule and each pair of ranks has a link of its own. Never
  // before its producer's end.
  std::vector<SimTime> left{};
  bool Crosses(EdgeId e) const {
    return crosses[static_cast<size_t>(e.value())] != 0;
  }
  bool IsLate(EdgeId e) const {
    return crosses[static_cast<size_t>(e.value())] == kLate;
  }
};

Crossings FindCrossings(const StageGraph& graph,
                        const IdVector<TaskId, TaskEvents>& events,
                        std::vector<LateSend> late) {
  Crossings found;
  found.late = std::move(late);
  std::sort(found.late.begin(), found.late.end(),
            [](const LateSend& a, const LateSend& b) {
              return std::pair(a.after, a.edge) < std::pair(b.after, b.edge);
            });
  found.crosses.resize(static_cast<size_t>(graph.num_edges()));
  found.arrivals.resize(graph.num_ranks());
  found.num_sent = IdVector<RankId, size_t>(graph.num_ranks(), 0);
  IdVector<RankId, size_t> received(graph.num_ranks(), 0);
  for (const EdgeId e : graph.edge_ids()) {
    const Dependency& d = graph.edge(e);
    const RankId from = graph.task(d.from).rank;
    const RankId to = graph.task(d.to).rank;
    if (from == to) continue;
    found.crosses[static_cast<size_t>(e.value())] = 1;
    ++found.num_sent[from];
    ++received[to];
  }
  for (const RankId r : graph.rank_ids()) {
    found.arrivals[r].reserve(received[r]);
  }
  std::vector<TaskId> after(found.crosses.size());
  for (const LateSend& send : found.late) {
    after[static_cast<size_t>(send.edge.value())] = send.after;
    found.crosses[static_cast<size_t>(send.edge.value())] = kLate;
  }
  for (const EdgeId e : graph.edge_ids()) {
    if (!found.Crosses(e)) continue;
    const Dependency& d = graph.edge(e);
    const TaskId sender =
        found.IsLate(e) ? after[static_cast<size_t>(e.value())] : d.from;
    found.arrivals[graph.task(d.to).rank].push_back(
        {.sent = events[sender].end, .edge = e});
  }
  for (std::vector<Arrival>& arrivals : found.arrivals) {
    std::sort(arrivals.begin(), arrivals.end(),
              [](const Arrival& a, const Arrival& b) {
                if (a.sent.at != b.sent.at) return a.sent.at < b.sent.at;
                return std::pair(a.sent.level, a.edge) <
                       std::pair(b.sent.level, b.edge);
              });
  }
  found.left.resize(static_cast<size_t>(graph.num_edges()));
  for (const std::vector<Arrival>& arrivals : found.arrivals) {
    IdVector<RankId, SimTime> link_free(graph.num_ranks(), kStepStart);
    for (const Arrival& arrival : arrivals) {
      const Dependency& d = graph.edge(arrival.edge);
      SimTime& free = link_free[graph.task(d.from).rank];
      free = std::max(free, arrival.sent.at) + d.occupancy;
      found.left[static_cast<size_t>(arrival.edge.value())] = free;
    }
  }
  return found;
}

LoweredRank LowerRank(const StageGraph& graph, RankId rank,
                      const std::vector<TaskId>& order,
                      const IdVector<TaskId, TaskEvents>& events,
                      const Crossings& crossings) {
  const std::vector<Arrival>& arrivals = crossings.arrivals[rank];
  LoweredRank result;
  std::vector<Instruction>& program = result.instructions;
  result.gaps.reserve(order.size());
  // Sends that have not been waited for, the first to leave on top; ties in the
  // order of sending.
  using Leaving = std::tuple<SimTime, size_t, EdgeId>;
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> sent;
  program.reserve(order.size() + 3 * arrivals.size() +
                  2 * crossings.num_sent[rank] + 2);
  std::vector<EdgeId> leaving;
  const auto send_after = [&](TaskId task) {
    leaving.clear();
    for (const EdgeId e : graph.outgoing(task)) {
      if (crossings.Crosses(e) && !crossings.IsLate(e)) leaving.push_back(e);
    }
    const size_t own = leaving.size();
    for (auto late = std::lower_bound(
             crossings.late.begin(), crossings.late.end(), task,
             [](const LateSend&send, TaskId t) { return send.after < t; });
         late != crossings.late.end() && late->after == task; ++late) {
      leaving.push_back(late->edge);
    }
    // Receivers list what one task sends by edge.
    if (leaving.size() > own) std::sort(leaving.begin(), leaving.end());
    for (const EdgeId e : leaving) {
      program.emplace_back(Send{e});
      sent.emplace(crossings.left[static_cast<size_t>(e.value())],
                   program.size(), e);
    }
  };
  const auto wait_for_sent = [&](SimTime until) {
    for (; !sent.empty() && std::get<SimTime>(sent.top()) <= until;
         sent.pop()) {
      program.emplace_back(WaitSend{std::get<EdgeId>(sent.top())});
    }
  };
  size_t posted = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    if (k > 0) wait_for_sent(events[order[k - 1]].end.at);
    result.gaps.push_back(program.size());
    // The gap before order[k]: everything produced before it ends.
    const EventKey end = events[order[k]].end;
    while (posted < arrivals.size() && arrivals[posted].sent < end) {
      program.emplace_back(Recv{arrivals[posted++].edge});
    }
    if (k > 0) {
      send_after(order[k - 1]);
      wait_for_sent(events[order[k]].start.at);
    }
    const absl::Span<const EdgeId> incoming = graph.incoming(order[k]);
    const auto wait_for = [&](absl::Span<const EdgeId> inputs) {
      for (const EdgeId e : inputs) {
        if (crossings.Crosses(e)) program.emplace_back(WaitRecv{e});
      }
    };
    if (!IsSecondOfPair(graph.task(order[k]))) wait_for(incoming);
    if (k + 1 < order.size()) {
      const Task& next = graph.task(order[k + 1]);
      if (IsSecondOfPair(next)) wait_for(graph.incoming(order[k + 1]));
    }
    program.emplace_back(Compute{order[k]});
    for (const EdgeId e : incoming) {
      if (crossings.Crosses(e)) program.emplace_back(Free{e});
    }
  }
  if (!order.empty()) {
    wait_for_sent(events[order.back()].end.at);
    send_after(order.back());
  }
  PIPELOOM_CHECK(posted == arrivals.size());
  if (graph.rank(rank).epilogue > kZero) {
    program.emplace_back(ReduceGradients{});
    program.emplace_back(OptimizerStep{});
  }
  wait_for_sent(SimTime::max());
  return result;
}

IdVector<RankId, LoweredRank> LowerRanks(
    const StageGraph& graph, const Schedule& schedule,
    const IdVector<TaskId, TaskEvents>& events, const Crossings& crossings) {
  IdVector<RankId, LoweredRank> programs(graph.num_ranks());
  for (const RankId rank : graph.rank_ids()) {
    programs[rank] =
        LowerRank(graph, rank, schedule.order[rank], events, crossings);
  }
  return programs;
}

// Returns the most bytes that a program holds at once.
Bytes PeakOf(const StageGraph& graph, RankId rank,
             const std::vector<Instruction>& program) {
  Bytes held = graph.rank(rank).memory.static_bytes();
  Bytes peak = held;
  const auto take = [&](Bytes bytes) {
    held += bytes;
    peak = std::max(peak, held);
  };
  for (const Instruction& instruction : program) {
    std::visit(
        Overloaded{
            [&](const Compute& i) {
              const BoundaryBytes boundary = BoundaryOf(graph, i.task);
              held -= boundary.taken;
              take(graph.task(i.task).alloc + boundary.made);
              held -= graph.task(i.task).free;
            },
            [&](const Recv& i) { take(graph.edge(i.edge).payload); },
            [&](const Free& i) { held -= graph.edge(i.edge).payload; },
            [&](const WaitSend& i) { held -= graph.edge(i.edge).payload; },
            [&](const Offload& i) { held -= i.payload; },
            [&](const Fetch& i) { take(i.payload); },
            [](const Send&) {},
            [](const WaitRecv&) {},
            [](const ReduceGradients&) {},
            [](const OptimizerStep&) {},
        },
        instruction);
  }
  return peak;
}

// Returns MostBefore of all ranks with a limit; of the others nothing.
IdVector<RankId, std::vector<Bytes>> MostBefore(
    const StageGraph& graph, const IdVector<RankId, LoweredRank>& programs) {
  IdVector<RankId, std::vector<Bytes>> most(graph.num_ranks());
  for (const RankId rank : graph.rank_ids()) {
    if (graph.rank(rank).memory.limit == Bytes(0)) continue;
    most[rank] = MostBefore(graph, rank, programs[rank]);
  }
  return most;
}

}  // namespace

absl::StatusOr<ExecutionPlan> LowerPlan(StageGraph graph,
                                        const Schedule& schedule,
                                        absl::Span<const HostCopy> host_copies,
                                        SendTime send_time) {
  PIPELOOM_RETURN_IF_ERROR(CheckOrders(graph, schedule));
  PIPELOOM_RETURN_IF_ERROR(CheckHostCopies(graph, host_copies));
  PIPELOOM_ASSIGN_OR_RETURN(const auto events, EventKeys(graph, schedule));
  IdVector<RankId, LoweredRank> programs =
      LowerRanks(graph, schedule, events, FindCrossings(graph, events, {}));
  if (send_time == SendTime::kWithRoom && host_copies.empty()) {
    std::vector<LateSend> late = ChooseLateSends(graph, schedule.order, events,
                                                 MostBefore(graph, programs));
    if (!late.empty()) {
      programs = LowerRanks(graph, schedule, events,
                            FindCrossings(graph, events, std::move(late)));
    }
  }
  ExecutionPlan plan;
  plan.programs.resize(graph.num_ranks());
  for (const RankId rank : graph.rank_ids()) {
    PIPELOOM_RETURN_IF_ERROR(PlaceHostCopies(graph, rank, schedule.order[rank],
                                             schedule, host_copies,
                                             &programs[rank]));
    plan.programs[rank] = std::move(programs[rank].instructions);
  }
  plan.predicted_step_time = schedule.step_time();
  plan.graph = std::move(graph);
  return plan;
}

IdVector<RankId, Bytes> PlanPeaks(const ExecutionPlan& plan) {
  IdVector<RankId, Bytes> peaks(plan.graph.num_ranks());
  for (const RankId rank : plan.graph.rank_ids()) {
    peaks[rank] = PeakOf(plan.graph, rank, plan.programs[rank]);
  }
  return peaks;
}

}  // namespace pipeloom::planner
