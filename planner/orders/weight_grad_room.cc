#include "planner/orders/weight_grad_room.h"

#include <utility>
#include <vector>

namespace pipeloom::planner {

void MakeRoomByWeightGrads(const StageGraph& graph, RankOrders* orders) {
  for (const RankId r : orders->ids()) {
    const RankMemory& memory = graph.rank(r).memory;
    if (memory.limit == Bytes(0)) continue;
    std::vector<TaskId>& order = (*orders)[r];
    IdVector<TaskId, bool> done(graph.num_tasks(), false);
    // Weight gradients; those from `first_due` on are due.
    std::vector<TaskId> due;
    size_t first_due = 0;
    std::vector<TaskId> roomy;
    Bytes held = memory.static_bytes();
    const auto run = [&](TaskId t) {
      if (done[t]) return;
      done[t] = true;
      held += graph.task(t).alloc - graph.task(t).free;
      roomy.push_back(t);
      if (graph.task(t).pass != Pass::kBackward) return;
      for (const EdgeId e : graph.outgoing(t)) {
        const TaskId next = graph.edge(e).to;
        if (graph.task(next).pass == Pass::kWeightGrad &&
            graph.task(next).rank == r) {
          due.push_back(next);
        }
      }
    };
    for (const TaskId t : order) {
      while (held + graph.task(t).alloc > memory.limit &&
             first_due < due.size()) {
        run(due[first_due++]);
      }
      run(t);
    }
    order = std::move(roomy);
  }
}

}  // namespace pipeloom::planner
