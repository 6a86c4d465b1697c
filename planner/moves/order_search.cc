#include "planner/moves/order_search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace pipeloom::planner {

OrderUnits::OrderUnits(const StageGraph& graph) {
  const auto n = static_cast<size_t>(graph.num_tasks());
  std::map<std::pair<int32_t, int32_t>, int32_t> index;
  for (const Task& task : graph.tasks()) {
    index.emplace(std::pair(task.microbatch.value(), task.module.value()), 0);
  }
  for (auto& [key, unit_index] : index) {
    unit_index = num_units();
    microbatch.push_back(key.first);
    module.push_back(key.second);
    load.push_back(0);
  }
  unit.reserve(n);
  chunk.assign(n, 0);
  // Keyed by (rank, microbatch).
  std::map<std::pair<int32_t, int32_t>, int32_t> seen;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    const int32_t u =
        index.at(std::pair(task.microbatch.value(), task.module.value()));
    unit.push_back(u);
    load[u] += task.duration.count();
    if (task.pass != Pass::kForward) continue;
    int32_t& count =
        seen[std::pair(task.rank.value(), task.microbatch.value())];
    chunk[t.value()] = count++;
    num_chunks = std::max(num_chunks, count);
  }
  std::map<std::pair<int32_t, int32_t>, int32_t> back;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (task.pass == Pass::kForward) continue;
    const auto key = std::pair(task.rank.value(), task.microbatch.value());
    chunk[t.value()] = back[key];
    if (task.pass == Pass::kBackward) ++back[key];
  }
  // Keyed by (microbatch, rank).
  std::map<std::pair<int32_t, int32_t>, int64_t> work;
  for (const Task& task : graph.tasks()) {
    work[std::pair(task.microbatch.value(), task.rank.value())] +=
        task.duration.count();
  }
  for (const auto& [key, total] : work) {
    if (static_cast<size_t>(key.first) >= period.size()) {
      period.resize(static_cast<size_t>(key.first) + 1, 0);
    }
    period[key.first] = std::max(period[key.first], total);
  }
  unit_offset.assign(static_cast<size_t>(num_units() * num_chunks) + 1, 0);
  const auto cell = [&](size_t t) {
    return static_cast<size_t>(unit[t] * num_chunks + num_chunks - 1 -
                               std::min(chunk[t], num_chunks - 1));
  };
  for (size_t t = 0; t < n; ++t) ++unit_offset[cell(t) + 1];
  std::partial_sum(unit_offset.begin(), unit_offset.end(), unit_offset.begin());
  unit_task.resize(n);
  std::vector<int32_t> next(unit_offset.begin(), unit_offset.end() - 1);
  for (size_t t = 0; t < n; ++t) {
    unit_task[next[cell(t)]++] = static_cast<int32_t>(t);
  }
  std::vector<int64_t> tail(n, 0);
  by_tail.resize(n);
  std::iota(by_tail.begin(), by_tail.end(), 0);
  for (int32_t t = graph.num_tasks() - 1; t >= 0; --t) {
    const TaskId id(t);
    for (const EdgeId e : graph.outgoing(id)) {
      const Dependency& d = graph.edge(e);
      tail[t] = std::max(tail[t], d.delay.count() + tail[d.to.value()]);
    }
    tail[t] += graph.task(id).duration.count();
  }
  std::sort(by_tail.begin(), by_tail.end(), [&](int32_t a, int32_t b) {
    return tail[a] != tail[b] ? tail[a] > tail[b] : a < b;
  });
}

OrderEvaluator::OrderEvaluator(const FlatGraph& graph, const OrderUnits& units)
    : graph_(&graph),
      units_(&units),
      scheduler_(graph),
      retimer_(graph),
      task_order_(static_cast<size_t>(graph.num_tasks)),
      due_(static_cast<size_t>(graph.num_tasks)),
      full_capacity_(static_cast<size_t>(graph.num_ranks), 0) {
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    full_capacity_[graph.rank[t]] += graph.alloc[t];
  }
  for (int32_t r = 0; r < graph.num_ranks; ++r) {
    full_capacity_[r] = std::min(full_capacity_[r], graph.capacity[r]);
  }
}

void OrderEvaluator::SetTargets(const OrderChoice& choice) {
  const FlatGraph& g = *graph_;
  // Microbatches start in the order of their first units.
  offset_.assign(units_->period.size(), -1);
  int64_t at = 0;
  for (const int32_t u : choice.order) {
    int64_t& offset = offset_[units_->microbatch[u]];
    if (offset >= 0) continue;
    offset = at;
    at += static_cast<int64_t>(
        choice.pattern.period *
        static_cast<double>(units_->period[units_->microbatch[u]]));
  }
  // A task is due no earlier than its producers, so the order of due times,
  // with ties by id, is topological.
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    int64_t due = offset_[units_->microbatch[units_->unit[t]]];
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      const int32_t from = g.pred[e];
      const int back = g.pass[from] == Pass::kForward ? 0 : 1;
      const int chunk = std::min(units_->chunk[from], Pattern::kChunks - 1);
      const double factor = g.pass[t] == Pass::kWeightGrad
                                ? choice.pattern.lag[chunk]
                                : choice.pattern.stretch[back][chunk];
      due = std::max(
          due, due_[from] + g.pred_delay[e] +
                   static_cast<int64_t>(factor *
                                        static_cast<double>(g.duration[from])));
    }
    due_[t] = due;
  }
}

