#include "planner/passes/pair_forwards.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <utility>

#include "base/status_macros.h"
#include "emulator/stage/pass_pair.h"
#include "ir/plan/execution_plan.h"
#include "planner/bounds/area_bound.h"
#include "planner/bounds/plan_bound.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {
namespace {

using emulator::PairablePass;
using partition::MemoryEffect;
using partition::MemorySelection;
using partition::StagePair;
using partition::StepMemory;

// How far the forwards of a rank may run ahead of the given order, in passes: a
// constant, and a share of the forwards ahead of the rank's first backward. A
// pair costs each microbatch one more pass a hop, so that an order with one
// segment needs about twice its warm-up, and interleaved orders less.
struct Lead {
  int32_t passes = 0;
  double share = 0;
};
constexpr Lead kLeads[] = {{0, 0}, {1, 0}, {2, 0},      {3, 0},    {4, 0},
                           {6, 0}, {8, 0}, {12, 0},     {0, 0.25}, {1, 0.5},
                           {0, 1}, {1, 1}, {1 << 20, 0}};

// Passes that may be pairs. Indexed by task.
struct Passes {
  Passes(const StageGraph& graph, const StepMemory& memory,
         const MemorySelection& selection)
      : pairable(graph.num_tasks()),
        can_pair(graph.num_tasks(), false),
        weight_grad(graph.num_tasks()) {
    for (const StagePairId id : memory.pairs.ids()) {
      const StagePair& pair = memory.pairs[id];
      if (pair.backward.is_none()) continue;
      const MemoryEffect& effect = memory.effect(id, selection[id]);
      pairable[pair.forward] = {.time = graph.task(pair.forward).duration,
                                .gap = effect.forward_gap,
                                .compute = effect.forward_compute};
      pairable[pair.backward] = {.time = graph.task(pair.backward).duration,
                                 .gap = effect.gap,
                                 .compute = effect.compute};
      // Copies to the host are tied to the passes' own starts and ends.
      const bool stays = effect.offloaded == Bytes(0);
      can_pair[pair.forward] = stays;
      can_pair[pair.backward] = stays;
      if (!pair.weight_grad.is_none() &&
          graph.task(pair.weight_grad).duration == kZero) {
        weight_grad[pair.backward] = pair.weight_grad;
      }
    }
  }

  IdVector<TaskId, PairablePass> pairable;
  IdVector<TaskId, bool> can_pair;
  // For backwards: a weight gradient without work, which follows at once.
  IdVector<TaskId, TaskId> weight_grad;
};

// Returns by how much a forward and a backward are shorter together; 0 if they
// cannot be a pair.
Duration Gain(const StageGraph& graph, const Passes& passes, TaskId a,
              TaskId b) {
  if (!passes.can_pair[a] || !passes.can_pair[b] ||
      graph.task(a).microbatch == graph.task(b).microbatch) {
    return kZero;
  }
  return HiddenTogether(passes.pairable[a], passes.pairable[b]);
}

ForwardPair MakePair(const StageGraph& graph, TaskId a, TaskId b,
                     Duration gain) {
  return {.first = std::max(a, b),
          .second = std::min(a, b),
          .together = graph.task(a).duration + graph.task(b).duration - gain};
}

struct Orders {
  RankOrders orders{};
  std::vector<ForwardPair> pairs{};
};

// A list schedule in time order. Forwards and backwards of a rank each keep
// their order.
class ListPairing {
 public:
  ListPairing(const StageGraph& graph, const FlatGraph& flat,
              const Passes& passes, const RankOrders& orders, Lead lead)
      : graph_(graph),
        flat_(flat),
        passes_(passes),
        ranks_(graph.num_ranks()),
        missing_(graph.num_tasks(), 0),
        there_(graph.num_tasks()) {
    for (const TaskId t : graph.task_ids()) {
      missing_[t] = static_cast<int32_t>(graph.incoming(t).size());
    }
    IdVector<TaskId, bool> follows(graph.num_tasks(), false);
    for (const TaskId w : passes.weight_grad) {
      if (!w.is_none()) follows[w] = true;
    }
    for (const RankId r : graph.rank_ids()) {
      Rank& rank = ranks_[r];
      rank.capacity = flat.capacity[static_cast<size_t>(r.value())];
      for (const TaskId t : orders[r]) {
        if (follows[t]) continue;
        switch (graph.task(t).pass) {
          case Pass::kForward:
            rank.forwards.push_back(t);
            break;
          case Pass::kBackward:
            rank.ahead.push_back(rank.forwards.size());
            rank.backwards.push_back(t);
            break;
          case Pass::kWeightGrad:
            rank.weight_grads.push_back(t);
            break;
        }
      }
      const size_t warm_up = rank.ahead.empty() ? 0 : rank.ahead.front();
      const auto more =
          static_cast<size_t>(lead.passes) +
          static_cast<size_t>(lead.share * static_cast<double>(warm_up));
      for (size_t& ahead : rank.ahead) ahead += more;
    }
    result_.orders.resize(graph.num_ranks());
  }

