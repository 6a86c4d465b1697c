#include "planner/passes/pair_passes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"

namespace pipeloom::planner {
namespace {

using partition::MemoryEffect;
using partition::MemorySelection;
using partition::StagePair;
using partition::StepMemory;

class Pairer {
 public:
  Pairer(const StageGraph& graph, const StepMemory& memory,
         const MemorySelection& selection)
      : graph_(graph),
        flat_(graph),
        duration_(flat_.duration),
        gap_(static_cast<size_t>(graph.num_tasks()), 0),
        own_weight_grad_(static_cast<size_t>(graph.num_tasks()), -1),
        own_backward_(static_cast<size_t>(graph.num_tasks()), -1) {
    for (const StagePairId id : memory.pairs.ids()) {
      const StagePair& pair = memory.pairs[id];
      if (pair.backward.is_none()) continue;
      const auto backward = static_cast<size_t>(pair.backward.value());
      const MemoryEffect& effect = memory.effect(id, selection[id]);
      gap_[backward] = effect.gap.count();
      if (pair.weight_grad.is_none() || effect.weight_grad == kZero) continue;
      const auto weight_grad = static_cast<size_t>(pair.weight_grad.value());
      own_weight_grad_[backward] = pair.weight_grad.value();
      own_backward_[weight_grad] = pair.backward.value();
    }
  }
  Pairer(const Pairer&) = delete;
  Pairer& operator=(const Pairer&) = delete;

  PairedOrders Run(const RankOrders& orders,
                   const std::function<bool()>& expired) {
    PairedOrders best{.orders = orders};
    best.step_time = Time(orders, &best.pairs);
    // Tries all ranks at once first, then one by one.
    RankOrders all = orders;
    for (const RankId r : graph_.rank_ids()) {
      std::vector<TaskId> put_off = PutOff(r, orders[r], Bytes(0));
      if (Fits(r, put_off)) all[r] = std::move(put_off);
    }
    Offer(all, &best);
    for (const RankId r : graph_.rank_ids()) {
      if (expired && expired()) break;
      RankOrders one = best.orders;
      one[r] = one[r] == orders[r] ? all[r] : orders[r];
      if (one[r] != best.orders[r]) Offer(one, &best);
    }
    best.timings = timings_;
    return best;
  }

  // Returns the order with each weight gradient that directly follows its
  // backward moved after the next backward of the rank that has a gap, or to
  // where the memory up to `limit` ends before; 0: no limit.
  std::vector<TaskId> PutOff(RankId rank, const std::vector<TaskId>& order,
                             Bytes limit) const {
    std::vector<TaskId> result;
    result.reserve(order.size());
    TaskId waiting;
    Bytes held = graph_.rank(rank).memory.static_bytes();
    const auto add = [&](TaskId t) {
      result.push_back(t);
      held += graph_.task(t).alloc - graph_.task(t).free;
    };
    const auto add_waiting = [&] {
      if (!waiting.is_none()) add(waiting);
      waiting = TaskId();
    };
    for (size_t k = 0; k < order.size(); ++k) {
      const auto task = static_cast<size_t>(order[k].value());
      const bool follows = own_backward_[task] >= 0 && k > 0 &&
                           own_backward_[task] == order[k - 1].value();
      if (follows) {  // Holds it back; the one held back before it is due.
        add_waiting();
        waiting = order[k];
        continue;
      }
      if (limit > Bytes(0) && held + graph_.task(order[k]).alloc > limit) {
        add_waiting();
      }
      add(order[k]);
      // A backward not directly followed by a weight gradient of its own.
      const bool next_follows = k + 1 < order.size() &&
                                own_weight_grad_[task] >= 0 &&
                                own_weight_grad_[task] == order[k + 1].value();
      if (gap_[task] > 0 && !next_follows) add_waiting();
    }
    add_waiting();
    return result;
  }

 private:
  void Offer(const RankOrders& orders, PairedOrders* best) {
    std::vector<PairedPass> pairs;
    const int64_t time = Time(orders, &pairs);
    if (time >= best->step_time) return;
    best->orders = orders;
    best->pairs = std::move(pairs);
    best->step_time = time;
  }

