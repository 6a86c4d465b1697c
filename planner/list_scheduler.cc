#include "planner/list_scheduler.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace pipeloom::planner {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// Passes from the most to the least preferred.
struct Preference {
  Pass pass[3];
};
constexpr Preference kBackwardFirst{
    {Pass::kBackward, Pass::kForward, Pass::kWeightGrad}};
constexpr Preference kForwardFirst{
    {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}};

}  // namespace

void ListScheduler::Heap::SiftUp(size_t index) {
  while (index > 0) {
    const size_t parent = (index - 1) / 2;
    if (entries_[parent].key <= entries_[index].key) break;
    std::swap(entries_[parent], entries_[index]);
    index = parent;
  }
}

void ListScheduler::Heap::SiftDown(size_t index) {
  while (true) {
    size_t child = 2 * index + 1;
    if (child >= entries_.size()) break;
    if (child + 1 < entries_.size() &&
        entries_[child + 1].key < entries_[child].key) {
      ++child;
    }
    if (entries_[index].key <= entries_[child].key) break;
    std::swap(entries_[index], entries_[child]);
    index = child;
  }
}

void ListScheduler::Heap::Push(Entry entry) {
  entries_.push_back(entry);
  SiftUp(entries_.size() - 1);
}

void ListScheduler::Heap::RemoveAt(size_t index) {
  entries_[index] = entries_.back();
  entries_.pop_back();
  if (index >= entries_.size()) return;
  SiftDown(index);
  SiftUp(index);
}

ListScheduler::ListScheduler(const FlatGraph& graph)
    : graph_(&graph),
      guard_(graph),
      ranks_(static_cast<size_t>(graph.num_ranks)),
      decide_at_(static_cast<size_t>(graph.num_ranks)),
      missing_(static_cast<size_t>(graph.num_tasks)),
      arrival_(static_cast<size_t>(graph.num_tasks)),
      start_(static_cast<size_t>(graph.num_tasks)) {
  sequence_.reserve(static_cast<size_t>(graph.num_tasks));
}

int64_t ListScheduler::KeyOf(const ListPolicy& policy, int32_t task) const {
  if (policy.priority.empty()) return task;
  return policy.priority[task] * graph_->num_tasks + task;
}

int64_t ListScheduler::BestAdmitted(const Heap& heap) const {
  const std::vector<Entry>& entries = heap.entries();
  if (entries.empty()) return -1;
  if (guard_.Admits(entries[0].task)) return 0;
  // The top is held back. Tasks of started groups may go on; of the others
  // only the best is asked, as they meet the same limit.
  int64_t best = -1;
  int64_t fresh = -1;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!guard_.IsStarted(entries[i].task)) {
      if (fresh < 0 || entries[i].key < entries[fresh].key) {
        fresh = static_cast<int64_t>(i);
      }
      continue;
    }
    if ((best < 0 || entries[i].key < entries[best].key) &&
        guard_.Admits(entries[i].task)) {
      best = static_cast<int64_t>(i);
    }
  }
  if (fresh >= 0 && (best < 0 || entries[fresh].key < entries[best].key) &&
      guard_.Admits(entries[fresh].task)) {
    best = fresh;
  }
  return best;
}

int32_t ListScheduler::Pick(Rank& rank, const ListPolicy& policy, int64_t now,
                            int64_t* wait_until) {
  const auto take = [&](Pass pass, int64_t index) {
    Heap& heap = rank.ready[static_cast<size_t>(pass)];
    const int32_t task = heap.entries()[index].task;
    heap.RemoveAt(static_cast<size_t>(index));
    return task;
  };
  if (policy.prefer == Prefer::kPriority) {
    Pass best_pass = Pass::kForward;
    int64_t best = -1;
    int64_t best_key = 0;
    for (const Pass pass : kBackwardFirst.pass) {
      const Heap& heap = rank.ready[static_cast<size_t>(pass)];
      const int64_t index = BestAdmitted(heap);
      if (index < 0) continue;
      const int64_t key = heap.entries()[index].key;
      if (best < 0 || key < best_key) {
        best = index;
        best_key = key;
        best_pass = pass;
      }
    }
    if (best < 0) return -1;
    if (policy.patience > 0) {
      const int32_t task =
          rank.ready[static_cast<size_t>(best_pass)].entries()[best].task;
      const auto until = now + static_cast<int64_t>(
                                   policy.patience *
                                   static_cast<double>(graph_->duration[task]));
      int64_t arrival = kNever;
      for (const Pending& p : rank.pending) {
        if (p.arrival <= until && p.arrival < arrival &&
            KeyOf(policy, p.task) < best_key && guard_.Admits(p.task)) {
          arrival = p.arrival;
        }
      }
      if (arrival != kNever) {
        *wait_until = arrival;
        return -1;
      }
    }
    return take(best_pass, best);
  }
  const bool forward_first =
      policy.prefer == Prefer::kForward ||
      (policy.prefer == Prefer::kAlternate && rank.last == Pass::kBackward);
  const Preference& preference = forward_first ? kForwardFirst : kBackwardFirst;
  for (int level = 0; level < 3; ++level) {
    const Pass pass = preference.pass[level];
    const int64_t index = BestAdmitted(rank.ready[static_cast<size_t>(pass)]);
    if (index < 0) continue;
    if (policy.patience > 0) {
      const Entry& entry =
          rank.ready[static_cast<size_t>(pass)].entries()[index];
      const int32_t task = entry.task;
      const auto until = now + static_cast<int64_t>(
                                   policy.patience *
                                   static_cast<double>(graph_->duration[task]));
      int64_t arrival = kNever;
      for (const Pending& p : rank.pending) {
        if (p.arrival > until || p.arrival >= arrival) continue;
        bool goes_first =
            graph_->pass[p.task] == pass && KeyOf(policy, p.task) < entry.key;
        for (int other = 0; other < level; ++other) {
          goes_first =
              goes_first || graph_->pass[p.task] == preference.pass[other];
        }
        if (goes_first && guard_.Admits(p.task)) arrival = p.arrival;
      }
      if (arrival != kNever) {
        *wait_until = arrival;
        return -1;
      }
    }
    return take(pass, index);
  }
  return -1;
}