  // Returns nullopt if memory stops all ranks before the end.
  std::optional<Orders> Run() {
    for (const RankId r : graph_.rank_ids()) events_.push({0, r});
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      Rank& rank = ranks_[event.rank];
      if (event.at < rank.free_at) continue;
      Decide(event.rank, event.at);
    }
    int32_t done = 0;
    for (const std::vector<TaskId>& order : result_.orders) {
      done += static_cast<int32_t>(order.size());
    }
    if (done < graph_.num_tasks()) return std::nullopt;
    return std::move(result_);
  }

 private:
  static constexpr int64_t kNever = kNoLimit;

  struct Rank {
    std::vector<TaskId> forwards{};
    std::vector<TaskId> backwards{};
    std::vector<TaskId> weight_grads{};
    // Indexed by backward of the rank: how many forwards may start before it.
    std::vector<size_t> ahead{};
    // Number of each that were started.
    size_t forward = 0;
    size_t backward = 0;
    size_t weight_grad = 0;
    int64_t free_at = 0;  // ns, as all times here.
    int64_t held = 0;     // Bytes.
    int64_t capacity = 0;
    bool HasForward() const { return forward < forwards.size(); }
    bool HasBackward() const { return backward < backwards.size(); }
    // Returns whether the next forward may start before `backward`.
    bool MayLead(size_t before) const {
      return before >= ahead.size() || forward < ahead[before];
    }
  };
  struct Event {
    int64_t at = 0;
    RankId rank{};
    bool operator<(const Event& other) const {  // For a queue: last first.
      return at != other.at ? at > other.at : rank > other.rank;
    }
  };

  static size_t Index(TaskId t) { return static_cast<size_t>(t.value()); }
  int64_t alloc(TaskId t) const { return flat_.alloc[Index(t)]; }
  int64_t duration(TaskId t) const { return flat_.duration[Index(t)]; }
  // Returns when the inputs of a task are there; kNever if that is not known.
  int64_t There(TaskId t) const { return missing_[t] > 0 ? kNever : there_[t]; }

  void Decide(RankId r, int64_t now) {
    Rank& rank = ranks_[r];
    const TaskId f = rank.HasForward() ? rank.forwards[rank.forward] : TaskId();
    const TaskId b =
        rank.HasBackward() ? rank.backwards[rank.backward] : TaskId();
    const int64_t f_there = f.is_none() ? kNever : There(f);
    const int64_t b_there = b.is_none() ? kNever : There(b);
    int64_t wake = kNever;
    const auto wake_at = [&](int64_t at) {
      if (at > now) wake = std::min(wake, at);
    };
    if (f_there < kNever && b_there < kNever &&
        rank.MayLead(rank.backward + 1) &&
        rank.held + alloc(f) + alloc(b) <= rank.capacity) {
      const Duration gain = Gain(graph_, passes_, f, b);
      const int64_t start = std::max({now, f_there, b_there});
      if (gain > kZero && start == now) {
        StartTogether(r, f, b, gain, now);
        return;
      }
      // Waits if that takes less than the pair gains.
      if (start - now < gain.count()) {
        events_.push({start, r});
        return;
      }
    }
    if (b_there <= now && rank.held + alloc(b) <= rank.capacity) {
      Start(r, b, now);
      return;
    }
    if (f_there <= now && MayStartForward(rank, f, b)) {
      Start(r, f, now);
      return;
    }
    if (rank.weight_grad < rank.weight_grads.size()) {
      const TaskId w = rank.weight_grads[rank.weight_grad];
      const int64_t w_there = There(w);
      if (w_there <= now && rank.held + alloc(w) <= rank.capacity) {
        Start(r, w, now);
        return;
      }
      wake_at(w_there);
    }
    wake_at(f_there);
    wake_at(b_there);
    if (wake < kNever) events_.push({wake, r});
  }

  // Returns whether the forward may start alone: the next backward must fit
  // after it.
  bool MayStartForward(const Rank& rank, TaskId f, TaskId b) const {
    if (!rank.MayLead(rank.backward)) return false;
    const int64_t during = rank.held + alloc(f);
    if (during > rank.capacity) return false;
    return b.is_none() ||
           during - flat_.free[Index(f)] + alloc(b) <= rank.capacity;
  }

