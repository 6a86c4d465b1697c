#include "planner/construct/list_scheduler.h"

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
// Up to this many ranks, looking at all of them is cheaper than a tournament.
constexpr int32_t kFewRanks = 16;

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
      rank_work_(static_cast<size_t>(graph.num_ranks), 0),
      pending_(static_cast<size_t>(graph.num_tasks)),
      refused_stamp_(static_cast<size_t>(guard_.num_groups()), 0),
      refused_bytes_(static_cast<size_t>(guard_.num_groups()), 0),
      taken_bytes_(static_cast<size_t>(graph.num_ranks), 0),
      num_takers_(static_cast<size_t>(graph.num_ranks), 0),
      start_(static_cast<size_t>(graph.num_tasks)) {
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    TaskInfo& info = info_[t];
    info.duration = graph.duration[t];
    info.alloc = graph.alloc[t];
    info.rank = graph.rank[t];
    info.pass = graph.pass[t];
    info.queue = graph.rank[t] * kPasses + static_cast<int32_t>(graph.pass[t]);
    info.succ_begin = graph.succ_offset[t];
    info.succ_end = graph.succ_offset[t + 1];
    state_[t].missing = graph.pred_offset[t + 1] - graph.pred_offset[t];
    if (state_[t].missing == 0) sources_.push_back(t);
    rank_work_[info.rank] += info.duration;
    Queue& queue = queues_[info.queue];
    ++queue.size;
    queue.only_frees = queue.only_frees && graph.alloc[t] <= graph.free[t];
    queue.most_alloc = std::max(queue.most_alloc, graph.alloc[t]);
    queue.least_alloc = std::min(queue.least_alloc, graph.alloc[t]);
    queue.least_net = std::min(queue.least_net, graph.alloc[t] - graph.free[t]);
    taken_bytes_[info.rank] += info.alloc;
    num_takers_[info.rank] += info.alloc > 0 ? 1 : 0;
  }
  fresh_ = state_;
  SetTails();
  int32_t begin = 0;
  int32_t word = 0;
  for (size_t i = 0; i < queues_.size(); ++i) {
    Queue& queue = queues_[i];
    if (i % kPasses == 0) ranks_[i / kPasses].pending_begin = begin;
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

void ListScheduler::SetTails() {
  const FlatGraph& g = *graph_;
  // Visits consumers before producers.
  std::vector<int32_t> missing(info_.size());
  std::vector<int32_t> order;
  order.reserve(info_.size());
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    missing[t] = g.succ_offset[t + 1] - g.succ_offset[t];
    info_[t].tail = g.epilogue[g.rank[t]];
    if (missing[t] == 0) order.push_back(t);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t t = order[i];
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      TaskInfo& from = info_[g.pred[e]];
      from.tail =
          std::max(from.tail, g.pred_delay[e] + g.duration[t] + info_[t].tail);
      if (--missing[g.pred[e]] == 0) order.push_back(g.pred[e]);
    }
  }
  std::vector<int64_t> shortest(rank_work_.size(), kNever);
  for (const TaskInfo& info : info_) {
    shortest[info.rank] = std::min(shortest[info.rank], info.tail);
  }
  for (size_t r = 0; r < rank_work_.size(); ++r) {
    if (shortest[r] != kNever) rank_work_[r] += shortest[r];
  }
}

void ListScheduler::PrepareTakers(const ListPolicy& policy) {
  int32_t begin = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.room = graph_->capacity[r];
    rank.keeps = taken_bytes_[r] > rank.room;
    rank.next_taker = begin;
    rank.end_taker = begin;
    if (rank.keeps) begin += num_takers_[r];
  }
  takers_.resize(static_cast<size_t>(begin));
  for (const int32_t t : policy.order) {
    Rank& rank = ranks_[info_[t].rank];
    if (rank.keeps && info_[t].alloc > 0) takers_[rank.end_taker++] = t;
  }
}

