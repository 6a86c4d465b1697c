// ValidateExecutionPlan: the independent check of ir/plan/execution_plan.h.
// Six passes over the plan, each of which may rely on the ones before it:
//   0. the tasks are the passes of a step, and its loss is that of them
//      (ir/check/check_passes.h);
//   1. each rank alone: instructions name things that exist and are its own,
//      once each, in an order in which inputs exist;
//   2. the whole: nothing is left out;
//   3. pairs of ranks: both sides list their transfers in the same order, and
//      a simulation with blocking sends runs to the end;
//   4. memory by rank, in program order: never over the limit, and nothing
//      released that is not held;
//   5. the predicted time is that of the programs (ir/check/check_times.h).
// Pairs of passes (ir/plan/pass_pairs.h) are checked in passes 1 and 4.
// O(instructions + tasks + edges).
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "ir/check/check_passes.h"
#include "ir/check/check_times.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom {
namespace {

// Passes 1 and 2, with the positions of the instructions of each edge and
// task.
class StructureCheck {
 public:
  explicit StructureCheck(const ExecutionPlan& plan)
      : plan_(plan),
        graph_(plan.graph),
        computed_(graph_.num_tasks(), false),
        place_(graph_.num_tasks(), 0),
        offload_(graph_.num_tasks(), kResident),
        sent_(graph_.num_edges(), false),
        wait_send_(graph_.num_edges(), false),
        received_(graph_.num_edges(), kNotPosted),
        second_(graph_.num_tasks()) {
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      if (task.overlaps.is_none() || task.pass == Pass::kWeightGrad) continue;
      second_[task.overlaps] = t;
    }
  }

  absl::Status Run() {
    for (const RankId rank : graph_.rank_ids()) {
      PIPELOOM_RETURN_IF_ERROR(CheckRank(rank));
    }
    return CheckComplete();
  }

 private:
  enum Residence { kResident, kOffloaded, kFetched };
  enum Progress { kNotPosted, kPosted, kArrived, kFreed };

  absl::Status Fail(const std::string& what) const {
    return absl::FailedPreconditionError(absl::StrFormat(
        "plan: rank %d, instruction %d (%s): %s", rank_.value(), index_,
        DescribeInstruction(plan_.programs[rank_][index_]), what));
  }

  // Checks that the gradients are not reduced yet. After that a rank only
  // cleans up: a rank steps its optimizer when all ranks have come to that
  // point, so none may still need something from it.
  absl::Status CheckBeforeEpilogue() const {
    if (reduced_) return Fail("it comes after the epilogue");
    return absl::OkStatus();
  }