  bool Fits(RankId rank, const std::vector<TaskId>& order) const {
    const RankMemory& memory = graph_.rank(rank).memory;
    if (memory.limit == Bytes(0)) return true;
    Bytes held = memory.static_bytes();
    for (const TaskId t : order) {
      held += graph_.task(t).alloc;
      if (held > memory.limit) return false;
      held -= graph_.task(t).free;
    }
    return true;
  }

  // Returns the step time (ns) with everything paired that the orders allow.
  int64_t Time(const RankOrders& orders, std::vector<PairedPass>* pairs) {
    ++timings_;
    flat_.duration = duration_;
    pairs->clear();
    std::vector<size_t> place(duration_.size(), 0);
    for (const std::vector<TaskId>& order : orders) {
      for (size_t k = 0; k < order.size(); ++k) {
        place[static_cast<size_t>(order[k].value())] = k;
      }
      // Weight gradients whose backward is done, by descending place.
      std::vector<int32_t> open;
      for (const TaskId t : order) {
        const auto task = static_cast<size_t>(t.value());
        if (own_backward_[task] >= 0) {
          std::erase(open, t.value());
          continue;
        }
        if (gap_[task] > 0 && !open.empty()) {
          const auto chosen = static_cast<size_t>(open.back());
          open.pop_back();
          const int64_t hidden = std::min(gap_[task], duration_[chosen]);
          flat_.duration[chosen] = duration_[chosen] - hidden;
          pairs->push_back({.weight_grad = TaskId(static_cast<int32_t>(chosen)),
                            .backward = t,
                            .rest = Nanoseconds(flat_.duration[chosen])});
        }
        const int32_t own = own_weight_grad_[task];
        if (own >= 0) {
          const auto at =
              std::find_if(open.begin(), open.end(), [&](int32_t other) {
                return place[static_cast<size_t>(other)] <
                       place[static_cast<size_t>(own)];
              });
          open.insert(at, own);
        }
      }
    }
    const std::vector<int32_t> sequence = Linearize(flat_, orders);
    if (sequence.empty()) return kNoLimit;
    if (retimer_.has_value()) {
      retimer_->TakeDurations();
    } else {
      retimer_.emplace(flat_);
    }
    return retimer_->Retime(sequence);
  }

  const StageGraph& graph_;
  FlatGraph flat_;
  // Unpaired, in ns. Indexed by task, as all below.
  const std::vector<int64_t> duration_;
  std::vector<int64_t> gap_;  // Gap in ns; 0 except for backwards.
  // -1 if there is none, or if it is fused.
  std::vector<int32_t> own_weight_grad_;
  // -1 for tasks that are no weight gradient.
  std::vector<int32_t> own_backward_;
  int64_t timings_ = 0;
  std::optional<Retimer> retimer_;  // Set by the first timing; times flat_.
};

}  // namespace

PairedOrders PairPasses(const StageGraph& graph, const StepMemory& memory,
                        const MemorySelection& selection,
                        const RankOrders& orders,
                        const std::function<bool()>& expired) {
  return Pairer(graph, memory, selection).Run(orders, expired);
}

RankOrders PutOffWeightGrads(const StageGraph& graph, const StepMemory& memory,
                             const MemorySelection& selection,
                             const RankOrders& orders) {
  const Pairer pairer(graph, memory, selection);
  RankOrders put_off(orders.size());
  for (const RankId r : orders.ids()) {
    put_off[r] = pairer.PutOff(r, orders[r], graph.rank(r).memory.limit);
  }
  return put_off;
}

absl::StatusOr<StageGraph> ApplyPairs(
    const StageGraph& graph, const std::vector<PairedPass>& pairs,
    const IdVector<TaskId, TaskId>& task_now) {
  IdVector<TaskId, Task> tasks = graph.tasks();
  IdVector<EdgeId, Dependency> edges = graph.edges();
  const auto now = [&](TaskId task) {
    return task_now.empty() ? task : task_now[task];
  };
  for (const PairedPass& pair : pairs) {
    Task& weight_grad = tasks[now(pair.weight_grad)];
    weight_grad.duration = pair.rest;
    weight_grad.overlaps = now(pair.backward);
  }
  return StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                            std::move(tasks), std::move(edges));
}

}  // namespace pipeloom::planner