void ListScheduler::Prepare(const ListPolicy& policy) {
  keeps_takers_ = policy.keeps_takers;
  if (keeps_takers_) {
    PrepareTakers(policy);
  } else {
    guard_.Reset(policy.capacity, policy.reserve);
  }
  state_ = fresh_;
  for (Queue& queue : queues_) {
    queue.size = 0;
    queue.low = queue.words;
    queue.ready = 0;
  }
  std::fill(ready_.begin(), ready_.end(), 0);
  const auto put = [&](int32_t t) {
    Queue& queue = queues_[info_[t].queue];
    state_[t].slot = queue.size;
    task_of_slot_[queue.begin + queue.size] = t;
    ++queue.size;
  };
  if (policy.order.empty()) {
    for (int32_t t = 0; t < graph_->num_tasks; ++t) put(t);
  } else {
    PIPELOOM_DCHECK(policy.order.size() == state_.size());
    for (const int32_t t : policy.order) put(t);
  }
  if (policy.patience > 0 || policy.prefer == Prefer::kPriority) {
    for (int32_t i = 0; i < graph_->num_tasks; ++i) {
      place_[policy.order.empty() ? i : policy.order[i]] = i;
    }
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    rank.left = rank_work_[r];
    rank.num_pending = 0;
    rank.free_at = 0;
    rank.last = Pass::kBackward;
  }
  std::fill(decide_at_.begin(), decide_at_.end(), kNever);
  sequence_.clear();
}

inline void ListScheduler::MakeReady(int32_t task) {
  Queue& queue = queues_[info_[task].queue];
  const int32_t slot = state_[task].slot;
  ready_[queue.first_word + slot / 64] |= uint64_t{1} << (slot % 64);
  queue.low = std::min(queue.low, slot / 64);
  ++queue.ready;
}

inline void ListScheduler::Remove(int32_t task) {
  Queue& queue = queues_[info_[task].queue];
  const int32_t slot = state_[task].slot;
  ready_[queue.first_word + slot / 64] &= ~(uint64_t{1} << (slot % 64));
  --queue.ready;
}

inline void ListScheduler::Arrive(Rank& rank, int64_t arrival, int32_t task) {
  if (arrival <= rank.free_at) return MakeReady(task);
  pending_[rank.pending_begin + rank.num_pending++] = {.arrival = arrival,
                                                       .task = task};
}

inline int64_t ListScheduler::TakeArrived(Rank& rank, int64_t now) {
  int64_t next_arrival = kNever;
  Pending* const pending = &pending_[rank.pending_begin];
  int32_t kept = 0;
  for (int32_t i = 0; i < rank.num_pending; ++i) {
    const Pending p = pending[i];
    if (p.arrival <= now) {
      MakeReady(p.task);
    } else {
      next_arrival = std::min(next_arrival, p.arrival);
      pending[kept++] = p;
    }
  }
  rank.num_pending = kept;
  return next_arrival;
}

inline int32_t ListScheduler::Best(Queue& queue) const {
  const uint64_t* const words = &ready_[queue.first_word];
  while (words[queue.low] == 0) ++queue.low;
  return task_of_slot_[queue.begin + queue.low * 64 +
                       std::countr_zero(words[queue.low])];
}