void OrderEvaluator::OrderByUnits(const OrderChoice& choice) {
  const OrderUnits& u = *units_;
  const std::vector<int32_t>& order = choice.order;
  const int32_t chunks = u.num_chunks;
  size_t out = 0;
  // Appends the unit's tasks of chunks first .. last, later chunks first.
  const auto append = [&](int32_t unit, int32_t first, int32_t last) {
    const int32_t base = unit * chunks + chunks - 1;
    for (int32_t i = u.unit_offset[base - last];
         i < u.unit_offset[base - first + 1]; ++i) {
      task_order_[out++] = u.unit_task[i];
    }
  };
  switch (choice.rule) {
    case PriorityRule::kUnit:
      for (const int32_t unit : order) append(unit, 0, chunks - 1);
      return;
    case PriorityRule::kGrouped: {
      const auto p = static_cast<size_t>(graph_->num_ranks);
      for (size_t first = 0; first < order.size(); first += p) {
        const size_t last = std::min(first + p, order.size());
        for (int32_t chunk = 0; chunk < chunks; ++chunk) {
          for (size_t i = first; i < last; ++i) append(order[i], chunk, chunk);
        }
      }
      return;
    }
    case PriorityRule::kBreadth:
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        for (const int32_t unit : order) append(unit, chunk, chunk);
      }
      return;
    case PriorityRule::kTail:
      task_order_ = u.by_tail;
      return;
    case PriorityRule::kPeriodic:
    case PriorityRule::kDue:
      SetTargets(choice);
      sorter_.Sort(due_, &task_order_);
      return;
  }
}

int64_t OrderEvaluator::TimeDueOrder() {
  const FlatGraph& g = *graph_;
  held_.assign(static_cast<size_t>(g.num_ranks), 0);
  for (const int32_t t : task_order_) {
    int64_t& held = held_[g.rank[t]];
    held += g.alloc[t];
    if (held > g.capacity[g.rank[t]]) return kNoLimit;
    held -= g.free[t];
  }
  return retimer_.Retime(task_order_);
}

int64_t OrderEvaluator::Evaluate(const OrderChoice& choice, int64_t give_up) {
  OrderByUnits(choice);
  in_due_order_ = choice.rule == PriorityRule::kDue;
  if (in_due_order_) return TimeDueOrder();
  ListPolicy policy{.order = task_order_,
                    .prefer = choice.prefer,
                    .patience = choice.patience,
                    .reserve = choice.reserve,
                    .give_up = give_up};
  if (choice.capacity_ratio < 1) {
    capacity_.resize(full_capacity_.size());
    for (size_t r = 0; r < capacity_.size(); ++r) {
      capacity_[r] = static_cast<int64_t>(
          choice.capacity_ratio * static_cast<double>(full_capacity_[r]));
    }
    policy.capacity = capacity_;
  }
  return scheduler_.Run(policy);
}

void PerturbPattern(Pattern* pattern, Random& random) {
  if (random.Below(4) == 0) {
    pattern->period = 0.8 + 0.05 * static_cast<double>(random.Below(13));
    return;
  }
  if (random.Below(4) == 0) {
    pattern->lag[random.Below(Pattern::kChunks)] =
        1 + 0.5 * static_cast<double>(random.Below(10));
    return;
  }
  pattern->stretch[random.Below(2)][random.Below(Pattern::kChunks)] =
      0.5 + 0.25 * static_cast<double>(random.Below(15));
}

void Perturb(OrderChoice* choice, Random& random) {
  if (IsPattern(choice->rule) && random.Below(3) != 0) {
    PerturbPattern(&choice->pattern, random);
    return;
  }
  std::vector<int32_t>& order = choice->order;
  const auto n = static_cast<int64_t>(order.size());
  const int64_t kind = n > 1 ? random.Below(20) : 17 + random.Below(3);
  if (kind < 17) {
    const int64_t from = random.Below(n);
    const int64_t reach = random.Below(3) == 0 ? n : 6;
    const int64_t to =
        std::clamp<int64_t>(from + random.Between(-reach, reach), 0, n - 1);
    if (kind < 9) {
      const int32_t moved = order[from];
      order.erase(order.begin() + from);
      order.insert(order.begin() + to, moved);
    } else {
      std::swap(order[from], order[to]);
    }
    return;
  }
  switch (kind) {
    case 17: {
      if (random.Below(3) == 0) {
        choice->idealised = !choice->idealised;
        break;
      }
      constexpr Prefer kPrefer[] = {Prefer::kBackward, Prefer::kAlternate,
                                    Prefer::kForward, Prefer::kPriority};
      choice->prefer = kPrefer[random.Below(4)];
      break;
    }
    case 18:
      choice->patience = static_cast<double>(random.Below(5)) * 0.3;
      break;
    default:
      choice->capacity_ratio = 1 - 0.1 * static_cast<double>(random.Below(7));
      break;
  }
}

}  // namespace pipeloom::planner
