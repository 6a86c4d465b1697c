// Compiled with -ffinite-math-only (planner/CMakeLists.txt): the maximum of two
// numbers is then one instruction, and no number here is infinite or NaN.
#include "planner/core/fixed_order.h"

#include <algorithm>

namespace pipeloom::planner {

FixedOrder::FixedOrder(const FlatGraph& graph,
                       absl::Span<const int32_t> sequence)
    : task_at_(sequence.begin(), sequence.end()),
      place_of_(sequence.size()),
      records_(sequence.size()),
      rank_ends_(static_cast<size_t>(graph.num_ranks)) {
  const auto nobody = static_cast<int32_t>(sequence.size());
  for (int32_t p = 0; p < nobody; ++p) place_of_[sequence[p]] = p;
  for (int32_t r = 0; r < graph.num_ranks; ++r) {
    rank_ends_[r] = {nobody, static_cast<double>(graph.epilogue[r])};
  }
  std::vector<Input> inputs;
  for (int32_t p = 0; p < nobody; ++p) {
    const int32_t task = sequence[p];
    const int32_t rank = graph.rank[task];
    inputs.assign(1, {0, rank_ends_[rank].place});
    for (int32_t e = graph.pred_offset[task]; e < graph.pred_offset[task + 1];
         ++e) {
      // An earlier task of this rank is waited for anyway.
      if (graph.rank[graph.pred[e]] == rank && graph.pred_delay[e] == 0) {
        continue;
      }
      inputs.push_back(
          {static_cast<double>(graph.pred_delay[e]), place_of_[graph.pred[e]]});
    }
    inputs.resize(std::max<size_t>(inputs.size(), 2), {0, nobody});
    Record& record = records_[p];
    record.first = inputs[0].place;
    record.first_delay = inputs[0].delay;
    record.second = inputs[1].place;
    record.second_delay = inputs[1].delay;
    record.more_begin = static_cast<int32_t>(more_.size());
    more_.insert(more_.end(), inputs.begin() + 2, inputs.end());
    record.more_end = static_cast<int32_t>(more_.size());
    rank_ends_[rank].place = p;
  }
}

void FixedOrder::Arrange(absl::Span<const int64_t> by_task,
                         Durations& durations) const {
  durations.by_place.resize(task_at_.size());
  for (size_t p = 0; p < task_at_.size(); ++p) {
    durations.by_place[p] = static_cast<double>(by_task[task_at_[p]]);
  }
}

void FixedOrder::Arrange(absl::Span<const int64_t> by_task, int32_t lane,
                         BatchDurations& durations) const {
  durations.by_place.resize(task_at_.size() * kLanes);
  for (size_t p = 0; p < task_at_.size(); ++p) {
    durations.by_place[p * kLanes + lane] =
        static_cast<double>(by_task[task_at_[p]]);
  }
}

void FixedOrder::ArrangeAll(absl::Span<const int64_t> by_task,
                            BatchDurations& durations) const {
  durations.by_place.resize(task_at_.size() * kLanes);
  for (size_t p = 0; p < task_at_.size(); ++p) {
    std::fill_n(durations.by_place.data() + p * kLanes, kLanes,
                static_cast<double>(by_task[task_at_[p]]));
  }
}

void FixedOrder::ArrangeRows(absl::Span<const double> by_task,
                             BatchDurations& durations) const {
  durations.by_place.resize(task_at_.size() * kLanes);
  for (size_t p = 0; p < task_at_.size(); ++p) {
    std::copy_n(by_task.data() + int64_t{task_at_[p]} * kLanes, kLanes,
                durations.by_place.data() + p * kLanes);
  }
}

// Inlined into each caller, so that it is compiled for the caller's instruction
// set.
template <int32_t kWidth>
[[gnu::always_inline]] inline void FixedOrder::Sweep(
    const double* __restrict durations, double* end) const {
  const Input* const more = more_.data();
  const size_t n = records_.size();
  std::fill_n(end + n * kWidth, kWidth, 0.0);
  for (size_t p = 0; p < n; ++p) {
    const Record& record = records_[p];
    const double* const first = end + int64_t{record.first} * kWidth;
    const double* const second = end + int64_t{record.second} * kWidth;
    const double* const duration = durations + p * kWidth;
    double at[kWidth];
    for (int32_t l = 0; l < kWidth; ++l) {
      const double a = first[l] + record.first_delay;
      const double b = second[l] + record.second_delay;
      at[l] = a < b ? b : a;
    }
    for (int32_t m = record.more_begin; m < record.more_end; ++m) {
      const double* const other = end + int64_t{more[m].place} * kWidth;
      for (int32_t l = 0; l < kWidth; ++l) {
        const double c = other[l] + more[m].delay;
        at[l] = at[l] < c ? c : at[l];
      }
    }
    double* const out = end + p * kWidth;
    for (int32_t l = 0; l < kWidth; ++l) out[l] = at[l] + duration[l];
  }
}

void FixedOrder::SweepBatch(const double* durations, double* end) const {
  Sweep<kLanes>(durations, end);
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void FixedOrder::SweepBatchAvx2(const double* durations,
                                                        double* end) const {
  Sweep<kLanes>(durations, end);
}
#endif

int64_t FixedOrder::Time(const Durations& durations,
                         Workspace& workspace) const {
  workspace.end.resize(task_at_.size() + 1);
  double* const end = workspace.end.data();
  Sweep<1>(durations.by_place.data(), end);
  double finish = 0;
  for (const RankEnd& rank : rank_ends_) {
    finish = std::max(finish, end[rank.place] + rank.epilogue);
  }
  return static_cast<int64_t>(finish);
}

std::array<int64_t, FixedOrder::kLanes> FixedOrder::Time(
    const BatchDurations& durations, Workspace& workspace) const {
  workspace.end.resize((task_at_.size() + 1) * kLanes);
  double* const end = workspace.end.data();
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) {
    SweepBatchAvx2(durations.by_place.data(), end);
  } else {
    SweepBatch(durations.by_place.data(), end);
  }
#else
  SweepBatch(durations.by_place.data(), end);
#endif
  std::array<double, kLanes> finish{};
  for (const RankEnd& rank : rank_ends_) {
    for (int32_t l = 0; l < kLanes; ++l) {
      const double at = end[int64_t{rank.place} * kLanes + l] + rank.epilogue;
      finish[l] = std::max(finish[l], at);
    }
  }
  std::array<int64_t, kLanes> result{};
  for (int32_t l = 0; l < kLanes; ++l) {
    result[l] = static_cast<int64_t>(finish[l]);
  }
  return result;
}

}  // namespace pipeloom::planner
