#include "trace/idle_gaps.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace pipeloom::trace {
namespace {

using Link = std::pair<RankId, RankId>;

// Fewer gaps of a rank cannot be told from a pause.
constexpr size_t kLeastGaps = 4;

const MeasuredTask& At(const std::vector<MeasuredTask>& tasks, int32_t index) {
  return tasks[static_cast<size_t>(index)];
}

// A link takes at most the time of its quickest message.
std::map<Link, int64_t> QuickestMessages(
    const std::vector<MeasuredTask>& tasks,
    const std::vector<TraceInput>& inputs) {
  std::map<Link, int64_t> quickest;
  for (const auto& [from, to] : inputs) {
    const MeasuredTask& a = At(tasks, from);
    const MeasuredTask& b = At(tasks, to);
    if (a.rank == b.rank) continue;
    const int64_t took = std::max<int64_t>(0, b.start - a.end);
    const auto [it, is_new] = quickest.try_emplace({a.rank, b.rank}, took);
    if (!is_new) it->second = std::min(it->second, took);
  }
  return quickest;
}

int64_t Median(std::vector<int64_t>& values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

IdleGaps MeasureIdleGaps(int32_t num_ranks,
                         const std::vector<MeasuredTask>& tasks,
                         const std::vector<TraceInput>& inputs) {
  const std::map<Link, int64_t> quickest = QuickestMessages(tasks, inputs);
  std::vector<std::vector<int32_t>> inputs_of(tasks.size());
  for (const auto& [from, to] : inputs) {
    inputs_of[static_cast<size_t>(to)].push_back(from);
  }
  std::map<RankId, std::vector<int64_t>> handovers;
  std::map<Link, std::vector<int64_t>> waits;
  std::map<RankId, int64_t> free_from;  // The end of each rank's task before.
  for (size_t i = 0; i < tasks.size(); ++i) {
    const MeasuredTask& task = tasks[i];
    const auto [free, is_first] = free_from.try_emplace(task.rank, task.end);
    if (is_first) continue;
    const int64_t was_free = std::exchange(free->second, task.end);
    int64_t arrived = std::numeric_limits<int64_t>::min();
    int64_t sent = 0;
    RankId sender = task.rank;
    for (const int32_t from : inputs_of[i]) {
      const MeasuredTask& input = At(tasks, from);
      const int64_t there =
          input.end +
          (input.rank == task.rank ? 0 : quickest.at({input.rank, task.rank}));
      if (there > arrived) {
        arrived = there;
        sent = input.end;
        sender = input.rank;
      }
    }
    if (arrived <= was_free) {
      handovers[task.rank].push_back(
          std::max<int64_t>(0, task.start - was_free));
    } else if (sender != task.rank) {
      waits[{sender, task.rank}].push_back(
          std::max<int64_t>(0, task.start - sent));
    }
  }
  IdleGaps gaps;
  gaps.handover.assign(num_ranks, kZero);
  for (auto& [rank, values] : handovers) {
    if (values.size() < kLeastGaps) continue;
    gaps.handover[rank] = Duration(Median(values));
  }
  for (const auto& [link, time] : quickest) gaps.links[link] = Duration(time);
  // The sender's hand-over is part of its task's time, so it is subtracted.
  for (auto& [link, values] : waits) {
    gaps.links[link] =
        std::max(kZero, Duration(Median(values)) - gaps.handover[link.first]);
  }
  return gaps;
}

}  // namespace pipeloom::trace
