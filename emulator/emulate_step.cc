// A rank runs on by itself until its clock passes that of another rank that
// can go on; so sends and receives are reached in order of simulated time, and
// a transfer's begin is known once both ends have been reached.
#include "emulator/emulate_step.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "emulator/event_queue.h"
#include "emulator/resource.h"
#include "emulator/trace_builder.h"

namespace pipeloom::emulator {
namespace {

constexpr SimTime kUnknown = SimTime::min();
constexpr int kMostRanksShown = 8;

// One transfer. Times are kUnknown until they are determined.
struct Transfer {
  SimTime sent = kUnknown;      // Send was reached.
  SimTime received = kUnknown;  // Recv was reached.
  SimTime left = kUnknown;      // The sender's buffer is free again.
  SimTime arrived = kUnknown;
};

enum class State : uint8_t { kReady, kWaitsForArrival, kWaitsForLeaving };

struct RankState {
  SimTime now = kStepStart;
  size_t next = 0;  // Instruction.
  State state = State::kReady;
  EdgeId waiting_for{};
  SimTime copied = kStepStart;  // The copy stream is free.
  bool reduced = false;
};

class Emulation {
 public:
  Emulation(const ExecutionPlan& plan, const EmulateOptions& options)
      : plan_(plan),
        graph_(plan.graph),
        options_(options),
        trace_(plan, options.full_trace),
        links_(options.sharing, graph_.num_ranks()),
        transfers_(graph_.num_edges()),
        ranks_(graph_.num_ranks()) {
    for (const Dependency& d : graph_.edges()) {
      if (d.delay > kZero &&
          graph_.task(d.from).rank == graph_.task(d.to).rank) {
        ends_.assign(graph_.num_tasks(), kStepStart);
        break;
      }
    }
  }

  absl::StatusOr<StepTrace> Run() {
    for (const RankId rank : graph_.rank_ids()) queue_.Push({kStepStart, rank});
    while (!queue_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(RunRank(queue_.Pop().rank));
    }
    SimTime finish = kStepStart;
    for (const RankId rank : graph_.rank_ids()) {
      if (ranks_[rank].next < plan_.programs[rank].size()) return Deadlock();
      finish = std::max({finish, ranks_[rank].now, ranks_[rank].copied});
    }
    return trace_.Build(finish);
  }

 private:
  // Whether the rank goes on with its next instruction at `now`.
  enum class Flow { kGoOn, kBlocked, kError };

  absl::Status RunRank(RankId id) {
    RankState& rank = ranks_[id];
    const std::vector<Instruction>& program = plan_.programs[id];
    while (rank.next < program.size()) {
      const RankEvent here{rank.now, id};
      if (!queue_.empty() && queue_.next() < here) {
        queue_.Push(here);
        return absl::OkStatus();
      }
      const Flow flow = std::visit(
          [&](const auto& instruction) {
            return Execute(id, rank, instruction);
          },
          program[rank.next]);
      if (flow == Flow::kError) return Fault(id, rank.next);
      if (flow == Flow::kBlocked) return absl::OkStatus();
      ++rank.next;
    }
    return absl::OkStatus();
  }

  Flow Execute(RankId id, RankState& rank, const Compute& i) {
    if (!graph_.tasks().Contains(i.task)) return Flow::kError;
    const Task& task = graph_.task(i.task);
    if (task.rank != id) return Flow::kError;
    if (!fetched_.empty()) AwaitFetches(rank, i.task);
    if (!ends_.empty()) AwaitLocalInputs(id, rank, i.task);
    const SimTime end = rank.now + task.duration;
    if (!ends_.empty()) ends_[i.task] = end;
    trace_.AddTask(id, i.task, rank.now, end);
    trace_.AddMemory(id, rank.now, MemoryItem::kActivations, task.alloc);
    trace_.AddMemory(id, end, MemoryItem::kActivations, -task.free);
    rank.now = end;
    return Flow::kGoOn;
  }

