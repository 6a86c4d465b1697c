#include "planner/step/carried_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

namespace pipeloom::planner {
namespace {

// The difference from which a step is no better than a start from nothing.
constexpr double kMostDifference = 0.28;

// The microbatches of a step, the one with the most work in its forwards first.
struct SortedMicrobatches {
  explicit SortedMicrobatches(const StageGraph& graph) {
    std::vector<Duration> of_microbatch;
    std::vector<bool> is_there;
    for (const Task& task : graph.tasks()) {
      const auto m = static_cast<size_t>(task.microbatch.value());
      if (m >= of_microbatch.size()) {
        of_microbatch.resize(m + 1);
        is_there.resize(m + 1);
      }
      is_there[m] = true;
      if (task.pass == Pass::kForward) of_microbatch[m] += task.duration;
    }
    std::vector<size_t> order(of_microbatch.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return of_microbatch[a] > of_microbatch[b];
    });
    place.resize(order.size());
    for (const size_t m : order) {
      if (!is_there[m]) continue;
      place[m] = work.size();
      work.push_back(of_microbatch[m]);
    }
  }
  std::vector<Duration> work{};  // Sorted.
  std::vector<size_t> place{};   // Indexed by microbatch: its place in `work`.
};

// Returns how much microbatches, sorted alike, differ in their work: 0 if each
// has as much, towards 1 the less they have in common.
double Difference(const std::vector<Duration>& a,
                  const std::vector<Duration>& b) {
  if (a.empty() || b.empty()) return 1;
  double most = 0;
  double apart = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double x = ToSeconds(a[i * a.size() / b.size()]);
    const double y = ToSeconds(b[i]);
    most += std::max(x, y);
    apart += std::abs(x - y);
  }
  return most > 0 ? apart / most : 0;
}

}  // namespace

Bytes SizeOf(const CarriedStep& carried) {
  size_t bytes = sizeof(carried) + carried.work.size() * sizeof(Duration) +
                 static_cast<size_t>(carried.room.size()) * sizeof(Bytes);
  for (const std::vector<CarriedStep::Segment>& of_one : carried.microbatches) {
    bytes += sizeof(of_one) + of_one.capacity() * sizeof(CarriedStep::Segment);
  }
  return Bytes(static_cast<int64_t>(bytes));
}

std::shared_ptr<const CarriedStep> MostSimilar(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph) {
  std::shared_ptr<const CarriedStep> nearest;
  if (steps.empty()) return nearest;
  const std::vector<Duration> work = SortedMicrobatches(graph).work;
  double least = kMostDifference;
  for (const std::shared_ptr<const CarriedStep>& step : steps) {
    if (step == nullptr) continue;
    const double difference = Difference(step->work, work);
    if (difference >= least) continue;
    least = difference;
    nearest = step;
  }
  return nearest;
}

CarriedStep CarryFrom(const partition::BuiltGraph& built,
                      const Candidate& planned) {
  const StageGraph& graph = built.graph;
  const Schedule& schedule = planned.made.found.schedule;
  const double whole = std::max(1e-9, ToSeconds(schedule.step_time()));
  SortedMicrobatches sorted(graph);
  struct Sum {
    double start = 0;
    int32_t tasks = 0;
  };
  using Key = std::pair<ModuleId, bool>;
  std::vector<std::map<Key, Sum>> sums(sorted.work.size());
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    const size_t place =
        sorted.place[static_cast<size_t>(task.microbatch.value())];
    Sum& sum = sums[place][Key(task.module, task.pass != Pass::kForward)];
    sum.start += ToSeconds(schedule.start[t] - kStepStart) / whole;
    ++sum.tasks;
  }
  CarriedStep carried{.work = std::move(sorted.work)};
  for (const std::map<Key, Sum>& of_one : sums) {
    std::vector<CarriedStep::Segment>& segments =
        carried.microbatches.emplace_back();
    for (const auto& [key, sum] : of_one) {
      segments.push_back({.module = key.first,
                          .backward = key.second,
                          .start = sum.start / sum.tasks});
    }
    std::stable_sort(
        segments.begin(), segments.end(),
        [](const CarriedStep::Segment& a, const CarriedStep::Segment& b) {
          return a.start < b.start;
        });
  }
  // No more than this order's tensors took, so that steps do not lower limits
  // further and further.
  carried.room.resize(graph.num_ranks());
  const auto peaks = MemoryPeaks(planned.predicted);
  for (const RankId r : graph.rank_ids()) {
    carried.room[r] =
        std::clamp(peaks[r].total - schedule.peak[r], Bytes(0),
                   std::max(Bytes(0), graph.rank(r).memory.limit -
                                          planned.limits[r].memory.limit));
  }
  return carried;
}

std::vector<double> CarriedStarts(const CarriedStep& carried,
                                  const StageGraph& graph) {
  std::vector<double> starts(static_cast<size_t>(graph.num_tasks()), 0);
  const SortedMicrobatches sorted(graph);
  if (carried.microbatches.empty()) return starts;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    const size_t place =
        sorted.place[static_cast<size_t>(task.microbatch.value())];
    const std::vector<CarriedStep::Segment>& segments =
        carried.microbatches[place * carried.microbatches.size() /
                             sorted.work.size()];
    if (segments.empty()) continue;
    const bool backward = task.pass != Pass::kForward;
    const auto at = std::find_if(
        segments.begin(), segments.end(), [&](const CarriedStep::Segment& s) {
          return s.module == task.module && s.backward == backward;
        });
    double& start = starts[static_cast<size_t>(t.value())];
    if (at != segments.end()) {
      start = at->start;
    } else {
      start = backward ? segments.back().start : segments.front().start;
    }
  }
  return starts;
}

IdVector<RankId, RankSpec> CarriedLimits(const CarriedStep& carried,
                                         const StageGraph& graph) {
  IdVector<RankId, RankSpec> limits = graph.ranks();
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    if (limit == Bytes(0) || r.value() >= carried.room.size()) continue;
    limit = std::max(Bytes(1), limit - carried.room[r]);
  }
  return limits;
}

}  // namespace pipeloom::planner
