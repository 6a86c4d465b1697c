#include "planner/list_scheduler.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace pipeloom::planner {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int32_t kPasses = 3;

// Passes from the most to the least preferred.
struct Preference {
  Pass pass[3];
};
constexpr Preference kBackwardFirst{
    {Pass::kBackward, Pass::kForward, Pass::kWeightGrad}};
constexpr Preference kForwardFirst{
    {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}};

}  // namespace

ListScheduler::ListScheduler(const FlatGraph& graph)
    : graph_(&graph),
      guard_(graph),
      info_(static_cast<size_t>(graph.num_tasks)),
      state_(static_cast<size_t>(graph.num_tasks)),
      queues_(static_cast<size_t>(graph.num_ranks) * kPasses),
      task_of_slot_(static_cast<size_t>(graph.num_tasks)),
      place_(static_cast<size_t>(graph.num_tasks)),
      ranks_(static_cast<size_t>(graph.num_ranks)),
      refused_stamp_(static_cast<size_t>(guard_.num_groups()), 0),
      refused_bytes_(static_cast<size_t>(guard_.num_groups()), 0),
      start_(static_cast<size_t>(graph.num_tasks)) {
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    TaskInfo& info = info_[t];
    info.duration = graph.duration[t];
    info.rank = graph.rank[t];
    info.pass = graph.pass[t];
    info.queue = graph.rank[t] * kPasses + static_cast<int32_t>(graph.pass[t]);
    info.succ_begin = graph.succ_offset[t];
    info.succ_end = graph.succ_offset[t + 1];
    info.num_preds = graph.pred_offset[t + 1] - graph.pred_offset[t];
    state_[t].missing = info.num_preds;
    if (info.num_preds == 0) sources_.push_back(t);
    ++queues_[info.queue].size;
  }
  fresh_ = state_;
  int32_t begin = 0;
  int32_t word = 0;
  for (Queue& queue : queues_) {
    queue.begin = begin;
    queue.first_word = word;
    queue.words = (queue.size + 63) / 64;
    begin += queue.size;
    word += queue.words;
  }
  ready_.assign(static_cast<size_t>(word), 0);
  while (leaves_ < graph.num_ranks) leaves_ *= 2;
  decide_at_.assign(2 * static_cast<size_t>(leaves_), kNever);
  sequence_.reserve(static_cast<size_t>(graph.num_tasks));
}

void ListScheduler::Prepare(const ListPolicy& policy) {
  guard_.Reset(policy.capacity);
  state_ = fresh_;
  for (Queue& queue : queues_) {
    queue.size = 0;
    queue.low = queue.words;
    queue.ready = 0;
  }
  std::fill(ready_.begin(), ready_.end(), 0);
  const auto put = [&](int32_t t, int32_t place) {
    Queue& queue = queues_[info_[t].queue];
    state_[t].slot = queue.size;
    task_of_slot_[queue.begin + queue.size] = t;
    ++queue.size;
    place_[t] = place;
  };
  if (policy.order.empty()) {
    for (int32_t t = 0; t < graph_->num_tasks; ++t) put(t, t);
  } else {
    PIPELOOM_DCHECK(policy.order.size() == state_.size());
    int32_t place = 0;
    for (const int32_t t : policy.order) put(t, place++);
  }
  for (Rank& rank : ranks_) {
    rank.pending.clear();
    rank.free_at = 0;
    rank.last = Pass::kBackward;
  }
  std::fill(decide_at_.begin(), decide_at_.end(), kNever);
  sequence_.clear();
}

void ListScheduler::MakeReady(int32_t task) {
  Queue& queue = queues_[info_[task].queue];
  const int32_t word = state_[task].slot / 64;
  ready_[queue.first_word + word] |= uint64_t{1} << (state_[task].slot % 64);
  queue.low = std::min(queue.low, word);
  ++queue.ready;
}

void ListScheduler::Remove(int32_t task) {
  Queue& queue = queues_[info_[task].queue];
  const int32_t slot = state_[task].slot;
  ready_[queue.first_word + slot / 64] &= ~(uint64_t{1} << (slot % 64));
  --queue.ready;
}

int32_t ListScheduler::BestAdmitted(Queue& queue, bool binds) {
  while (ready_[queue.first_word + queue.low] == 0) ++queue.low;
  const int32_t* const tasks = &task_of_slot_[queue.begin];
  if (!binds) {
    const uint64_t bits = ready_[queue.first_word + queue.low];
    return tasks[queue.low * 64 + std::countr_zero(bits)];
  }
  bool fresh_refused = false;
  ++stamp_;
  for (int32_t word = queue.low; word < queue.words; ++word) {
    for (uint64_t bits = ready_[queue.first_word + word]; bits != 0;
         bits &= bits - 1) {
      const int32_t t = tasks[word * 64 + std::countr_zero(bits)];
      // Of groups that have not started only the best is asked, as they meet
      // the same limit; of a started group only tasks that take less than one
      // that was refused, and the one that the guard promises to admit.
      const int32_t group = guard_.group_of(t);
      const int64_t bytes = graph_->alloc[t];
      if (!guard_.IsStarted(t)) {
        if (fresh_refused && !guard_.IsNextOfGroup(t)) continue;
        if (guard_.Admits(t)) return t;
        fresh_refused = true;
        continue;
      }
      if (refused_stamp_[group] == stamp_ && bytes >= refused_bytes_[group] &&
          !guard_.IsNextOfGroup(t)) {
        continue;
      }
      if (guard_.Admits(t)) return t;
      if (refused_stamp_[group] != stamp_ || bytes < refused_bytes_[group]) {
        refused_stamp_[group] = stamp_;
        refused_bytes_[group] = bytes;
      }
    }
  }
  return -1;
}

