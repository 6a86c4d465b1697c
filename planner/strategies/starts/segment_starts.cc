#include "planner/strategies/starts/segment_starts.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/executor.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/microbatch_order.h"
#include "planner/core/retime.h"
#include "planner/memory/choose_memory.h"
#include "planner/memory/memory_levels.h"
#include "planner/moves/order_search.h"
#include "planner/search/first_choices.h"
#include "planner/strategies/dip/segment_order.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::StepMemory;

// The constants below were chosen on steps of dip-vlm-s, dip-vlm-l and
// qwen2.5-vl-72b in 100 ms.

// Orders of segments that each level is judged by: that of the batch, one by
// the times of a similar step if there is one, one with the heaviest
// microbatches in the middle, and random ones.
constexpr size_t kFirstOrders = 4;
// Each level is also judged by this number of first choices. The values 0, 2,
// 4, 8 and 14 were compared on 24 random jobs with 32 to 96 microbatches on 8
// to 16 ranks and on 22 other jobs, together with the second share of
// ShortestLevels.
constexpr size_t kFirstChoices = 8;
// Levels that get memory choices and are improved at once, for any number of
// threads.
constexpr size_t kAtOnce = 2;
// Share of the budget until which further levels are made, and until which they
// get memory choices.
constexpr double kLevelsUntil = 0.4;
// Random orders of a level before the first exchange.
constexpr int64_t kRandomOrders = 16;
// The share of the time by which a changed order may be worse and still be gone
// on from.
constexpr double kWorse = 5e-4;
// Changes of a level's order until the budget is looked at again, and without a
// better order until it is left as it is.
constexpr int32_t kRound = 32;
constexpr int64_t kPatience = 400;
constexpr ChooseMemoryOptions kRough = {.rounds = 1, .program = kRoughProgram};

// The parts that all levels share.
struct Problem {
  Problem(const StageGraph& stage_graph, const StepMemory& step_memory)
      : graph(&stage_graph),
        memory(&step_memory),
        fastest(WithFastestChoices(stage_graph, step_memory)),
        units(stage_graph),
        order_units(stage_graph),
        choices(FirstChoices(order_units, MemoryIsShort(fastest))),
        tasks_of(static_cast<size_t>(units.num_units)) {
    choices.resize(std::min(choices.size(), kFirstChoices));
    for (size_t t = 0; t < units.unit.size(); ++t) {
      tasks_of[static_cast<size_t>(units.unit[t])].push_back(
          static_cast<int32_t>(t));
    }
  }
  const StageGraph* graph;
  const StepMemory* memory;
  FlatGraph fastest;
  SegmentUnits units;
  OrderUnits order_units;
  std::vector<OrderChoice> choices;
  std::vector<std::vector<int32_t>> tasks_of;  // Indexed by unit.
};

void Shuffle(Random& random, std::vector<int32_t>* units) {
  for (size_t i = units->size(); i > 1; --i) {
    const int64_t j = random.Below(static_cast<int64_t>(i));
    std::swap((*units)[i - 1], (*units)[static_cast<size_t>(j)]);
  }
}

// Moves one segment or exchanges two.
void Change(Random& random, std::vector<int32_t>* units) {
  const auto n = static_cast<int64_t>(units->size());
  const int64_t a = random.Below(n);
  const int64_t b = random.Below(n);
  if (random.Below(2) == 0) {
    std::swap((*units)[static_cast<size_t>(a)],
              (*units)[static_cast<size_t>(b)]);
    return;
  }
  const int32_t moved = (*units)[static_cast<size_t>(a)];
  units->erase(units->begin() + a);
  units->insert(units->begin() + b, moved);
}

// The orders of one level. Not thread-safe.
class Level {
 public:
  // Keeps a reference to `problem`. `chosen` is its graph with the selection.
  Level(const Problem& problem, const StageGraph& chosen,
        MemorySelection selection, uint64_t seed)
      : problem_(&problem),
        selection_(std::move(selection)),
        flat_(chosen),
        evaluator_(flat_, problem.order_units),
        retimer_(problem.fastest),
        random_(seed) {}