int64_t ListScheduler::Run(const ListPolicy& policy) {
  PIPELOOM_DCHECK(CanRun());
  const FlatGraph& g = *graph_;
  guard_.Reset(policy.capacity);
  sequence_.clear();
  for (Rank& rank : ranks_) {
    for (Heap& heap : rank.ready) heap.clear();
    rank.pending.clear();
    rank.free_at = 0;
    rank.last = Pass::kBackward;
  }
  std::fill(decide_at_.begin(), decide_at_.end(), kNever);
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    missing_[t] = g.pred_offset[t + 1] - g.pred_offset[t];
    arrival_[t] = 0;
    if (missing_[t] == 0) {
      ranks_[g.rank[t]].pending.push_back({.arrival = 0, .task = t});
      decide_at_[g.rank[t]] = 0;
    }
  }
  const auto next_arrival = [&](const Rank& rank) {
    int64_t next = kNever;
    for (const Pending& p : rank.pending) next = std::min(next, p.arrival);
    return next;
  };

  while (true) {
    int32_t r = 0;
    for (int32_t other = 1; other < g.num_ranks; ++other) {
      if (decide_at_[other] < decide_at_[r]) r = other;
    }
    if (g.num_ranks == 0 || decide_at_[r] == kNever) break;
    const int64_t now = decide_at_[r];
    Rank& rank = ranks_[r];
    for (size_t i = 0; i < rank.pending.size();) {
      const Pending p = rank.pending[i];
      if (p.arrival > now) {
        ++i;
        continue;
      }
      rank.ready[static_cast<size_t>(g.pass[p.task])].Push(
          {.key = KeyOf(policy, p.task), .task = p.task});
      rank.pending[i] = rank.pending.back();
      rank.pending.pop_back();
    }
    int64_t wait_until = kNever;
    const int32_t t = Pick(rank, policy, now, &wait_until);
    if (t < 0) {
      // Only an arrival can change what this rank may run.
      decide_at_[r] = wait_until != kNever ? wait_until : next_arrival(rank);
      continue;
    }
    guard_.Start(t);
    sequence_.push_back(t);
    start_[t] = now;
    const int64_t end = now + g.duration[t];
    rank.free_at = end;
    if (g.pass[t] != Pass::kWeightGrad) rank.last = g.pass[t];
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      const int32_t next = g.succ[e];
      arrival_[next] = std::max(arrival_[next], end + g.succ_delay[e]);
      if (--missing_[next] > 0) continue;
      const int32_t other = g.rank[next];
      ranks_[other].pending.push_back(
          {.arrival = arrival_[next], .task = next});
      decide_at_[other] = std::min(
          decide_at_[other], std::max(ranks_[other].free_at, arrival_[next]));
    }
    bool any_ready = false;
    for (const Heap& heap : rank.ready) any_ready = any_ready || !heap.empty();
    decide_at_[r] = end;
    if (!any_ready) {
      const int64_t next = next_arrival(rank);
      decide_at_[r] = next == kNever ? kNever : std::max(end, next);
    }
  }
  PIPELOOM_CHECK(sequence_.size() == static_cast<size_t>(g.num_tasks));
  int64_t finish = 0;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    finish = std::max(finish, ranks_[r].free_at + g.epilogue[r]);
  }
  return finish;
}

absl::Status DescribeShortage(const StageGraph& graph,
                              const MemoryShortage& shortage) {
  const RankId rank(shortage.rank);
  const RankMemory& memory = graph.rank(rank).memory;
  int64_t smallest = 0;
  for (const RankId r : graph.rank_ids()) {
    smallest =
        std::max(smallest, graph.rank(r).memory.static_bytes().count() +
                               shortage.needed[static_cast<size_t>(r.value())]);
  }
  const Bytes needed = memory.limit + Bytes(shortage.bytes_over);
  const std::string what = shortage.task < graph.num_tasks()
                               ? DescribeTask(graph, TaskId(shortage.task)) +
                                     ", alone with its "
                                     "microbatch, needs"
                               : std::string("static memory is");
  return absl::ResourceExhaustedError(absl::StrFormat(
      "rank %d: %s %d B, %d B over the limit of %d B; the smallest limit for "
      "which a schedule was found is %d B on every rank",
      rank.value(), what, needed.count(), shortage.bytes_over,
      memory.limit.count(), smallest));
}

absl::StatusOr<Schedule> ListSchedule(const StageGraph& graph,
                                      const ListPolicy& policy) {
  const FlatGraph flat(graph);
  ListScheduler scheduler(flat);
  if (!scheduler.CanRun()) {
    return DescribeShortage(graph, scheduler.shortage());
  }
  scheduler.Run(policy);
  return TimeSchedule(graph, OrdersOf(flat, scheduler.sequence()));
}

}  // namespace pipeloom::planner