  Flow Execute(RankId id, RankState& rank, const Send& i) {
    if (!IsEnd(i.edge, id, true)) return Flow::kError;
    Transfer& transfer = transfers_[i.edge];
    // Reached before, and blocked until now.
    const bool again = transfer.sent != kUnknown;
    if (again && !options_.blocking_sends) return Flow::kError;
    if (!again) {
      transfer.sent = rank.now;
      if (transfer.received != kUnknown) Begin(i.edge, rank.now);
    }
    if (!options_.blocking_sends) return Flow::kGoOn;
    return WaitUntil(id, rank, i.edge, transfer.left, State::kWaitsForLeaving);
  }

  Flow Execute(RankId id, RankState& rank, const Recv& i) {
    if (!IsEnd(i.edge, id, false)) return Flow::kError;
    Transfer& transfer = transfers_[i.edge];
    if (transfer.received != kUnknown) return Flow::kError;
    transfer.received = rank.now;
    trace_.AddMemory(id, rank.now, MemoryItem::kReceived,
                     graph_.edge(i.edge).payload);
    if (transfer.sent != kUnknown) Begin(i.edge, rank.now);
    return Flow::kGoOn;
  }

  Flow Execute(RankId id, RankState& rank, const WaitRecv& i) {
    if (!IsEnd(i.edge, id, false)) return Flow::kError;
    return WaitUntil(id, rank, i.edge, transfers_[i.edge].arrived,
                     State::kWaitsForArrival);
  }

  Flow Execute(RankId id, RankState& rank, const WaitSend& i) {
    if (!IsEnd(i.edge, id, true)) return Flow::kError;
    return WaitUntil(id, rank, i.edge, transfers_[i.edge].left,
                     State::kWaitsForLeaving);
  }

  Flow Execute(RankId id, RankState& rank, const Free& i) {
    if (!IsEnd(i.edge, id, false)) return Flow::kError;
    trace_.AddMemory(id, rank.now, MemoryItem::kReceived,
                     -graph_.edge(i.edge).payload);
    return Flow::kGoOn;
  }

  Flow Execute(RankId id, RankState& rank, const Offload& i) {
    if (!graph_.tasks().Contains(i.task)) return Flow::kError;
    rank.copied = std::max(rank.copied, rank.now) +
                  TransferTime(i.payload, options_.host_bandwidth);
    trace_.AddMemory(id, rank.copied, MemoryItem::kActivations, -i.payload);
    return Flow::kGoOn;
  }

  Flow Execute(RankId id, RankState& rank, const Fetch& i) {
    if (!graph_.tasks().Contains(i.task)) return Flow::kError;
    if (fetched_.empty()) fetched_.assign(graph_.num_tasks(), kStepStart);
    trace_.AddMemory(id, std::max(rank.copied, rank.now),
                     MemoryItem::kActivations, i.payload);
    rank.copied = std::max(rank.copied, rank.now) +
                  TransferTime(i.payload, options_.host_bandwidth);
    fetched_[i.task] = rank.copied;
    return Flow::kGoOn;
  }

  Flow Execute(RankId id, RankState& rank, const ReduceGradients&) {
    rank.reduced = true;
    return Epilogue(id, rank);
  }
  Flow Execute(RankId id, RankState& rank, const OptimizerStep&) {
    return rank.reduced ? Flow::kGoOn : Epilogue(id, rank);
  }
  Flow Epilogue(RankId id, RankState& rank) {
    const SimTime end = rank.now + graph_.rank(id).epilogue;
    trace_.AddEpilogue(id, rank.now, end);
    rank.now = end;
    return Flow::kGoOn;
  }

  // The edge goes out of (or into) the rank from (or to) another.
  bool IsEnd(EdgeId edge, RankId rank, bool at_producer) const {
    if (!graph_.edges().Contains(edge)) return false;
    const Dependency& d = graph_.edge(edge);
    const RankId from = graph_.task(d.from).rank;
    const RankId to = graph_.task(d.to).rank;
    return from != to && (at_producer ? from : to) == rank;
  }

  // Both ends are reached, the later one now.
  void Begin(EdgeId edge, SimTime ready) {
    const Dependency& d = graph_.edge(edge);
    const RankId from = graph_.task(d.from).rank;
    const RankId to = graph_.task(d.to).rank;
    const SimTime start = links_.Claim(from, to, ready, d.occupancy);
    Transfer& transfer = transfers_[edge];
    transfer.left = start + d.occupancy;
    transfer.arrived = start + d.delay;
    trace_.AddTransfer(from, edge, start, transfer.arrived);
    Wake(from, edge, State::kWaitsForLeaving, transfer.left);
    Wake(to, edge, State::kWaitsForArrival, transfer.arrived);
  }

