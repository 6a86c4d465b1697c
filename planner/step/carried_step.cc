#include "planner/step/carried_step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "planner/core/executor.h"

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

// Returns the bytes that a pair's candidate holds between its passes as a share
// of those with everything kept.
float HeldShare(const partition::StepMemory& memory, StagePairId pair,
                int32_t candidate) {
  const int64_t all = memory.effect(pair, 0).held().count();
  if (all <= 0) return 1;
  return static_cast<float>(
      static_cast<double>(memory.effect(pair, candidate).held().count()) /
      static_cast<double>(all));
}

// The tasks of a step, to be found in steps that are carried over.
class TaskPlaces {
 public:
  explicit TaskPlaces(const StageGraph& graph) : graph_(graph), sorted_(graph) {
    for (const Task& task : graph.tasks()) {
      stages_ = std::max(stages_, static_cast<size_t>(task.stage.value()) + 1);
    }
    number_.resize(sorted_.place.size() * stages_ * kPasses);
    for (const Task& task : graph.tasks()) {
      int32_t& number = number_[KindOf(task)];
      number = std::max(number, task.sub_microbatch + 1);
    }
  }

  // Calls `take` with each task, the microbatch of the carried step that it
  // corresponds to, and the place of its kind there; null if there is none.
  template <typename Take>
  void ForEach(const CarriedStep& carried, const Take& take) const {
    if (carried.places.empty()) return;
    const size_t kinds = stages_ * kPasses;
    // Indexed by microbatch and kind: where its places begin.
    std::vector<int32_t> begins(carried.places.size() * (kinds + 1), 0);
    for (size_t m = 0; m < carried.places.size(); ++m) {
      int32_t* const begin = &begins[m * (kinds + 1)];
      for (const CarriedStep::Place& place : carried.places[m]) {
        const size_t kind = Kind(place.stage, place.pass);
        if (kind < kinds) ++begin[kind + 1];
      }
      std::partial_sum(begin, begin + kinds + 1, begin);
    }
    for (const TaskId t : graph_.task_ids()) {
      const Task& task = graph_.task(t);
      const size_t m =
          sorted_.place[static_cast<size_t>(task.microbatch.value())] *
          carried.places.size() / sorted_.work.size();
      const int32_t* const begin =
          &begins[m * (kinds + 1) + Kind(task.stage, task.pass)];
      const int32_t many = begin[1] - begin[0];
      const CarriedStep::Place* place = nullptr;
      if (many > 0) {
        const int64_t at = static_cast<int64_t>(task.sub_microbatch) * many /
                           number_[KindOf(task)];
        place = &carried.places[m][static_cast<size_t>(begin[0] + at)];
      }
      take(t, m, place);
    }
  }

 private:
  static constexpr size_t kPasses = 3;
  static size_t Kind(StageId stage, Pass pass) {
    return static_cast<size_t>(stage.value()) * kPasses +
           static_cast<size_t>(pass);
  }
  size_t KindOf(const Task& task) const {
    return static_cast<size_t>(task.microbatch.value()) * stages_ * kPasses +
           Kind(task.stage, task.pass);
  }

  const StageGraph& graph_;
  SortedMicrobatches sorted_;
  size_t stages_ = 0;
  // Indexed by microbatch and kind: the number of its sub-microbatches.
  std::vector<int32_t> number_{};
};

// Returns when tasks of the task's module started in a carried microbatch.
double MeanStart(const std::vector<CarriedStep::Segment>& segments,
                 const Task& task) {
  if (segments.empty()) return 0;
  const bool backward = task.pass != Pass::kForward;
  const auto at = std::find_if(
      segments.begin(), segments.end(), [&](const CarriedStep::Segment& s) {
        return s.module == task.module && s.backward == backward;
      });
  if (at != segments.end()) return at->start;
  return backward ? segments.back().start : segments.front().start;
}

LentStep Lend(const CarriedStep& carried, const StageGraph& graph,
              const TaskPlaces& places) {
  LentStep lent;
  lent.times.resize(static_cast<size_t>(graph.num_tasks()), 0);
  places.ForEach(carried, [&](TaskId t, size_t m,
                              const CarriedStep::Place* place) {
    lent.times[static_cast<size_t>(t.value())] =
        place != nullptr ? static_cast<double>(place->start)
                         : MeanStart(carried.microbatches[m], graph.task(t));
  });
  return lent;
}

// Returns for each pair the candidate whose share of held bytes is nearest to
// that of its place; ties: the first. Pairs without a place keep everything.
partition::MemorySelection LentSelection(const CarriedStep& carried,
                                         const StageGraph& graph,
                                         const partition::StepMemory& memory,
                                         const TaskPlaces& places) {
  std::vector<float> held(static_cast<size_t>(graph.num_tasks()), 1);
  places.ForEach(carried,
                 [&](TaskId t, size_t, const CarriedStep::Place* place) {
                   if (place == nullptr) return;
                   held[static_cast<size_t>(t.value())] = place->held;
                 });
  partition::MemorySelection selection = memory.KeepEverything();
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    const float wanted = held[static_cast<size_t>(pair.forward.value())];
    float least = std::numeric_limits<float>::max();
    const auto number = static_cast<int32_t>(memory.candidates(id).size());
    for (int32_t j = 0; j < number; ++j) {
      const float off = std::abs(HeldShare(memory, id, j) - wanted);
      if (off >= least) continue;
      least = off;
      selection[id] = j;
    }
  }
  return selection;
}

}  // namespace