  void StartTogether(RankId r, TaskId f, TaskId b, Duration gain, int64_t now) {
    const ForwardPair pair = MakePair(graph_, f, b, gain);
    Rank& rank = ranks_[r];
    ++rank.forward;
    ++rank.backward;
    rank.free_at = now + pair.together.count();
    for (const TaskId t : {pair.first, pair.second}) {
      result_.orders[r].push_back(t);
      rank.held += alloc(t) - flat_.free[Index(t)];
    }
    result_.pairs.push_back(pair);
    HandOn(pair.first, rank.free_at);
    HandOn(pair.second, rank.free_at);
    StartEmpty(r, b);
    events_.push({rank.free_at, r});
  }

  void Start(RankId r, TaskId t, int64_t now) {
    Rank& rank = ranks_[r];
    const Pass pass = graph_.task(t).pass;
    ++(pass == Pass::kForward    ? rank.forward
       : pass == Pass::kBackward ? rank.backward
                                 : rank.weight_grad);
    rank.free_at = now + duration(t);
    result_.orders[r].push_back(t);
    rank.held += alloc(t) - flat_.free[Index(t)];
    HandOn(t, rank.free_at);
    if (pass == Pass::kBackward) StartEmpty(r, t);
    events_.push({rank.free_at, r});
  }

  // Starts the weight gradient without work of a backward, if it has one.
  void StartEmpty(RankId r, TaskId backward) {
    const TaskId w = passes_.weight_grad[backward];
    if (w.is_none()) return;
    Rank& rank = ranks_[r];
    result_.orders[r].push_back(w);
    rank.held += alloc(w) - flat_.free[Index(w)];
    HandOn(w, rank.free_at);
  }

  void HandOn(TaskId t, int64_t end) {
    for (const EdgeId e : graph_.outgoing(t)) {
      const Dependency& d = graph_.edge(e);
      there_[d.to] = std::max(there_[d.to], end + d.delay.count());
      if (--missing_[d.to] > 0) continue;
      const RankId to = graph_.task(d.to).rank;
      events_.push({std::max(there_[d.to], ranks_[to].free_at), to});
    }
  }

  const StageGraph& graph_;
  const FlatGraph& flat_;
  const Passes& passes_;
  IdVector<RankId, Rank> ranks_;
  IdVector<TaskId, int32_t> missing_;
  IdVector<TaskId, int64_t> there_;  // When the inputs so far are there.
  std::priority_queue<Event> events_{};
  Orders result_{};
};

// Pairs neighbours of the order of a rank, with forwards or with backwards
// first. Weight gradients without work do not count.
Orders PairNeighbours(const StageGraph& graph, const Passes& passes,
                      const RankOrders& orders, Pass first) {
  Orders paired;
  paired.orders.resize(orders.size());
  IdVector<TaskId, bool> follows(graph.num_tasks(), false);
  for (const TaskId w : passes.weight_grad) {
    if (!w.is_none()) follows[w] = true;
  }
  for (const RankId r : orders.ids()) {
    std::vector<TaskId>& order = paired.orders[r];
    std::vector<TaskId> tasks;
    for (const TaskId t : orders[r]) {
      if (!follows[t]) tasks.push_back(t);
    }
    const auto add_empty = [&](TaskId t) {
      if (!passes.weight_grad[t].is_none()) {
        order.push_back(passes.weight_grad[t]);
      }
    };
    for (size_t k = 0; k < tasks.size(); ++k) {
      const TaskId t = tasks[k];
      if (k + 1 < tasks.size() && graph.task(t).pass == first &&
          graph.task(tasks[k + 1]).pass != first) {
        const TaskId next = tasks[k + 1];
        const Duration gain = Gain(graph, passes, t, next);
        if (gain > kZero) {
          const ForwardPair pair = MakePair(graph, t, next, gain);
          order.push_back(pair.first);
          order.push_back(pair.second);
          add_empty(t);
          add_empty(next);
          paired.pairs.push_back(pair);
          ++k;
          continue;
        }
      }
      order.push_back(t);
      add_empty(t);
    }
  }
  return paired;
}

