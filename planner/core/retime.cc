#include "planner/core/retime.h"

#include <algorithm>
#include <limits>

namespace pipeloom::planner {

Retimer::Retimer(const FlatGraph& graph)
    : graph_(&graph),
      records_(static_cast<size_t>(graph.num_tasks)),
      end_(static_cast<size_t>(graph.num_tasks) + 1, 0),
      free_at_(static_cast<size_t>(graph.num_ranks), 0) {
  constexpr int64_t kMaxDelay = std::numeric_limits<int32_t>::max();
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    Record& record = records_[t];
    record.duration = graph.duration[t];
    record.rank = graph.rank[t];
    record.first = graph.num_tasks;
    record.second = graph.num_tasks;
    int32_t held = 0;
    for (int32_t e = graph.pred_offset[t]; e < graph.pred_offset[t + 1]; ++e) {
      const int64_t delay = graph.pred_delay[e];
      // A delay beyond the record's 2.1 s is left to the slow path.
      if (held == 0 && delay <= kMaxDelay) {
        record.first = graph.pred[e];
        record.first_delay = static_cast<int32_t>(delay);
        held = 1;
      } else if (held == 1 && delay <= kMaxDelay) {
        record.second = graph.pred[e];
        record.second_delay = static_cast<int32_t>(delay);
        held = 2;
      } else {
        record.more = 1;
      }
    }
  }
}

void Retimer::TakeDurations() {
  for (size_t t = 0; t < records_.size(); ++t) {
    records_[t].duration = graph_->duration[t];
  }
}

int64_t Retimer::Retime(absl::Span<const int32_t> sequence) {
  std::fill(free_at_.begin(), free_at_.end(), 0);
  int64_t* const end = end_.data();
  int64_t* const free_at = free_at_.data();
  const Record* const records = records_.data();
  for (const int32_t t : sequence) {
    const Record& record = records[t];
    int64_t at = std::max(end[record.first] + record.first_delay,
                          end[record.second] + record.second_delay);
    at = std::max(at, free_at[record.rank]);
    if (record.more != 0) [[unlikely]] {
      for (int32_t e = graph_->pred_offset[t]; e < graph_->pred_offset[t + 1];
           ++e) {
        at = std::max(at, end[graph_->pred[e]] + graph_->pred_delay[e]);
      }
    }
    at += record.duration;
    end[t] = at;
    free_at[record.rank] = at;
  }
  int64_t finish = 0;
  for (int32_t r = 0; r < graph_->num_ranks; ++r) {
    finish = std::max(finish, free_at[r] + graph_->epilogue[r]);
  }
  return finish;
}

}  // namespace pipeloom::planner
