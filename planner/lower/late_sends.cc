#include "planner/lower/late_sends.h"

#include <algorithm>
#include <cstddef>
#include <queue>
#include <utility>

namespace pipeloom::planner {
namespace {

// Chooses for all ranks, one after another, as a tensor that one rank does not
// take yet is held by another.
class Chooser {
 public:
  Chooser(const StageGraph& graph, const RankOrders& orders,
          const IdVector<TaskId, TaskEvents>& events,
          IdVector<RankId, std::vector<Bytes>> most)
      : graph_(graph),
        orders_(orders),
        events_(events),
        most_(std::move(most)),
        place_(graph.num_tasks(), 0) {
    for (const std::vector<TaskId>& order : orders) {
      for (size_t k = 0; k < order.size(); ++k) place_[order[k]] = k;
    }
  }

  std::vector<LateSend> Choose() {
    for (const RankId rank : graph_.rank_ids()) {
      const Bytes limit = graph_.rank(rank).memory.limit;
      const std::vector<Bytes>& most = most_[rank];
      if (std::any_of(most.begin(), most.end(),
                      [limit](Bytes bytes) { return bytes > limit; })) {
        Relieve(rank, limit);
      }
    }
    return std::move(late_);
  }

 private:
  // A tensor on its way to the rank.
  struct Waiting {
    size_t consumer = 0;  // Position of its consumer.
    EdgeId edge{};
    size_t from = 0;  // The gap in which it is received.
    TaskId after{};   // The task after which it is sent.
    bool operator<(const Waiting& other) const {
      return std::pair(consumer, edge) < std::pair(other.consumer, other.edge);
    }
  };

  // Returns the gap of the rank in which a tensor is received that is sent at
  // `sent`.
  size_t GapOf(RankId rank, const EventKey& sent) const {
    const std::vector<TaskId>& order = orders_[rank];
    return static_cast<size_t>(
        std::partition_point(order.begin(), order.end(),
                             [&](TaskId t) { return events_[t].end <= sent; }) -
        order.begin());
  }

  // Returns the first task of the rank that ends at `key` or later; none: there
  // is no such task.
  TaskId FirstEndingAt(RankId rank, const EventKey& key) const {
    const std::vector<TaskId>& order = orders_[rank];
    const auto it =
        std::partition_point(order.begin(), order.end(),
                             [&](TaskId t) { return events_[t].end < key; });
    return it == order.end() ? TaskId() : *it;
  }

  // Returns whether the sender can keep the tensor until `after` has ended.
  bool HasRoom(const Waiting& w, RankId sender, TaskId after) const {
    const Bytes limit = graph_.rank(sender).memory.limit;
    if (limit == Bytes(0)) return true;
    const std::vector<Bytes>& most = most_[sender];
    const size_t last = std::min(place_[after] + 1, most.size() - 1);
    const Bytes payload = graph_.edge(w.edge).payload;
    for (size_t k = place_[w.after] + 1; k <= last; ++k) {
      if (most[k] + payload > limit) return false;
    }
    return true;
  }

  // Has the tensor sent so late that the rank holds nothing of it at
  // `position`. Returns whether that is possible.
  bool Delay(RankId rank, size_t position, Waiting* w) {
    const Dependency& d = graph_.edge(w->edge);
    const RankId sender = graph_.task(d.from).rank;
    const TaskId after =
        FirstEndingAt(sender, events_[orders_[rank][position]].end);
    if (after.is_none()) return false;
    const SimTime arrival = events_[after].end.at + d.delay;
    const SimTime needed = events_[d.to].start.at;
    if (arrival > needed || (arrival == needed && d.delay == kZero)) {
      return false;
    }
    if (!HasRoom(*w, sender, after)) return false;
    std::vector<Bytes>& most = most_[sender];
    if (!most.empty()) {
      const size_t last = std::min(place_[after] + 1, most.size() - 1);
      for (size_t k = place_[w->after] + 1; k <= last; ++k) {
        most[k] += d.payload;
      }
    }
    const size_t from = GapOf(rank, events_[after].end);
    for (size_t k = w->from; k < from; ++k) most_[rank][k] -= d.payload;
    w->from = from;
    w->after = after;
    return true;
  }

  void Relieve(RankId rank, Bytes limit) {
    const std::vector<TaskId>& order = orders_[rank];
    std::vector<std::vector<Waiting>> comes(order.size() + 1);
    for (const TaskId to : order) {
      for (const EdgeId e : graph_.incoming(to)) {
        const Dependency& d = graph_.edge(e);
        if (graph_.task(d.from).rank == rank || d.payload == Bytes(0)) continue;
        const size_t gap = GapOf(rank, events_[d.from].end);
        comes[gap].push_back(
            {.consumer = place_[to], .edge = e, .from = gap, .after = d.from});
      }
    }
    std::priority_queue<Waiting> waiting;
    for (size_t k = 0; k < order.size(); ++k) {
      for (const Waiting& w : comes[k]) waiting.push(w);
      while (most_[rank][k] > limit && !waiting.empty() &&
             waiting.top().consumer > k) {
        Waiting w = waiting.top();
        waiting.pop();
        // If it cannot wait beyond this position, it cannot beyond later ones.
        if (!Delay(rank, k, &w)) {
          Note(w);
          continue;
        }
        comes[w.from].push_back(w);
      }
    }
    for (; !waiting.empty(); waiting.pop()) Note(waiting.top());
  }

  void Note(const Waiting& w) {
    if (w.after != graph_.edge(w.edge).from) {
      late_.push_back({.edge = w.edge, .after = w.after});
    }
  }

  const StageGraph& graph_;
  const RankOrders& orders_;
  const IdVector<TaskId, TaskEvents>& events_;
  IdVector<RankId, std::vector<Bytes>> most_;
  IdVector<TaskId, size_t> place_;
  std::vector<LateSend> late_{};
};

}  // namespace

std::vector<LateSend> ChooseLateSends(
    const StageGraph& graph, const RankOrders& orders,
    const IdVector<TaskId, TaskEvents>& events,
    IdVector<RankId, std::vector<Bytes>> most) {
  return Chooser(graph, orders, events, std::move(most)).Choose();
}

}  // namespace pipeloom::planner