  bool CanRun() { return evaluator_.scheduler().CanRun(); }
  int64_t evaluations() const { return evaluations_; }
  // Returns the time of the best schedule when every pair has its fastest
  // candidate, ns.
  int64_t least() const { return made_.least; }
  // Returns what the best schedule will take with the best memory choices, on
  // average: between that and the time with the level's own choices. The best
  // is the one for which this is least.
  int64_t expected() const { return made_.expected; }
  // Returns the best order that got memory choices.
  const SegmentStart& start() const { return start_; }
  // Returns the best schedule's order; empty if there is none.
  RankOrders BestOrders() const {
    return made_.sequence.empty() ? RankOrders()
                                  : OrdersOf(flat_, made_.sequence);
  }

  // Schedules an order of segments and keeps it if it is the best. Returns its
  // least time.
  int64_t Try(absl::Span<const int32_t> units) {
    tasks_.clear();
    for (const int32_t u : units) {
      const std::vector<int32_t>& of =
          problem_->tasks_of[static_cast<size_t>(u)];
      tasks_.insert(tasks_.end(), of.begin(), of.end());
    }
    ListScheduler& scheduler = evaluator_.scheduler();
    const int64_t own =
        scheduler.Run({.order = tasks_, .prefer = Prefer::kAlternate});
    const int64_t least = Keep(own, scheduler.sequence(), units, std::nullopt);
    if (least < best_.least) {
      best_ = {least, {units.begin(), units.end()}};
      stalled_ = 0;
    } else {
      ++stalled_;
    }
    return least;
  }

  // Schedules a first choice and keeps it if it is the best.
  void TryChoice(const OrderChoice& choice) {
    const int64_t own = evaluator_.Evaluate(choice);
    if (own < kNoLimit) {
      Keep(own, evaluator_.sequence(), {}, choice);
    } else {
      ++evaluations_;
    }
  }

  // Changes the order, kRound times or until the budget says stop.
  void Improve(const SearchBudget& budget) {
    if (problem_->units.num_units < 2) return;
    for (int32_t i = 0; i < kRound && stalled_ < kPatience; ++i) {
      if (budget.Exhausted(0)) return;
      const bool draws = drawn_ < kRandomOrders;
      if (current_.units.empty() || drawn_ == kRandomOrders) current_ = best_;
      ++drawn_;
      next_ = current_.units;
      if (draws) {
        Shuffle(random_, &next_);
      } else {
        Change(random_, &next_);
      }
      const int64_t least = Try(next_);
      const double worst =
          static_cast<double>(current_.least) * (1 + kWorse * random_.Unit());
      if (!draws && static_cast<double>(least) <= worst) {
        current_ = {least, next_};
      }
    }
  }

  // Chooses memory for the best order, if it is a new one.
  void Choose(const SearchBudget& budget, MemoryChooser* chooser) {
    if (chosen_for_ == made_.expected) return;
    chosen_for_ = made_.expected;
    SegmentStart start{.orders = BestOrders()};
    SearchBudget time_only;  // Rounds are not counted.
    time_only.expired = budget.expired;
    const absl::StatusOr<int64_t> time =
        chooser->Choose(start.orders, selection_, time_only, kRough);
    evaluations_ += std::max<int64_t>(1, chooser->evaluations());
    if (!time.ok() || *time >= start_.time) return;
    start.time = *time;
    start.selection = chooser->selection();
    start.first_choice = made_.first_choice;
    start.units = made_.units;
    start.level = selection_;
    start.level_time = made_.own;
    start_ = std::move(start);
  }

 private:
  // A schedule, made by a first choice or by an order of segments.
  struct Made {
    int64_t own = kNoLimit;  // With the level's choices.
    int64_t least = kNoLimit;
    int64_t expected = kNoLimit;
    std::optional<OrderChoice> first_choice{};
    std::vector<int32_t> units{};
    std::vector<int32_t> sequence{};
  };
  // An order of segments and the least time that its sequence can have, ns.
  struct Order {
    int64_t least = kNoLimit;
    std::vector<int32_t> units{};
  };

  // Keeps a schedule if it is the best. `own`: its time with the level's own
  // choices, ns. Returns its least time.
  int64_t Keep(int64_t own, absl::Span<const int32_t> sequence,
               absl::Span<const int32_t> units,
               std::optional<OrderChoice> first_choice) {
    ++evaluations_;
    const int64_t least = retimer_.Retime(sequence);
    const int64_t expected = (least + own) / 2;
    if (expected < made_.expected) {
      made_ = {.own = own,
               .least = least,
               .expected = expected,
               .first_choice = std::move(first_choice),
               .units = {units.begin(), units.end()},
               .sequence = {sequence.begin(), sequence.end()}};
    }
    return least;
  }

