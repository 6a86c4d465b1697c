#include "planner/orders/classic_orders.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "planner/orders/dual_pipe_v.h"
#include "planner/orders/gpipe.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/v_schedule.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/orders/weight_grad_room.h"
#include "planner/orders/zero_bubble_h1.h"
#include "planner/orders/zero_bubble_v.h"

namespace pipeloom::planner {
namespace {

// Returns whether every microbatch has the same number of tasks on every stage.
bool IsRegular(const StageGraph& graph) {
  int32_t num_stages = 0;
  int32_t num_microbatches = 0;
  for (const Task& task : graph.tasks()) {
    if (task.sub_microbatch > 0) return false;
    num_stages = std::max(num_stages, task.stage.value() + 1);
    num_microbatches = std::max(num_microbatches, task.microbatch.value() + 1);
  }
  if (num_stages % graph.num_ranks() != 0) return false;
  const auto cells = int64_t{num_stages} * num_microbatches;
  if (cells > graph.num_tasks()) return false;
  std::vector<int32_t> count(static_cast<size_t>(cells), 0);
  for (const Task& task : graph.tasks()) {
    ++count[task.microbatch.value() * int64_t{num_stages} + task.stage.value()];
  }
  for (int64_t c = num_stages; c < cells; ++c) {
    if (count[c] != count[c - num_stages]) return false;
  }
  return true;
}

}  // namespace

std::vector<RankOrders> ClassicOrders(const StageGraph& graph) {
  std::vector<RankOrders> all;
  if (graph.num_tasks() == 0 || !IsRegular(graph)) return all;
  const VirtualPipeline pipeline(graph);
  const auto add = [&](absl::StatusOr<RankOrders> orders) {
    if (!orders.ok()) return;
    MakeRoomByWeightGrads(graph, &*orders);
    all.push_back(*std::move(orders));
  };
  const bool limited =
      std::any_of(graph.ranks().begin(), graph.ranks().end(),
                  [](const RankSpec& r) { return r.memory.limit > Bytes(0); });
  if (pipeline.num_segments() == 1) {
    add(OneFOneBOrders(pipeline));
    add(ZeroBubbleH1Orders(pipeline));
  }
  add(GPipeOrders(pipeline));
  add(InterleavedOrders(pipeline));
  if (pipeline.num_segments() == 2) {
    add(ZeroBubbleVOrders(pipeline));
    add(DualPipeVOrders(pipeline));
    if (limited) {
      add(VScheduleOrders(VMemory::kHalf, pipeline));
      add(VScheduleOrders(VMemory::kMin, pipeline));
    }
  }
  return all;
}

bool MicrobatchesAreAlike(const StageGraph& graph) {
  constexpr double kAlike = 1.3;
  std::vector<int64_t> work;
  int64_t all = 0;
  for (const Task& task : graph.tasks()) {
    if (task.microbatch.is_none()) continue;
    const auto m = static_cast<size_t>(task.microbatch.value());
    if (m >= work.size()) work.resize(m + 1, 0);
    work[m] += task.duration.count();
    all += task.duration.count();
  }
  const int64_t most =
      work.empty() ? 0 : *std::max_element(work.begin(), work.end());
  return static_cast<double>(most) * static_cast<double>(work.size()) <=
         kAlike * static_cast<double>(all);
}

}  // namespace pipeloom::planner
