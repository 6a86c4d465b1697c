#include "planner/orders/pass_program.h"

#include <algorithm>

namespace pipeloom::planner {
namespace {

// Returns the median: the lower of two values in the middle, 0 if there are
// none.
Duration Median(std::vector<Duration> values) {
  if (values.empty()) return kZero;
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

RankOrders ToRankOrders(const VirtualPipeline& pipeline,
                        const PassPrograms& programs) {
  RankOrders orders(pipeline.num_ranks());
  for (const RankId r : orders.ids()) {
    for (const PassStep& step : programs[r]) {
      pipeline.Append(step.pass, r, step.chunk, step.microbatch, &orders[r]);
    }
  }
  return orders;
}

PassTimes TypicalTimes(const VirtualPipeline& pipeline) {
  const StageGraph& graph = pipeline.graph();
  const auto median_of = [&](Pass pass) {
    std::vector<Duration> times;
    std::vector<TaskId> cell;
    for (const RankId r : graph.rank_ids()) {
      for (int32_t s = 0; s < pipeline.num_segments(); ++s) {
        for (int32_t m = 0; m < pipeline.num_microbatches(); ++m) {
          cell.clear();
          pipeline.Append(pass, r, s, m, &cell);
          if (cell.empty()) continue;
          Duration sum = kZero;
          for (const TaskId t : cell) sum += graph.task(t).duration;
          times.push_back(sum);
        }
      }
    }
    return Median(std::move(times));
  };
  std::vector<Duration> transfers;
  for (const Dependency& edge : graph.edges()) {
    if (graph.task(edge.from).rank != graph.task(edge.to).rank) {
      transfers.push_back(edge.delay);
    }
  }
  return {.forward = median_of(Pass::kForward),
          .backward = median_of(Pass::kBackward),
          .weight_grad = median_of(Pass::kWeightGrad),
          .transfer = Median(std::move(transfers))};
}

}  // namespace pipeloom::planner