  const Problem* problem_;
  MemorySelection selection_;
  FlatGraph flat_;
  OrderEvaluator evaluator_;
  Retimer retimer_;
  Random random_;
  Made made_{};      // The best schedule.
  Order best_{};     // The best order of segments.
  Order current_{};  // The order that changes begin from.
  std::vector<int32_t> next_{};
  std::vector<int32_t> tasks_{};
  int64_t drawn_ = 0;    // Orders that were drawn or changed.
  int64_t stalled_ = 0;  // Orders since the best one.
  int64_t evaluations_ = 0;
  int64_t chosen_for_ = -1;
  SegmentStart start_{};
};

// Returns the units by the mean of their tasks' times.
std::vector<int32_t> OrderByTimes(const Problem& problem,
                                  absl::Span<const double> times) {
  std::vector<double> mean;
  for (const std::vector<int32_t>& tasks : problem.tasks_of) {
    double sum = 0;
    for (const int32_t t : tasks) sum += times[static_cast<size_t>(t)];
    mean.push_back(sum / static_cast<double>(tasks.size()));
  }
  std::vector<int32_t> order(mean.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return mean[static_cast<size_t>(a)] < mean[static_cast<size_t>(b)];
  });
  return order;
}

// Returns the units with those of the heaviest microbatches in the middle.
std::vector<int32_t> OrderByWork(const Problem& problem) {
  std::vector<int64_t> work;  // Indexed by microbatch.
  std::vector<int32_t> microbatch(problem.tasks_of.size());  // Indexed by unit.
  for (size_t u = 0; u < problem.tasks_of.size(); ++u) {
    for (const int32_t t : problem.tasks_of[u]) {
      const Task& task = problem.graph->task(TaskId(t));
      microbatch[u] = task.microbatch.value();
      const auto m = static_cast<size_t>(microbatch[u]);
      work.resize(std::max(work.size(), m + 1));
      work[m] += task.duration.count();
    }
  }
  return UnitsInOrder(HeavyMiddle(work), microbatch);
}

// Makes the levels that can run, each with the time of the first orders.
absl::StatusOr<std::vector<std::unique_ptr<Level>>> MakeLevels(
    const Problem& problem, const std::vector<MemorySelection>& selections,
    absl::Span<const double> times, uint64_t seed, const SearchBudget& budget) {
  Random random(seed);
  std::vector<std::vector<int32_t>> orders(1);
  orders[0].resize(static_cast<size_t>(problem.units.num_units));
  std::iota(orders[0].begin(), orders[0].end(), 0);
  if (!times.empty()) orders.push_back(OrderByTimes(problem, times));
  orders.push_back(OrderByWork(problem));
  while (orders.size() < kFirstOrders) {
    orders.push_back(orders[0]);
    Shuffle(random, &orders.back());
  }
  // With few evaluations, as many as leave enough for a second level.
  const auto num_choices = static_cast<size_t>(std::clamp<int64_t>(
      budget.max_evaluations / static_cast<int64_t>(kAtOnce) -
          static_cast<int64_t>(kFirstOrders),
      0, static_cast<int64_t>(problem.choices.size())));
  std::vector<std::unique_ptr<Level>> levels(selections.size());
  std::vector<absl::Status> failed(selections.size());
  const auto make = [&](size_t i) {
    const absl::StatusOr<StageGraph> chosen =
        partition::ApplyMemory(*problem.graph, *problem.memory, selections[i]);
    if (!chosen.ok()) {
      failed[i] = chosen.status();
      return;
    }
    auto level =
        std::make_unique<Level>(problem, *chosen, selections[i], seed + 1 + i);
    if (!level->CanRun()) return;
    for (const std::vector<int32_t>& order : orders) {
      level->Try(order);
      if (budget.expired && budget.expired()) break;
    }
    for (size_t c = 0; c < num_choices; ++c) {
      if (budget.expired && budget.expired()) break;
      level->TryChoice(problem.choices[c]);
    }
    levels[i] = std::move(level);
  };
  const SearchBudget making = budget.Until(kLevelsUntil);
  for (size_t first = 0; first < selections.size(); first += kAtOnce) {
    const bool any_runs =
        std::any_of(levels.begin(), levels.end(),
                    [](const auto& level) { return level != nullptr; });
    if (any_runs &&
        making.Exhausted(static_cast<int64_t>(first * kFirstOrders))) {
      break;
    }
    if (budget.Abandoned()) break;
    const size_t number = std::min(kAtOnce, selections.size() - first);
    ParallelFor(budget.threads, static_cast<int32_t>(number),
                [&](int32_t i) { make(first + static_cast<size_t>(i)); });
  }
  for (const absl::Status& status : failed) PIPELOOM_RETURN_IF_ERROR(status);
  std::erase(levels, nullptr);
  return levels;
}

}  // namespace

