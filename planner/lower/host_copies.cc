#include "planner/lower/host_copies.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::planner {
namespace {

// A copy of a rank with its places, as positions in the rank's order.
struct PlacedCopy {
  const HostCopy* copy = nullptr;
  size_t from = 0;    // The forward task, after which the copy leaves.
  size_t needed = 0;  // The first task that needs it back.
  // The task before which it comes back; from + 1: no copy is made.
  size_t back = 0;
};

absl::StatusOr<std::vector<PlacedCopy>> CopiesOf(
    const StageGraph& graph, RankId rank, const std::vector<TaskId>& order,
    absl::Span<const HostCopy> copies) {
  IdVector<TaskId, size_t> place(graph.num_tasks(), 0);
  for (size_t k = 0; k < order.size(); ++k) place[order[k]] = k;
  std::vector<PlacedCopy> placed;
  for (const HostCopy& copy : copies) {
    if (graph.task(copy.task).rank != rank) continue;
    size_t needed = order.size();
    for (const EdgeId e : graph.outgoing(copy.task)) {
      const Task& to = graph.task(graph.edge(e).to);
      if (to.rank != rank || to.pass == Pass::kForward) continue;
      needed = std::min(needed, place[graph.edge(e).to]);
    }
    if (needed == order.size()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("host copy of task %d: no backward on its rank "
                          "needs it",
                          copy.task.value()));
    }
    placed.push_back({&copy, place[copy.task], needed, needed});
  }
  // Copies that are needed last come first.
  std::sort(placed.begin(), placed.end(),
            [](const PlacedCopy& a, const PlacedCopy& b) {
              return std::pair(a.needed, a.from) > std::pair(b.needed, b.from);
            });
  return placed;
}

// Sets PlacedCopy::back of all copies.
void PlaceFetches(const StageGraph& graph, RankId rank,
                  const std::vector<TaskId>& order, const Schedule& schedule,
                  std::vector<Bytes> most, std::vector<PlacedCopy>* copies) {
  Bytes largest;
  for (const PlacedCopy& c : *copies) {
    largest = std::max(largest, c.copy->payload);
    for (size_t k = c.from + 1; k < c.needed; ++k) most[k] -= c.copy->payload;
  }
  const Bytes limit = graph.rank(rank).memory.limit;
  const bool limited = limit > Bytes(0);
  const Bytes room = limit - largest;
  SimTime stream_free = SimTime::max();  // Backwards in time.
  for (PlacedCopy& c : *copies) {
    size_t wanted = c.needed;
    if (c.copy->time == kZero) {
      if (c.needed > c.from + 2) --wanted;
    } else {
      stream_free =
          std::min(stream_free, schedule.start[order[c.needed]]) - c.copy->time;
      while (wanted > c.from + 1 &&
             schedule.start[order[wanted - 1]] +
                     graph.task(order[wanted - 1]).duration >
                 stream_free) {
        --wanted;
      }
    }
    while (c.back > wanted &&
           (!limited || most[c.back - 1] + c.copy->payload <= room)) {
      --c.back;
      most[c.back] += c.copy->payload;
    }
  }
}

}  // namespace

absl::Status CheckHostCopies(const StageGraph& graph,
                             absl::Span<const HostCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  IdVector<TaskId, bool> copied(graph.num_tasks(), false);
  for (const HostCopy& copy : copies) {
    const auto refuse = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrFormat("host copy of task %d: %s", copy.task.value(), what));
    };
    if (!graph.tasks().Contains(copy.task)) return refuse("no such task");
    const Task& task = graph.task(copy.task);
    if (task.pass != Pass::kForward) return refuse("it is no forward task");
    if (copied[copy.task]) return refuse("it is listed twice");
    copied[copy.task] = true;
    if (copy.payload <= Bytes(0) || copy.payload > task.alloc) {
      return refuse(absl::StrFormat("%d B; it must be in [1, %d]",
                                    copy.payload.count(), task.alloc.count()));
    }
  }
  return absl::OkStatus();
}

std::vector<Bytes> MostBefore(const StageGraph& graph, RankId rank,
                              const LoweredRank& program) {
  std::vector<Bytes> most(program.gaps.size());
  Bytes held = graph.rank(rank).memory.static_bytes();
  size_t position = 0;
  for (size_t k = 0; k < program.instructions.size(); ++k) {
    const Instruction& instruction = program.instructions[k];
    const auto take = [&](Bytes bytes) {
      held += bytes;
      most[position] = std::max(most[position], held);
    };
    if (position < most.size() && program.gaps[position] == k) take(Bytes(0));
    if (const Free* free = std::get_if<Free>(&instruction)) {
      held -= graph.edge(free->edge).payload;
    } else if (const WaitSend* wait = std::get_if<WaitSend>(&instruction)) {
      held -= graph.edge(wait->edge).payload;
    } else if (const Recv* recv = std::get_if<Recv>(&instruction)) {
      take(graph.edge(recv->edge).payload);
    } else if (const Compute* compute = std::get_if<Compute>(&instruction)) {
      const BoundaryBytes boundary = BoundaryOf(graph, compute->task);
      held -= boundary.taken;
      take(graph.task(compute->task).alloc + boundary.made);
      held -= graph.task(compute->task).free;
      ++position;
    }
  }
  return most;
}

absl::Status PlaceHostCopies(const StageGraph& graph, RankId rank,
                             const std::vector<TaskId>& order,
                             const Schedule& schedule,
                             absl::Span<const HostCopy> host_copies,
                             LoweredRank* program) {
  if (host_copies.empty()) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<PlacedCopy> copies,
                            CopiesOf(graph, rank, order, host_copies));
  if (copies.empty()) return absl::OkStatus();
  PlaceFetches(graph, rank, order, schedule, MostBefore(graph, rank, *program),
               &copies);
  std::vector<const HostCopy*> leaves(order.size(), nullptr);
  std::vector<std::vector<const HostCopy*>> comes(order.size());
  // Copies that are needed first come first.
  for (size_t i = copies.size(); i-- > 0;) {
    const PlacedCopy& c = copies[i];
    if (c.back == c.from + 1) continue;
    leaves[c.from] = c.copy;
    comes[c.back].push_back(c.copy);
  }
  std::vector<Instruction> with;
  with.reserve(program->instructions.size() + 2 * copies.size());
  size_t position = 0;
  for (size_t k = 0; k < program->instructions.size(); ++k) {
    if (position < order.size() && program->gaps[position] == k) {
      for (const HostCopy* copy : comes[position]) {
        with.emplace_back(Fetch{copy->task, copy->payload});
      }
    }
    with.push_back(program->instructions[k]);
    if (!std::holds_alternative<Compute>(with.back())) continue;
    if (const HostCopy* copy = leaves[position]; copy != nullptr) {
      with.emplace_back(Offload{copy->task, copy->payload});
    }
    ++position;
  }
  program->instructions = std::move(with);
  return absl::OkStatus();
}

}  // namespace pipeloom::planner