bool WithinLimits(const StageGraph& graph, const Schedule& schedule) {
  for (const RankId r : graph.rank_ids()) {
    const Bytes limit = graph.rank(r).memory.limit;
    if (limit > Bytes(0) && schedule.peak[r] > limit) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ForwardPairedOrders> PairForwards(
    const StageGraph& graph, const StepMemory& memory,
    const MemorySelection& selection, const RankOrders& orders,
    const std::function<bool()>& expired) {
  ForwardPairedOrders best;
  PIPELOOM_ASSIGN_OR_RETURN(best.schedule, TimeSchedule(graph, orders));
  const Passes passes(graph, memory, selection);
  const auto is_over = [&] { return expired && expired(); };
  // Offers orders; those that contradict the dependencies are none.
  const auto offer = [&](Orders offered) -> absl::Status {
    if (offered.pairs.empty()) return absl::OkStatus();
    ++best.timings;
    PIPELOOM_ASSIGN_OR_RETURN(const StageGraph paired,
                              ApplyForwardPairs(graph, offered.pairs));
    absl::StatusOr<Schedule> schedule =
        TimeSchedule(paired, std::move(offered.orders));
    if (!schedule.ok() || schedule->finish >= best.schedule.finish ||
        !WithinLimits(graph, *schedule)) {
      return absl::OkStatus();
    }
    best.schedule = *std::move(schedule);
    best.pairs = std::move(offered.pairs);
    return absl::OkStatus();
  };
  for (const Pass first : {Pass::kForward, Pass::kBackward}) {
    if (is_over()) return best;
    PIPELOOM_RETURN_IF_ERROR(
        offer(PairNeighbours(graph, passes, orders, first)));
  }
  const FlatGraph flat(graph);
  for (const Lead& lead : kLeads) {
    if (is_over()) break;
    std::optional<Orders> made =
        ListPairing(graph, flat, passes, orders, lead).Run();
    if (made.has_value()) PIPELOOM_RETURN_IF_ERROR(offer(*std::move(made)));
  }
  return best;
}

absl::StatusOr<StageGraph> ApplyForwardPairs(
    const StageGraph& graph, const std::vector<ForwardPair>& pairs,
    const IdVector<TaskId, TaskId>& task_now) {
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (const ForwardPair& pair : pairs) {
    const TaskId first = task_now.empty() ? pair.first : task_now[pair.first];
    const TaskId second =
        task_now.empty() ? pair.second : task_now[pair.second];
    const Bytes with = tasks[second].alloc + BoundaryOf(graph, second).made;
    tasks[first].duration = pair.together;
    tasks[first].alloc += with;
    tasks[first].free += with;
    tasks[second].duration = kZero;
    tasks[second].overlaps = first;
  }
  return StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                            std::move(tasks), graph.edges());
}

NamedBound BoundWithForwardPairs(const StageGraph& graph,
                                 const StepMemory& memory) {
  const FlatGraph least = LeastMemory(graph, memory);
  const auto ranks = static_cast<size_t>(graph.num_ranks());
  std::vector<int64_t> load(ranks, 0);
  std::vector<int64_t> head(ranks, kNoLimit);
  std::vector<int64_t> tail(ranks, kNoLimit);
  NamedBound bound{.time = 0, .source = "chain"};
  const HeadsAndTails chains = ChainsOf(least);
  for (int32_t t = 0; t < least.num_tasks; ++t) {
    const auto task = static_cast<size_t>(t);
    const auto r = static_cast<size_t>(least.rank[task]);
    if (least.pass[task] != Pass::kWeightGrad) load[r] += least.duration[task];
    head[r] = std::min(head[r], chains.head[task]);
    tail[r] = std::min(tail[r], chains.tail[task]);
    bound.time = std::max(bound.time, chains.head[task] + least.duration[task] +
                                          chains.tail[task]);
  }
  for (const StagePairId id : memory.pairs.ids()) {
    const StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    const auto r = static_cast<size_t>(graph.task(pair.backward).rank.value());
    Duration apart = Duration::max();  // The input gradient.
    Duration whole = Duration::max();  // Both gradients.
    Duration gap{};
    Duration forward_gap{};
    const auto consider = [&](const MemoryEffect& effect) {
      apart = std::min(apart, effect.backward);
      whole = std::min(whole, effect.backward + effect.weight_grad);
      gap = std::max(gap, effect.gap);
      forward_gap = std::max(forward_gap, effect.forward_gap);
    };
    consider(memory.effect(id, 0));
    if (memory.has_other_form(id)) {
      consider(memory.effect_in_other_form(id, 0));
    }
    load[r] += (whole - apart - gap - forward_gap).count();
  }
  for (size_t r = 0; r < ranks; ++r) {
    if (head[r] >= kNoLimit) continue;
    const int64_t time = head[r] + tail[r] + std::max<int64_t>(0, load[r]);
    if (time > bound.time) bound = {.time = time, .source = "rank load"};
  }
  return bound;
}

}  // namespace pipeloom::planner