Bytes SizeOf(const CarriedStep& carried) {
  size_t bytes = sizeof(carried) + carried.work.size() * sizeof(Duration) +
                 static_cast<size_t>(carried.room.size()) * sizeof(Bytes);
  for (const std::vector<CarriedStep::Segment>& of_one : carried.microbatches) {
    bytes += sizeof(of_one) + of_one.capacity() * sizeof(CarriedStep::Segment);
  }
  for (const std::vector<CarriedStep::Place>& of_one : carried.places) {
    bytes += sizeof(of_one) + of_one.capacity() * sizeof(CarriedStep::Place);
  }
  return Bytes(static_cast<int64_t>(bytes));
}

std::vector<std::shared_ptr<const CarriedStep>> SimilarSteps(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph) {
  if (steps.empty()) return {};
  const std::vector<Duration> work = SortedMicrobatches(graph).work;
  std::vector<std::pair<double, std::shared_ptr<const CarriedStep>>> near;
  for (const std::shared_ptr<const CarriedStep>& step : steps) {
    if (step == nullptr) continue;
    const double difference = Difference(step->work, work);
    if (difference < kMostDifference) near.emplace_back(difference, step);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  std::vector<std::shared_ptr<const CarriedStep>> similar;
  for (auto& [difference, step] : near) similar.push_back(std::move(step));
  return similar;
}

std::shared_ptr<const CarriedStep> MostSimilar(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps,
    const StageGraph& graph) {
  const auto similar = SimilarSteps(steps, graph);
  return similar.empty() ? nullptr : similar.front();
}

CarriedStep CarryFrom(const partition::BuiltGraph& built,
                      const partition::StepMemory& memory,
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
  std::vector<std::vector<CarriedStep::Place>> places(sorted.work.size());
  std::vector<float> held(static_cast<size_t>(graph.num_tasks()), 1);
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    held[static_cast<size_t>(memory.pairs[id].forward.value())] =
        HeldShare(memory, id, planned.made.selection[id]);
  }
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    const size_t place =
        sorted.place[static_cast<size_t>(task.microbatch.value())];
    Sum& sum = sums[place][Key(task.module, task.pass != Pass::kForward)];
    const double start = ToSeconds(schedule.start[t] - kStepStart) / whole;
    sum.start += start;
    ++sum.tasks;
    places[place].push_back({.stage = task.stage,
                             .pass = task.pass,
                             .sub_microbatch = task.sub_microbatch,
                             .start = static_cast<float>(start),
                             .held = held[static_cast<size_t>(t.value())]});
  }
  for (std::vector<CarriedStep::Place>& of_one : places) {
    std::sort(of_one.begin(), of_one.end(),
              [](const CarriedStep::Place& a, const CarriedStep::Place& b) {
                return std::tuple(a.stage, a.pass, a.sub_microbatch) <
                       std::tuple(b.stage, b.pass, b.sub_microbatch);
              });
  }
  CarriedStep carried{.places = std::move(places),
                      .work = std::move(sorted.work)};
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

std::vector<LentStep> LentSteps(
    const std::vector<std::shared_ptr<const CarriedStep>>& similar,
    const StageGraph& graph, const partition::StepMemory& memory,
    int32_t threads) {
  const TaskPlaces places(graph);
  std::vector<LentStep> lent(similar.size());
  ParallelFor(threads, static_cast<int32_t>(lent.size()), [&](int32_t i) {
    const CarriedStep& carried = *similar[static_cast<size_t>(i)];
    LentStep& step = lent[static_cast<size_t>(i)];
    step = Lend(carried, graph, places);
    step.selection = LentSelection(carried, graph, memory, places);
  });
  return lent;
}

std::vector<double> CarriedStarts(const CarriedStep& carried,
                                  const StageGraph& graph) {
  return Lend(carried, graph, TaskPlaces(graph)).times;
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

double RefinedRatio(const Candidate& refined, const Candidate& searched) {
  return ToSeconds(refined.predicted.step_time()) /
         std::max(1e-9, ToSeconds(searched.predicted.step_time()));
}

void SetRefinedRatio(double ratio,
                     std::shared_ptr<const CarriedStep>* carried) {
  if (*carried == nullptr) return;
  CarriedStep changed = **carried;
  changed.refined_ratio = ratio;
  *carried = std::make_shared<const CarriedStep>(std::move(changed));
}

}  // namespace pipeloom::planner