  void Wake(RankId id, EdgeId edge, State state, SimTime at) {
    RankState& rank = ranks_[id];
    if (rank.state != state || rank.waiting_for != edge) return;
    rank.state = State::kReady;
    trace_.AddWait(id, edge, rank.now, std::max(rank.now, at));
    rank.now = std::max(rank.now, at);
    queue_.Push({rank.now, id});
  }

  Flow WaitUntil(RankId id, RankState& rank, EdgeId edge, SimTime at,
                 State state) {
    if (at == kUnknown) {
      rank.state = state;
      rank.waiting_for = edge;
      return Flow::kBlocked;
    }
    if (at > rank.now) {
      trace_.AddWait(id, edge, rank.now, at);
      rank.now = at;
    }
    return Flow::kGoOn;
  }

  // Backward work needs the offloaded activations of its own rank back.
  void AwaitFetches(RankState& rank, TaskId task) {
    for (const EdgeId e : graph_.incoming(task)) {
      rank.now = std::max(rank.now, fetched_[graph_.edge(e).from]);
    }
  }

  // Dependencies inside a rank may have a delay too.
  void AwaitLocalInputs(RankId id, RankState& rank, TaskId task) {
    for (const EdgeId e : graph_.incoming(task)) {
      const Dependency& d = graph_.edge(e);
      if (graph_.task(d.from).rank != id) continue;
      const SimTime at = ends_[d.from] + d.delay;
      if (at <= rank.now) continue;
      trace_.AddWait(id, e, rank.now, at);
      rank.now = at;
    }
  }

  absl::Status Fault(RankId rank, size_t index) const {
    return absl::FailedPreconditionError(absl::StrFormat(
        "rank %d, instruction %d (%s): it names nothing of this rank, or "
        "comes twice; ValidateExecutionPlan says more",
        rank.value(), index, DescribeInstruction(plan_.programs[rank][index])));
  }

  absl::Status Deadlock() const {
    std::string text = "the plan deadlocks:";
    int waiting = 0;
    for (const RankId id : graph_.rank_ids()) {
      const RankState& rank = ranks_[id];
      if (rank.next >= plan_.programs[id].size()) continue;
      if (++waiting > kMostRanksShown) continue;
      const Dependency& d = graph_.edge(rank.waiting_for);
      const Transfer& transfer = transfers_[rank.waiting_for];
      const RankId from = graph_.task(d.from).rank;
      const RankId to = graph_.task(d.to).rank;
      absl::StrAppendFormat(
          &text, "%s rank %d waits at instruction %d (%s) for rank %d, which",
          waiting == 1 ? "" : ";", id.value(), rank.next,
          DescribeInstruction(plan_.programs[id][rank.next]),
          (id == from ? to : from).value());
      if (id == to && transfer.received == kUnknown) {
        absl::StrAppend(&text, " may send, but no recv was posted here");
      } else {
        absl::StrAppend(&text, id == from ? " has not posted its recv"
                                          : " has not sent it");
      }
    }
    if (waiting > kMostRanksShown) {
      absl::StrAppendFormat(&text, "; and %d more ranks",
                            waiting - kMostRanksShown);
    }
    return absl::FailedPreconditionError(text);
  }

  const ExecutionPlan& plan_;
  const StageGraph& graph_;
  const EmulateOptions options_;
  TraceBuilder trace_;
  Links links_;
  EventQueue queue_{};
  IdVector<EdgeId, Transfer> transfers_;
  IdVector<RankId, RankState> ranks_;
  // When each offloaded task's activations are back; empty until a Fetch.
  IdVector<TaskId, SimTime> fetched_{};
  // By task; empty unless a dependency inside a rank has a delay.
  IdVector<TaskId, SimTime> ends_{};
};

}  // namespace

absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options) {
  if (plan.programs.size() != plan.graph.num_ranks()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the plan has %d programs; its graph has %d ranks",
                        plan.programs.size(), plan.graph.num_ranks()));
  }
  return Emulation(plan, options).Run();
}

}  // namespace pipeloom::emulator