  absl::Status CheckRank(RankId rank) {
    rank_ = rank;
    reduced_ = false;
    stepped_ = false;
    for (index_ = 0; index_ < plan_.programs[rank].size(); ++index_) {
      PIPELOOM_RETURN_IF_ERROR(std::visit(
          Overloaded{
              [&](const Compute& i) { return CheckCompute(i.task); },
              [&](const Send& i) { return CheckSend(i.edge); },
              [&](const Recv& i) {
                return Advance(i.edge, kNotPosted, kPosted,
                               "it is received twice");
              },
              [&](const WaitRecv& i) {
                return Advance(i.edge, kPosted, kArrived,
                               "it needs one recv before it");
              },
              [&](const WaitSend& i) { return CheckWaitSend(i.edge); },
              [&](const Free& i) { return CheckFree(i.edge); },
              [&](const Offload& i) { return CheckOffload(i); },
              [&](const Fetch& i) { return CheckFetch(i); },
              [&](const ReduceGradients&) { return CheckReduce(); },
              [&](const OptimizerStep&) { return CheckOptimizerStep(); },
          },
          plan_.programs[rank][index_]));
    }
    if (graph_.rank(rank).epilogue > kZero && !stepped_) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "plan: rank %d has an epilogue of %d ns but no reduce_gradients and "
          "optimizer_step",
          rank.value(), graph_.rank(rank).epilogue.count()));
    }
    return absl::OkStatus();
  }

  absl::Status OwnTask(TaskId task) const {
    if (!graph_.tasks().Contains(task)) {
      return Fail(absl::StrFormat("there is no such task; there are %d",
                                  graph_.num_tasks()));
    }
    if (graph_.task(task).rank != rank_) {
      return Fail(
          absl::StrFormat("it is of rank %d", graph_.task(task).rank.value()));
    }
    return absl::OkStatus();
  }

  // Checks that the edge exists, crosses ranks and that its task at this end is
  // on this rank.
  absl::Status OwnEdge(EdgeId edge, bool at_producer) const {
    if (!graph_.edges().Contains(edge)) {
      return Fail(absl::StrFormat("there is no such edge; there are %d",
                                  graph_.num_edges()));
    }
    const Dependency& d = graph_.edge(edge);
    const RankId from = graph_.task(d.from).rank;
    const RankId to = graph_.task(d.to).rank;
    if (from == to) {
      return Fail(
          absl::StrFormat("the edge stays on rank %d and needs no "
                          "transfer",
                          from.value()));
    }
    if ((at_producer ? from : to) != rank_) {
      return Fail(absl::StrFormat("the edge goes from rank %d to rank %d",
                                  from.value(), to.value()));
    }
    return absl::OkStatus();
  }

  // Checks that everything that the task needs is there.
  absl::Status CheckInputs(TaskId task) const {
    for (const EdgeId e : graph_.incoming(task)) {
      const TaskId from = graph_.edge(e).from;
      if (graph_.task(from).rank != rank_) {
        if (received_[e] != kArrived) {
          return Fail(absl::StrFormat(
              "its input edge %d from rank %d has not been waited for or is "
              "freed already",
              e.value(), graph_.task(from).rank.value()));
        }
        continue;
      }
      if (!computed_[from]) {
        return Fail(absl::StrFormat("it depends on task %d, which comes later",
                                    from.value()));
      }
      if (offload_[from] == kOffloaded &&
          graph_.task(task).pass != Pass::kForward) {
        return Fail(absl::StrFormat(
            "the activations of task %d are offloaded and not fetched back",
            from.value()));
      }
    }
    return absl::OkStatus();
  }

  // Checks a pair of passes when its first one comes.
  absl::Status CheckPair(TaskId first, TaskId second) const {
    const std::vector<Instruction>& program = plan_.programs[rank_];
    size_t next = index_ + 1;
    while (next < program.size() &&
           !std::holds_alternative<Compute>(program[next])) {
      ++next;
    }
    if (next == program.size() ||
        std::get<Compute>(program[next]).task != second) {
      return Fail(absl::StrFormat(
          "it runs together with task %d, which must be computed next",
          second.value()));
    }
    const absl::Status inputs = CheckInputs(second);
    if (!inputs.ok()) {
      return Fail(absl::StrFormat("it runs together with task %d, but: %s",
                                  second.value(), inputs.message()));
    }
    for (const TaskId t : {first, second}) {
      for (const EdgeId e : graph_.incoming(t)) {
        const Dependency& d = graph_.edge(e);
        if (graph_.task(d.from).rank != rank_) continue;
        if (d.delay == kZero && offload_[d.from] == kResident) continue;
        return Fail(absl::StrFormat(
            "it runs together with task %d, but what task %d kept was moved "
            "to the host",
            second.value(), d.from.value()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckCompute(TaskId task) {
    PIPELOOM_RETURN_IF_ERROR(OwnTask(task));
    if (computed_[task]) return Fail("it is computed twice");
    PIPELOOM_RETURN_IF_ERROR(CheckBeforeEpilogue());
    PIPELOOM_RETURN_IF_ERROR(CheckInputs(task));
    if (!second_[task].is_none()) {
      PIPELOOM_RETURN_IF_ERROR(CheckPair(task, second_[task]));
    }
    const TaskId overlaps = graph_.task(task).overlaps;
    if (!overlaps.is_none() && graph_.task(task).pass != Pass::kWeightGrad) {
      if (!computed_[overlaps]) {
        return Fail(
            absl::StrFormat("it runs together with task %d, which comes later",
                            overlaps.value()));
      }
    } else if (!overlaps.is_none()) {
      if (!computed_[overlaps]) {
        return Fail(absl::StrFormat(
            "it is partly done in the gaps of task %d, which comes later",
            overlaps.value()));
      }
      // Its own input gradient has to be made before those gaps.
      for (const EdgeId e : graph_.incoming(task)) {
        if (graph_.edge(e).from == overlaps) {
          return Fail(absl::StrFormat(
              "it depends on task %d and cannot be done in its gaps",
              overlaps.value()));
        }
        if (place_[graph_.edge(e).from] > place_[overlaps]) {
          return Fail(absl::StrFormat(
              "it is partly done in the gaps of task %d, but depends on task "
              "%d, which comes after that",
              overlaps.value(), graph_.edge(e).from.value()));
        }
      }
    }
    computed_[task] = true;
    place_[task] = index_;
    return absl::OkStatus();
  }

  absl::Status CheckSend(EdgeId edge) {
    PIPELOOM_RETURN_IF_ERROR(OwnEdge(edge, /*at_producer=*/true));
    PIPELOOM_RETURN_IF_ERROR(CheckBeforeEpilogue());
    if (sent_[edge]) return Fail("it is sent twice");
    if (!computed_[graph_.edge(edge).from]) {
      return Fail(absl::StrFormat("its producer, task %d, comes later",
                                  graph_.edge(edge).from.value()));
    }
    sent_[edge] = true;
    return absl::OkStatus();
  }

  absl::Status CheckWaitSend(EdgeId edge) {
    PIPELOOM_RETURN_IF_ERROR(OwnEdge(edge, /*at_producer=*/true));
    if (!sent_[edge]) return Fail("it needs a send before it");
    if (wait_send_[edge]) return Fail("it is waited for twice");
    wait_send_[edge] = true;
    return absl::OkStatus();
  }

  absl::Status Advance(EdgeId edge, Progress before, Progress after,
                       const char* otherwise) {
    PIPELOOM_RETURN_IF_ERROR(OwnEdge(edge, /*at_producer=*/false));
    if (received_[edge] != before) return Fail(otherwise);
    received_[edge] = after;
    return absl::OkStatus();
  }

  absl::Status CheckFree(EdgeId edge) {
    PIPELOOM_RETURN_IF_ERROR(
        Advance(edge, kArrived, kFreed,
                "its buffer is not held: a recv and a wait_recv must stand "
                "before it, and it may be freed once"));
    if (!computed_[graph_.edge(edge).to]) {
      return Fail(absl::StrFormat("its consumer, task %d, comes later",
                                  graph_.edge(edge).to.value()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOffload(const Offload& i) {
    PIPELOOM_RETURN_IF_ERROR(OwnTask(i.task));
    const Task& task = graph_.task(i.task);
    if (task.pass != Pass::kForward || !computed_[i.task] ||
        offload_[i.task] != kResident) {
      return Fail("only a forward task that is computed before, and once");
    }
    if (i.payload <= Bytes(0) || i.payload > task.alloc) {
      return Fail(absl::StrFormat(
          "its payload of %d B must be in [1, %d], what the task keeps",
          i.payload.count(), task.alloc.count()));
    }
    offload_[i.task] = kOffloaded;
    offloaded_bytes_[i.task] = i.payload;
    return absl::OkStatus();
  }

  absl::Status CheckFetch(const Fetch& i) {
    PIPELOOM_RETURN_IF_ERROR(OwnTask(i.task));
    if (offload_[i.task] != kOffloaded) {
      return Fail("it needs one offload before it");
    }
    if (i.payload != offloaded_bytes_[i.task]) {
      return Fail(absl::StrFormat("its payload is %d B; %d B were offloaded",
                                  i.payload.count(),
                                  offloaded_bytes_[i.task].count()));
    }
    offload_[i.task] = kFetched;
    return absl::OkStatus();
  }

  absl::Status CheckReduce() {
    if (reduced_) return Fail("it may stand once in a program");
    reduced_ = true;
    return absl::OkStatus();
  }

  absl::Status CheckOptimizerStep() {
    if (!reduced_) return Fail("it needs a reduce_gradients before it");
    if (stepped_) return Fail("it may stand once in a program");
    stepped_ = true;
    return absl::OkStatus();
  }

  absl::Status CheckComplete() const {
    const auto missing = [](const std::string& what) {
      return absl::FailedPreconditionError("plan: " + what);
    };
    for (const TaskId t : graph_.task_ids()) {
      if (!computed_[t]) {
        return missing(absl::StrFormat("rank %d: %s is never computed",
                                       graph_.task(t).rank.value(),
                                       DescribeTask(graph_, t)));
      }
      if (offload_[t] == kOffloaded) {
        return missing(
            absl::StrFormat("rank %d: task %d is offloaded and "
                            "never fetched",
                            graph_.task(t).rank.value(), t.value()));
      }
    }
    for (const EdgeId e : graph_.edge_ids()) {
      const Dependency& d = graph_.edge(e);
      const RankId from = graph_.task(d.from).rank;
      const RankId to = graph_.task(d.to).rank;
      if (from == to) continue;
      if (!sent_[e]) {
        return missing(
            absl::StrFormat("rank %d: edge %d to rank %d is never sent",
                            from.value(), e.value(), to.value()));
      }
      if (received_[e] != kFreed) {
        static constexpr const char* kMissing[] = {"received", "waited for",
                                                   "freed"};
        return missing(absl::StrFormat(
            "rank %d: edge %d from rank %d is never %s", to.value(), e.value(),
            from.value(), kMissing[received_[e]]));
      }
    }
    return absl::OkStatus();
  }

  const ExecutionPlan& plan_;
  const StageGraph& graph_;
  RankId rank_{};
  size_t index_ = 0;
  bool reduced_ = false;
  bool stepped_ = false;
  IdVector<TaskId, bool> computed_;
  IdVector<TaskId, size_t> place_;  // Index in its rank's program.
  IdVector<TaskId, Residence> offload_;
  std::map<TaskId, Bytes> offloaded_bytes_{};
  IdVector<EdgeId, bool> sent_;
  IdVector<EdgeId, bool> wait_send_;
  IdVector<EdgeId, Progress> received_;
  // Indexed by first pass of a pair: the second one.
  IdVector<TaskId, TaskId> second_;
};

// Pass 3a: the k-th send from a to b is the k-th recv of b from a.
absl::Status CheckChannelOrder(const ExecutionPlan& plan) {
  struct Entry {
    EdgeId edge{};
    size_t index = 0;
  };
  struct Channel {
    std::vector<Entry> sends{};
    std::vector<Entry> recvs{};
  };
  std::map<std::pair<RankId, RankId>, Channel> channels;
  const auto channel = [&](EdgeId e) -> Channel& {
    const Dependency& d = plan.graph.edge(e);
    return channels[{plan.graph.task(d.from).rank, plan.graph.task(d.to).rank}];
  };
  for (const RankId rank : plan.programs.ids()) {
    for (size_t k = 0; k < plan.programs[rank].size(); ++k) {
      const Instruction& i = plan.programs[rank][k];
      if (const auto* send = std::get_if<Send>(&i)) {
        channel(send->edge).sends.push_back({send->edge, k});
      } else if (const auto* recv = std::get_if<Recv>(&i)) {
        channel(recv->edge).recvs.push_back({recv->edge, k});
      }
    }
  }
  for (const auto& [pair, c] : channels) {
    for (size_t k = 0; k < c.sends.size(); ++k) {
      if (c.sends[k].edge == c.recvs[k].edge) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "plan: message %d from rank %d to rank %d is edge %d for the sender "
          "(instruction %d) but edge %d for the receiver (instruction %d); "
          "both "
          "must list them in one order",
          k, pair.first.value(), pair.second.value(), c.sends[k].edge.value(),
          c.sends[k].index, c.recvs[k].edge.value(), c.recvs[k].index));
    }
  }
  return absl::OkStatus();
}

// Pass 3b: runs all programs with sends that block until the receiver has
// reached its recv. Progress is monotone, so the order of turns does not
// matter.
absl::Status CheckProgress(const ExecutionPlan& plan) {
  const StageGraph& graph = plan.graph;
  IdVector<RankId, size_t> at(graph.num_ranks(), 0);
  IdVector<EdgeId, bool> send_reached(graph.num_edges(), false);
  IdVector<EdgeId, bool> recv_reached(graph.num_edges(), false);
  // The edge and the peer that the rank's instruction waits for; none if it
  // does not block.
  struct Block {
    EdgeId edge{};
    RankId peer{};
  };
  const auto from_rank = [&](EdgeId e) {
    return graph.task(graph.edge(e).from).rank;
  };
  const auto to_rank = [&](EdgeId e) {
    return graph.task(graph.edge(e).to).rank;
  };
  const auto blocked = [&](RankId rank) -> Block {
    const Instruction& i = plan.programs[rank][at[rank]];
    if (const auto* s = std::get_if<Send>(&i); s && !recv_reached[s->edge]) {
      return {s->edge, to_rank(s->edge)};
    }
    if (const auto* w = std::get_if<WaitSend>(&i);
        w && !recv_reached[w->edge]) {
      return {w->edge, to_rank(w->edge)};
    }
    if (const auto* w = std::get_if<WaitRecv>(&i);
        w && !send_reached[w->edge]) {
      return {w->edge, from_rank(w->edge)};
    }
    return {};
  };
  std::vector<RankId> runnable;
  for (const RankId rank : graph.rank_ids()) runnable.push_back(rank);
  while (!runnable.empty()) {
    const RankId rank = runnable.back();
    runnable.pop_back();
    for (; at[rank] < plan.programs[rank].size(); ++at[rank]) {
      const Instruction& i = plan.programs[rank][at[rank]];
      // An instruction counts as reached even if it then blocks.
      RankId wake{};
      if (const auto* s = std::get_if<Send>(&i)) {
        if (!send_reached[s->edge]) wake = to_rank(s->edge);
        send_reached[s->edge] = true;
      } else if (const auto* r = std::get_if<Recv>(&i)) {
        recv_reached[r->edge] = true;
        wake = from_rank(r->edge);
      }
      if (!wake.is_none()) runnable.push_back(wake);
      if (!blocked(rank).edge.is_none()) break;
    }
  }
  std::string waiting;
  for (const RankId rank : graph.rank_ids()) {
    if (at[rank] == plan.programs[rank].size()) continue;
    const Block block = blocked(rank);
    absl::StrAppendFormat(
        &waiting, "%s rank %d waits for rank %d at instruction %d (%s)",
        waiting.empty() ? "" : ";", rank.value(), block.peer.value(), at[rank],
        DescribeInstruction(plan.programs[rank][at[rank]]));
  }
  if (waiting.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("plan: deadlock:" + waiting);
}

// Pass 4. A boundary tensor is held from the task that makes it until its send
// has been waited for or, on its own rank, its consumer begins; separately for
// each edge.
absl::Status CheckMemory(const ExecutionPlan& plan) {
  const StageGraph& graph = plan.graph;
  IdVector<TaskId, Bytes> made(graph.num_tasks());
  IdVector<TaskId, Bytes> taken(graph.num_tasks());  // Made on its rank.
  for (const Dependency& d : graph.edges()) {
    made[d.from] += d.payload;
    const bool stays = graph.task(d.from).rank == graph.task(d.to).rank;
    if (stays) taken[d.to] += d.payload;
  }
  for (const RankId rank : graph.rank_ids()) {
    const RankMemory& memory = graph.rank(rank).memory;
    Bytes activations{};
    Bytes received{};
    Bytes sent{};
    const auto within_limit = [&](const auto& where) -> absl::Status {
      const Bytes held = memory.static_bytes() + activations + received + sent;
      if (memory.limit == Bytes(0) || held <= memory.limit) {
        return absl::OkStatus();
      }
      return absl::FailedPreconditionError(absl::StrFormat(
          "plan: rank %d, %s: %d B are needed, %d B over the limit of %d B: "
          "weights %d, gradients %d, optimizer %d, overhead %d, activations "
          "%d, received %d, sent %d",
          rank.value(), where(), held.count(), (held - memory.limit).count(),
          memory.limit.count(), memory.weights.count(),
          memory.gradients.count(), memory.optimizer.count(),
          memory.overhead.count(), activations.count(), received.count(),
          sent.count()));
    };
    PIPELOOM_RETURN_IF_ERROR(
        within_limit([] { return std::string("at the start"); }));
    for (size_t k = 0; k < plan.programs[rank].size(); ++k) {
      const Instruction& i = plan.programs[rank][k];
      Bytes after{};  // Released once the instruction is done.
      std::visit(
          Overloaded{
              [&](const Compute& c) {
                activations += graph.task(c.task).alloc;
                sent += made[c.task] - taken[c.task];
                after = graph.task(c.task).free;
              },
              [&](const Recv& r) { received += graph.edge(r.edge).payload; },
              [&](const Free& f) { received -= graph.edge(f.edge).payload; },
              [&](const WaitSend& w) { sent -= graph.edge(w.edge).payload; },
              [&](const Offload& o) { after = o.payload; },
              [&](const Fetch& f) { activations += f.payload; },
              [](const Send&) {},
              [](const WaitRecv&) {},
              [](const ReduceGradients&) {},
              [](const OptimizerStep&) {},
          },
          i);
      const auto where = [&] {
        return absl::StrFormat("instruction %d (%s)", k,
                               DescribeInstruction(i));
      };
      PIPELOOM_RETURN_IF_ERROR(within_limit(where));
      if (after > activations) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "plan: rank %d, %s: %d B of activations are given back, but only "
            "%d B are held",
            rank.value(), where(), after.count(), activations.count()));
      }
      activations -= after;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateExecutionPlan(const ExecutionPlan& plan) {
  if (plan.programs.size() != plan.graph.num_ranks()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("plan: it has programs of %d ranks; its graph has %d",
                        plan.programs.size(), plan.graph.num_ranks()));
  }
  if (const absl::Status links = CheckLinks(plan.links, plan.graph.num_ranks());
      !links.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan: ", std::string(links.message())));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckPasses(plan));
  PIPELOOM_RETURN_IF_ERROR(CheckLoss(plan));
  PIPELOOM_RETURN_IF_ERROR(CheckPaddedShapes(plan));
  PIPELOOM_RETURN_IF_ERROR(StructureCheck(plan).Run());
  PIPELOOM_RETURN_IF_ERROR(CheckChannelOrder(plan));
  PIPELOOM_RETURN_IF_ERROR(CheckProgress(plan));
  PIPELOOM_RETURN_IF_ERROR(CheckMemory(plan));
  return CheckPredictedTimes(plan);
}

}  // namespace pipeloom