int32_t ListScheduler::BestAdmitted(Queue& queue, int32_t rank, int32_t rival) {
  const int32_t first = Best(queue);
  const int64_t room = guard_.Room(rank);
  if (room < queue.least_alloc) return -1;
  if (queue.only_frees && queue.most_alloc <= room) return first;
  const int32_t* const tasks = &task_of_slot_[queue.begin];
  bool fresh_refused = false;
  // Whether no task of an unstarted group can be admitted.
  bool no_fresh = false;
  MemoryGuard::FreshRoom fresh{};
  ++stamp_;
  for (int32_t word = queue.low; word < queue.words; ++word) {
    for (uint64_t bits = ready_[queue.first_word + word]; bits != 0;
         bits &= bits - 1) {
      const int32_t t = tasks[word * 64 + std::countr_zero(bits)];
      if (rival >= 0 && place_[t] > place_[rival]) return -1;
      // Among groups that have not started only the best is asked, as all of
      // them meet the same limit. Of a started group only those tasks are asked
      // that take less than one that was refused, and the one that the guard
      // promises to admit.
      const int32_t group = guard_.group_of(t);
      const int64_t bytes = info_[t].alloc;
      if (!guard_.IsStarted(t)) {
        if (no_fresh) continue;
        if (!fresh_refused) {
          if (guard_.Admits(t)) return t;
          fresh_refused = true;
          fresh = guard_.RoomForFresh(rank);
          no_fresh = queue.least_net > 0 && queue.least_net > fresh.most_net;
          continue;
        }
        if (guard_.IsNextOfGroup(t) && guard_.AdmitsFresh(t, fresh)) return t;
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

inline bool ListScheduler::MayTake(int32_t task) const {
  const Rank& rank = ranks_[info_[task].rank];
  return info_[task].alloc == 0 ||
         (info_[task].alloc <= rank.room && takers_[rank.next_taker] == task);
}

int32_t ListScheduler::BestKept(Queue& queue, int32_t rank) {
  const int32_t first = Best(queue);
  if (queue.most_alloc == 0) return first;
  const Rank& state = ranks_[rank];
  if (queue.least_alloc > 0) {
    // All of them take memory.
    if (state.next_taker == state.end_taker) return -1;
    const int32_t t = takers_[state.next_taker];
    if (info_[t].alloc > state.room || info_[t].queue != info_[first].queue) {
      return -1;
    }
    const int32_t slot = state_[t].slot;
    return (ready_[queue.first_word + slot / 64] >> (slot % 64) & 1) != 0 ? t
                                                                          : -1;
  }
  for (int32_t word = queue.low; word < queue.words; ++word) {
    for (uint64_t bits = ready_[queue.first_word + word]; bits != 0;
         bits &= bits - 1) {
      const int32_t t =
          task_of_slot_[queue.begin + word * 64 + std::countr_zero(bits)];
      if (MayTake(t)) return t;
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
  for (int32_t i = 0; i < rank.num_pending; ++i) {
    const Pending& p = pending_[rank.pending_begin + i];
    if (p.arrival > until || p.arrival >= arrival) continue;
    const Pass other = info_[p.task].pass;
    const bool goes_first =
        any_pass || other == pass
            ? place_[p.task] < place_[task]
            : (preferred >> static_cast<int>(other) & 1) != 0;
    if (!goes_first) continue;
    const bool admitted =
        keeps_takers_ ? !rank.keeps || MayTake(p.task) : guard_.Admits(p.task);
    if (admitted) arrival = p.arrival;
  }
  return arrival;
}

inline int32_t ListScheduler::Pick(int32_t r, const ListPolicy& policy,
                                   int64_t now, int64_t* wait_until) {
  const Rank& rank = ranks_[r];
  Queue* const queues = &queues_[r * kPasses];
  const bool forward_first =
      policy.prefer == Prefer::kForward ||
      (policy.prefer == Prefer::kAlternate && rank.last == Pass::kBackward);
  const bool any_pass = policy.prefer == Prefer::kPriority;
  const Preference& preference = forward_first ? kForwardFirst : kBackwardFirst;
  int32_t best = -1;
  int preferred = 0;  // Passes preferred to that of the best task, as bits.
  const bool binds = keeps_takers_ ? rank.keeps : guard_.Binds(r);
  for (const Pass pass : preference.pass) {
    Queue& queue = queues[static_cast<size_t>(pass)];
    if (queue.ready > 0) {
      const int32_t t = !binds          ? Best(queue)
                        : keeps_takers_ ? BestKept(queue, r)
                                        : BestAdmitted(queue, r, best);
      if (t >= 0 && (best < 0 || place_[t] < place_[best])) best = t;
      if (best >= 0 && !any_pass) break;
    }
    preferred |= 1 << static_cast<int>(pass);
  }
  if (best < 0) return -1;
  if (policy.patience > 0 && rank.num_pending > 0) {
    const int64_t arrival = WorthWaitingFor(rank, policy, now, best, preferred);
    if (arrival != kNever) {
      *wait_until = arrival;
      return -1;
    }
  }
  Remove(best);
  return best;
}

inline int32_t ListScheduler::NextRank() const {
  // Avoids branches, as the first rank is unpredictable.
  if (leaves_ <= kFewRanks) {
    // Compares eight at a time, as a tree.
    int64_t soonest = kNever;
    int32_t rank = -1;
    for (int32_t first = 0; first < leaves_; first += 8) {
      const int64_t* const at = &decide_at_[leaves_ + first];
      const auto better = [at](int32_t a, int32_t b) {
        return at[b] < at[a] ? b : a;
      };
      const int32_t best = better(better(better(0, 1), better(2, 3)),
                                  better(better(4, 5), better(6, 7)));
      rank = at[best] < soonest ? first + best : rank;
      soonest = std::min(soonest, at[best]);
    }
    return rank;
  }
  if (decide_at_[1] == kNever) return -1;
  int32_t node = 1;
  while (node < leaves_) {
    node *= 2;
    node += static_cast<int32_t>(decide_at_[node + 1] < decide_at_[node]);
  }
  return node - leaves_;
}

inline void ListScheduler::SetDecision(int32_t rank, int64_t at) {
  int32_t node = rank + leaves_;
  decide_at_[node] = at;
  if (leaves_ <= kFewRanks) return;
  while (node > 1) {
    node /= 2;
    decide_at_[node] = std::min(decide_at_[2 * node], decide_at_[2 * node + 1]);
  }
}

int64_t ListScheduler::Run(const ListPolicy& policy) {
  PIPELOOM_DCHECK(CanRun() || policy.keeps_takers);
  Prepare(policy);
  for (const int32_t t : sources_) {
    Arrive(ranks_[info_[t].rank], 0, t);
    SetDecision(info_[t].rank, 0);
  }
  const int32_t* const succ = graph_->succ.data();
  const int64_t* const succ_delay = graph_->succ_delay.data();
  const bool any_binds = !keeps_takers_ && guard_.any_binds();
  for (int32_t r = NextRank(); r >= 0; r = NextRank()) {
    const int64_t now = decide_at_[leaves_ + r];
    Rank& rank = ranks_[r];
    int64_t next_arrival = TakeArrived(rank, now);
    int64_t wait_until = kNever;
    const int32_t t = Pick(r, policy, now, &wait_until);
    if (t < 0) {
      // Only an arrival can change what this rank may run.
      SetDecision(r, std::min(wait_until, next_arrival));
      continue;
    }
    if (any_binds) guard_.Start(t);
    if (rank.keeps && keeps_takers_) {
      rank.room += graph_->free[t] - info_[t].alloc;
      if (info_[t].alloc > 0) ++rank.next_taker;
    }
    sequence_.push_back(t);
    start_[t] = now;
    const TaskInfo& info = info_[t];
    const int64_t end = now + info.duration;
    rank.free_at = end;
    rank.left -= info.duration;
    if (end + std::max(rank.left, info.tail) >= policy.give_up) {
      return kNoLimit;
    }
    if (info.pass != Pass::kWeightGrad) rank.last = info.pass;
    for (int32_t e = info.succ_begin; e < info.succ_end; ++e) {
      const int32_t next = succ[e];
      TaskState& state = state_[next];
      state.arrival = std::max(state.arrival, end + succ_delay[e]);
      if (--state.missing > 0) continue;
      const int32_t other = info_[next].rank;
      Arrive(ranks_[other], state.arrival, next);
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
  if (keeps_takers_ &&
      sequence_.size() < static_cast<size_t>(graph_->num_tasks)) {
    return kNoLimit;
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
  const Bytes needed = memory.limit + Bytes(shortage.bytes_over);
  const std::string what = shortage.task < graph.num_tasks()
                               ? DescribeTask(graph, TaskId(shortage.task)) +
                                     ", alone with its "
                                     "microbatch, needs"
                               : std::string("static memory is");
  return absl::ResourceExhaustedError(absl::StrFormat(
      "rank %d: %s %s, %s over the limit of %s", rank.value(), what,
      FormatBytes(needed), FormatBytes(Bytes(shortage.bytes_over)),
      FormatBytes(memory.limit)));
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