int64_t ListScheduler::WorthWaitingFor(const Rank& rank,
                                       const ListPolicy& policy, int64_t now,
                                       int32_t task, int preferred) const {
  const int64_t until =
      now + static_cast<int64_t>(policy.patience *
                                 static_cast<double>(info_[task].duration));
  const Pass pass = info_[task].pass;
  const bool any_pass = policy.prefer == Prefer::kPriority;
  int64_t arrival = kNever;
  for (const Pending& p : rank.pending) {
    if (p.arrival > until || p.arrival >= arrival) continue;
    const Pass other = info_[p.task].pass;
    const bool goes_first =
        any_pass || other == pass
            ? place_[p.task] < place_[task]
            : (preferred >> static_cast<int>(other) & 1) != 0;
    if (goes_first && guard_.Admits(p.task)) arrival = p.arrival;
  }
  return arrival;
}

int32_t ListScheduler::Pick(int32_t r, const ListPolicy& policy, int64_t now,
                            int64_t* wait_until) {
  const Rank& rank = ranks_[r];
  Queue* const queues = &queues_[r * kPasses];
  const bool forward_first =
      policy.prefer == Prefer::kForward ||
      (policy.prefer == Prefer::kAlternate && rank.last == Pass::kBackward);
  const Preference& preference = forward_first ? kForwardFirst : kBackwardFirst;
  int32_t best = -1;
  int preferred = 0;  // Passes ahead of the best one's, as bits.
  const bool binds = guard_.Binds(r);
  for (const Pass pass : preference.pass) {
    Queue& queue = queues[static_cast<size_t>(pass)];
    if (queue.ready > 0) {
      const int32_t t = BestAdmitted(queue, binds);
      if (t >= 0 && (best < 0 || place_[t] < place_[best])) best = t;
      if (best >= 0 && policy.prefer != Prefer::kPriority) break;
    }
    preferred |= 1 << static_cast<int>(pass);
  }
  if (best < 0) return -1;
  if (policy.patience > 0 && !rank.pending.empty()) {
    const int64_t arrival = WorthWaitingFor(rank, policy, now, best, preferred);
    if (arrival != kNever) {
      *wait_until = arrival;
      return -1;
    }
  }
  Remove(best);
  return best;
}

int32_t ListScheduler::NextRank() const {
  if (decide_at_[1] == kNever) return -1;
  int32_t node = 1;
  while (node < leaves_) {
    node *= 2;
    // Not a branch: which child wins cannot be foretold.
    node += static_cast<int32_t>(decide_at_[node + 1] < decide_at_[node]);
  }
  return node - leaves_;
}

void ListScheduler::SetDecision(int32_t rank, int64_t at) {
  int32_t node = rank + leaves_;
  decide_at_[node] = at;
  while (node > 1) {
    node /= 2;
    decide_at_[node] = std::min(decide_at_[2 * node], decide_at_[2 * node + 1]);
  }
}

int64_t ListScheduler::Run(const ListPolicy& policy) {
  PIPELOOM_DCHECK(CanRun());
  Prepare(policy);
  for (const int32_t t : sources_) {
    ranks_[info_[t].rank].pending.push_back({.arrival = 0, .task = t});
    SetDecision(info_[t].rank, 0);
  }
  const int32_t* const succ = graph_->succ.data();
  const int64_t* const succ_delay = graph_->succ_delay.data();
  for (int32_t r = NextRank(); r >= 0; r = NextRank()) {
    const int64_t now = decide_at_[leaves_ + r];
    Rank& rank = ranks_[r];
    int64_t next_arrival = kNever;
    size_t kept = 0;
    for (const Pending& p : rank.pending) {
      if (p.arrival <= now) {
        MakeReady(p.task);
      } else {
        next_arrival = std::min(next_arrival, p.arrival);
        rank.pending[kept++] = p;
      }
    }
    rank.pending.resize(kept);
    int64_t wait_until = kNever;
    const int32_t t = Pick(r, policy, now, &wait_until);
    if (t < 0) {
      // Only an arrival can change what this rank may run.
      SetDecision(r, std::min(wait_until, next_arrival));
      continue;
    }
    if (guard_.any_binds()) guard_.Start(t);
    sequence_.push_back(t);
    start_[t] = now;
    const TaskInfo& info = info_[t];
    const int64_t end = now + info.duration;
    rank.free_at = end;
    if (info.pass != Pass::kWeightGrad) rank.last = info.pass;
    for (int32_t e = info.succ_begin; e < info.succ_end; ++e) {
      const int32_t next = succ[e];
      TaskState& state = state_[next];
      state.arrival = std::max(state.arrival, end + succ_delay[e]);
      if (--state.missing > 0) continue;
      const int32_t other = info_[next].rank;
      ranks_[other].pending.push_back({.arrival = state.arrival, .task = next});
      const int64_t at = std::max(ranks_[other].free_at, state.arrival);
      if (other == r) {
        next_arrival = std::min(next_arrival, state.arrival);
      } else if (at < decide_at_[leaves_ + other]) {
        SetDecision(other, at);
      }
    }
    const Queue* const queues = &queues_[r * kPasses];
    const bool any_ready =
        queues[0].ready + queues[1].ready + queues[2].ready > 0;
    SetDecision(r, any_ready                ? end
                   : next_arrival == kNever ? kNever
                                            : std::max(end, next_arrival));
  }
  PIPELOOM_CHECK(sequence_.size() == static_cast<size_t>(graph_->num_tasks));
  int64_t finish = 0;
  for (int32_t r = 0; r < graph_->num_ranks; ++r) {
    finish = std::max(finish, ranks_[r].free_at + graph_->epilogue[r]);
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