absl::StatusOr<SegmentStarts> FindSegmentStarts(
    const StageGraph& graph, const StepMemory& memory,
    const std::vector<MemorySelection>& selections,
    absl::Span<const double> times, uint64_t seed, const SearchBudget& budget) {
  const Problem problem(graph, memory);
  PIPELOOM_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<Level>> levels,
      MakeLevels(problem, selections, times, seed, budget));
  const auto evaluations = [&] {
    int64_t all = 0;
    for (const auto& level : levels) all += level->evaluations();
    return all;
  };
  std::array<std::unique_ptr<MemoryChooser>, kAtOnce> choosers;
  // Calls `work` for up to kAtOnce levels from `first` on.
  const auto for_some = [&](size_t first, const auto& work) {
    const size_t end = std::min(levels.size(), first + kAtOnce);
    ParallelFor(budget.threads, static_cast<int32_t>(end - first),
                [&](int32_t slot) {
                  work(*levels[first + static_cast<size_t>(slot)],
                       choosers[static_cast<size_t>(slot)]);
                });
  };
  int64_t best = kNoLimit;
  const auto choose = [&](size_t first) {
    for_some(first, [&](Level& level, std::unique_ptr<MemoryChooser>& chooser) {
      if (budget.Abandoned() || level.least() >= best) return;
      if (chooser == nullptr) {
        chooser = std::make_unique<MemoryChooser>(graph, memory);
      }
      level.Choose(budget, chooser.get());
    });
    for (const auto& level : levels) {
      best = std::min(best, level->start().time);
    }
  };
  std::stable_sort(levels.begin(), levels.end(),
                   [](const auto& a, const auto& b) {
                     return a->expected() < b->expected();
                   });
  // Without time for that, the levels of the least expected times are taken.
  const SearchBudget judging = budget.Until(kLevelsUntil);
  for (size_t i = 0; i < levels.size() && !judging.Exhausted(evaluations());
       i += kAtOnce) {
    choose(i);
  }
  std::stable_sort(levels.begin(), levels.end(),
                   [](const auto& a, const auto& b) {
                     return a->start().time < b->start().time;
                   });
  while (!budget.Exhausted(evaluations())) {
    const int64_t before = evaluations();
    for_some(0, [&](Level& level, const auto&) { level.Improve(budget); });
    if (evaluations() == before) break;
  }
  choose(0);
  for (size_t i = kAtOnce; i < levels.size() && best == kNoLimit;
       i += kAtOnce) {
    choose(i);
  }
  if (budget.Abandoned()) return absl::CancelledError("stopped");
  SegmentStarts found{.evaluations = evaluations()};
  for (const auto& level : levels) {
    if (level->start().time < kNoLimit) found.starts.push_back(level->start());
  }
  return found;
}

absl::StatusOr<RankOrders> OrdersWithin(const StageGraph& graph,
                                        const StepMemory& memory,
                                        const SegmentStart& start) {
  PIPELOOM_ASSIGN_OR_RETURN(const StageGraph chosen,
                            partition::ApplyMemory(graph, memory, start.level));
  const Problem problem(graph, memory);
  Level level(problem, chosen, start.level, /*seed=*/0);
  if (!level.CanRun()) return RankOrders();
  if (start.first_choice.has_value()) {
    level.TryChoice(*start.first_choice);
  } else {
    level.Try(start.units);
  }
  return level.BestOrders();
}

}  // namespace pipeloom::planner
