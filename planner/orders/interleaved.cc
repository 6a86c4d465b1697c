#include "planner/orders/interleaved.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "planner/orders/one_f_one_b.h"

namespace pipeloom::planner {
namespace {

struct Cell {
  int32_t chunk = 0;
  int32_t microbatch = 0;
};

// Returns all (chunk, microbatch) pairs in the order of their forwards.
std::vector<Cell> ForwardTable(int32_t microbatches, int32_t chunks,
                               int32_t group) {
  std::vector<Cell> table;
  for (int32_t first = 0; first < microbatches; first += group) {
    const int32_t last = std::min(first + group, microbatches);
    for (int32_t c = 0; c < chunks; ++c) {
      for (int32_t m = first; m < last; ++m) {
        table.push_back({.chunk = c, .microbatch = m});
      }
    }
  }
  return table;
}

RankOrders OrdersFor(const VirtualPipeline& pipeline, int32_t microbatches,
                     int32_t group) {
  const int32_t p = pipeline.num_ranks();
  const int32_t v = pipeline.num_segments();
  const std::vector<Cell> table = ForwardTable(microbatches, v, group);
  const auto total = static_cast<int32_t>(table.size());
  RankOrders orders(p);
  for (const RankId r : orders.ids()) {
    const int32_t warm_up =
        std::min(2 * (p - r.value() - 1) + (v - 1) * group, total);
    const auto forward = [&](int32_t k) {
      if (k >= total) return;
      pipeline.AppendForward(r, table[k].chunk, table[k].microbatch,
                             &orders[r]);
    };
    for (int32_t k = 0; k < warm_up; ++k) forward(k);
    for (int32_t k = 0; k < total; ++k) {
      forward(warm_up + k);
      pipeline.AppendBackward(r, v - 1 - table[k].chunk, table[k].microbatch,
                              &orders[r]);
    }
  }
  return orders;
}

}  // namespace

absl::StatusOr<RankOrders> InterleavedOrders(const VirtualPipeline& pipeline) {
  const int32_t p = std::max(1, pipeline.num_ranks());
  const int32_t m = pipeline.num_microbatches();
  RankOrders filled = OrdersFor(pipeline, (m + p - 1) / p * p, p);
  if (m % p == 0) return filled;
  RankOrders smaller = OrdersFor(pipeline, m, p);
  const auto filled_time = TimeSchedule(pipeline.graph(), filled);
  const auto smaller_time = TimeSchedule(pipeline.graph(), smaller);
  if (smaller_time.ok() &&
      (!filled_time.ok() || smaller_time->finish < filled_time->finish)) {
    return smaller;
  }
  return filled;
}

absl::StatusOr<RankOrders> StockOrders(const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() == 1) return OneFOneBOrders(pipeline);
  const int32_t p = std::max(1, pipeline.num_ranks());
  const int32_t m = pipeline.num_microbatches();
  int32_t group = p;
  while (group < m && m % group > 0 && m % group < p) ++group;
  if (m < p) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d microbatches on %d ranks have no interleaved schedule in "
        "Megatron-Core: use at least as many (training.microbatches), or one "
        "stage a rank",
        m, p));
  }
  return OrdersFor(pipeline, m, group);
}

}  // namespace pipeloom::planner
