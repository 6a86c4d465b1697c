#include "planner/partition_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/recipe.h"
#include "planner/executor.h"
#include "planner/partition_moves.h"
#include "planner/plan_step.h"
#include "planner/sample_steps.h"

namespace pipeloom::planner {
namespace {

using partition::PartitionBuilder;
using partition::PartitionRecipe;
using Candidate = PartitionCandidate;

// Judged together, so that threads have work and results do not depend on them.
constexpr size_t kRound = 8;
constexpr size_t kFinalists = 4;
constexpr size_t kBeam = 3;
constexpr int64_t kFinalEffort = 4;  // Times the evaluations.
// Partitions that make a step of more tasks than this, and than twice those of
// the coarsest, are not tried (but for the rule's): planning would take too
// long every step, and short tasks do not pay.
constexpr int64_t kManyTasks = 8000;
// More than this over the best on the first step: not judged on the others.
constexpr int64_t kLaggingPercent = 2;
constexpr int32_t kMostEffort = 1000;

bool Before(const Candidate& a, const Candidate& b) {
  if (!a.time.has_value() || !b.time.has_value()) return a.time.has_value();
  return *a.time < *b.time;
}

int64_t NumTasks(const partition::PackedStep& step, const JobSpec& job,
                 const Partition& partition) {
  const auto microbatches =
      partition::SplitMicrobatches(job, step, /*replica=*/0, partition);
  if (!microbatches.ok()) return 0;
  IdVector<ModuleId, int64_t> stages(job.model.modules.size(), 0);
  for (const Stage& stage : partition.stages) ++stages[stage.module];
  int64_t tasks = 0;
  for (const SubMicrobatch& sub : microbatches->sub_microbatches) {
    tasks += 3 * stages[sub.module];
  }
  return tasks;
}

class PartitionSearch {
 public:
  PartitionSearch(const Strategy& strategy,
                  const emulator::StageCostModel& costs,
                  const PartitionBuilder& builder,
                  const std::vector<partition::PackedStep>& steps,
                  const PartitionSearchOptions& options)
      : strategy_(strategy),
        costs_(costs),
        builder_(builder),
        moves_(builder),
        steps_(steps),
        options_(options),
        effort_(std::clamp(options.effort, 1, kMostEffort)),
        partitions_(std::max<size_t>(
            1, static_cast<size_t>(std::max(options.partitions, 1)) *
                   static_cast<size_t>(effort_))) {}

  absl::StatusOr<PartitionSearchResult> Run() {
    PIPELOOM_ASSIGN_OR_RETURN(const PartitionRecipe rule,
                              builder_.FeasibleRule());
    PartitionRecipe coarsest = rule;
    for (const ModuleId m : coarsest.modules.ids()) {
      coarsest.modules[m].segments = 1;
      if (!builder_.SizeIsFixed(m)) coarsest.modules[m].sub_microbatch = 0;
    }
    const std::optional<Candidate> coarse = moves_.Make(coarsest);
    most_tasks_ = kManyTasks;
    if (coarse.has_value()) {
      most_tasks_ = std::max(
          most_tasks_,
          2 * NumTasks(steps_.front(), costs_.job(), coarse->partition));
    }
    PIPELOOM_RETURN_IF_ERROR(Try({moves_.Make(rule)}));
    PIPELOOM_RETURN_IF_ERROR(Try(moves_.Starts(rule)));
    PIPELOOM_RETURN_IF_ERROR(Descend());
    PIPELOOM_RETURN_IF_ERROR(MoveLayers());
    if (effort_ > 1) PIPELOOM_RETURN_IF_ERROR(Widen());
    return Decide();
  }

 private:
  bool Stopped() const {
    return options_.stop.stop_requested() ||
           (options_.expired && options_.expired());
  }
  bool Over() const { return Stopped() || tried_.size() >= partitions_; }
  bool Known(const Partition& partition) const {
    return std::any_of(tried_.begin(), tried_.end(), [&](const Candidate& c) {
      return c.partition == partition;
    });
  }

  // Judges those that are new, a round at a time, and keeps the best.
  absl::Status Try(const std::vector<std::optional<Candidate>>& candidates) {
    std::vector<Candidate> round;
    const auto judge = [&]() -> absl::Status {
      PIPELOOM_RETURN_IF_ERROR(Race(round.begin(), round.end()));
      for (Candidate& c : round) {
        if (!best_.has_value() || Before(c, tried_[*best_])) {
          best_ = tried_.size();
        }
        tried_.push_back(std::move(c));
      }
      round.clear();
      if (options_.progress) {
        options_.progress(static_cast<int32_t>(tried_.size()),
                          tried_[*best_].time.value_or(kZero));
      }
      return absl::OkStatus();
    };
    for (const std::optional<Candidate>& c : candidates) {
      // The first, DIP's rule, is judged in any case.
      if (!tried_.empty() && Over()) break;
      if (tried_.size() + round.size() >= partitions_) break;
      if (!c.has_value() || Known(c->partition)) continue;
      if (std::any_of(round.begin(), round.end(), [&](const Candidate& r) {
            return r.partition == c->partition;
          })) {
        continue;
      }
      if (!tried_.empty() &&
          NumTasks(steps_.front(), costs_.job(), c->partition) > most_tasks_) {
        continue;
      }
      round.push_back(*c);
      if (round.size() == kRound) PIPELOOM_RETURN_IF_ERROR(judge());
    }
    if (!round.empty()) PIPELOOM_RETURN_IF_ERROR(judge());
    return absl::OkStatus();
  }

  using Range = std::vector<Candidate>::iterator;

  // The mean over all steps only of those that the first step speaks for; the
  // others get what their first step makes likely.
  absl::Status Race(Range begin, Range end) {
    const auto num_steps = static_cast<int32_t>(steps_.size());
    if (num_steps == 1 || !best_.has_value() ||
        !tried_[*best_].time.has_value()) {
      return Judge(options_.evaluations, 0, num_steps, begin, end);
    }
    const Candidate& best = tried_[*best_];
    PIPELOOM_RETURN_IF_ERROR(Judge(options_.evaluations, 0, 1, begin, end));
    const Range lagging = std::stable_partition(begin, end, [&](auto& c) {
      return c.time.has_value() &&
             c.first_step * 100 <= best.first_step * (100 + kLaggingPercent);
    });
    for (Range c = lagging; c != end; ++c) {
      if (!c->time.has_value()) continue;
      c->time =
          std::max(*best.time + Duration(1),
                   Duration(static_cast<int64_t>(
                       ToSeconds(c->first_step) / ToSeconds(best.first_step) *
                       static_cast<double>(best.time->count()))));
    }
    return Judge(options_.evaluations, 1, num_steps, begin, lagging);
  }

  // Mean emulated time of the sample steps, of which those before `first_step`
  // have been judged.
  absl::Status Judge(int64_t evaluations, int32_t first_step, int32_t num_steps,
                     Range begin, Range end) {
    const int32_t each = num_steps - first_step;
    const auto count = static_cast<int32_t>(end - begin) * each;
    std::vector<absl::StatusOr<Duration>> times(
        static_cast<size_t>(count), absl::UnknownError("not planned"));
    ParallelFor(options_.threads, count, [&](int32_t i) {
      // A plan may take seconds; but for the rule's, none is begun too late.
      if (!tried_.empty() && Stopped()) {
        times[static_cast<size_t>(i)] = absl::ResourceExhaustedError("stopped");
        return;
      }
      const PreparedJob job{.strategy = &strategy_,
                            .costs = &costs_,
                            .partition = begin[i / each].partition};
      PlanInput input;
      input.packed = &steps_[static_cast<size_t>(first_step + i % each)];
      input.seed = options_.seed;
      input.budget.max_evaluations = evaluations;
      input.budget.stop = options_.stop;
      const auto planned = PlanStep(job, input);
      auto& time = times[static_cast<size_t>(i)];
      if (planned.ok()) {
        time = planned->predicted.step_time();
      } else {
        time = planned.status();
      }
    });
    for (auto c = begin; c != end; ++c) {
      Duration sum = first_step > 0 ? c->first_step : kZero;
      bool fits = true;
      for (int32_t s = 0; s < each; ++s) {
        const auto& time = times[static_cast<size_t>((c - begin) * each + s)];
        if (time.ok()) {
          if (first_step + s == 0) c->first_step = *time;
          sum += *time;
          continue;
        }
        if (!absl::IsResourceExhausted(time.status())) return time.status();
        if (no_fit_.ok()) no_fit_ = time.status();
        fits = false;
      }
      c->time = fits ? std::optional(sum / num_steps) : std::nullopt;
    }
    return absl::OkStatus();
  }

  // Tried partitions that fit, the fastest first.
  std::vector<size_t> ByTime() const {
    std::vector<size_t> order;
    for (size_t i = 0; i < tried_.size(); ++i) {
      if (tried_[i].time.has_value()) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return Before(tried_[a], tried_[b]);
    });
    return order;
  }

  // Changes the best recipes, until no single change of any of the few best
  // brings it among them.
  absl::Status Descend() {
    // A share of the effort is left for moving layers.
    while (!Over() && tried_.size() * 4 < partitions_ * 3) {
      std::optional<size_t> next;
      std::vector<size_t> order = ByTime();
      order.resize(std::min(order.size(), kBeam));
      for (const size_t i : order) {
        if (next.has_value() || !tried_[i].recipe.has_value() ||
            std::find(expanded_.begin(), expanded_.end(), i) !=
                expanded_.end()) {
          continue;
        }
        next = i;
      }
      if (!next.has_value()) break;
      expanded_.push_back(*next);
      PIPELOOM_RETURN_IF_ERROR(Try(moves_.Neighbours(*tried_[*next].recipe)));
    }
    return absl::OkStatus();
  }

  absl::Status MoveLayers() {
    while (!Over()) {
      const size_t before = *best_;
      moved_.push_back(before);
      PIPELOOM_RETURN_IF_ERROR(Try(moves_.Moved(tried_[before])));
      if (*best_ == before) break;
    }
    return absl::OkStatus();
  }

  // Both kinds of change of whatever is the best that had them not yet.
  absl::Status Widen() {
    const auto had = [](const std::vector<size_t>& list, size_t i) {
      return std::find(list.begin(), list.end(), i) != list.end();
    };
    while (!Over()) {
      const size_t before = tried_.size();
      std::optional<size_t> next;
      for (const size_t i : ByTime()) {
        if (had(moved_, i) &&
            (!tried_[i].recipe.has_value() || had(expanded_, i))) {
          continue;
        }
        next = i;
        break;
      }
      if (!next.has_value()) break;
      const Candidate from = tried_[*next];
      if (!had(moved_, *next)) {
        moved_.push_back(*next);
        PIPELOOM_RETURN_IF_ERROR(Try(moves_.Moved(from)));
      }
      if (from.recipe.has_value() && !had(expanded_, *next) && !Over()) {
        expanded_.push_back(*next);
        PIPELOOM_RETURN_IF_ERROR(Try(moves_.Neighbours(*from.recipe)));
      }
      if (tried_.size() == before && Stopped()) break;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<PartitionSearchResult> Decide() {
    std::vector<Candidate> last = {tried_.front()};
    for (const size_t i : ByTime()) {
      if (last.size() > kFinalists + static_cast<size_t>(effort_) / 10) break;
      if (i > 0) last.push_back(tried_[i]);
    }
    if (!Stopped()) {
      PIPELOOM_RETURN_IF_ERROR(Judge(options_.evaluations * kFinalEffort, 0,
                                     static_cast<int32_t>(steps_.size()),
                                     last.begin(), last.end()));
    }
    const auto best = std::min_element(last.begin(), last.end(), Before);
    if (!best->time.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("none of the %d partitions tried fits the memory: %s",
                          tried_.size(), no_fit_.message()));
    }
    return PartitionSearchResult{.partition = best->partition,
                                 .step_time = *best->time,
                                 .rule_time = last.front().time.value_or(kZero),
                                 .tried = static_cast<int32_t>(tried_.size()),
                                 .recipe = best->name};
  }

  const Strategy& strategy_;
  const emulator::StageCostModel& costs_;
  const PartitionBuilder& builder_;
  const PartitionMoves moves_;
  const std::vector<partition::PackedStep>& steps_;
  const PartitionSearchOptions& options_;
  const int32_t effort_;
  const size_t partitions_;  // To be tried at most.
  int64_t most_tasks_ = 0;
  std::vector<Candidate> tried_{};
  std::optional<size_t> best_{};
  std::vector<size_t> expanded_{};  // Had their recipe's neighbours tried,
  std::vector<size_t> moved_{};     // and their layers moved.
  absl::Status no_fit_{};
};

}  // namespace

absl::StatusOr<PartitionSearchResult> SearchPartitionOn(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample,
    const std::vector<partition::PackedStep>& steps,
    const PartitionSearchOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const PartitionBuilder builder,
      PartitionBuilder::Create(costs.job(), costs, sample));
  return PartitionSearch(strategy, costs, builder, steps, options).Run();
}

absl::StatusOr<PartitionSearchResult> SearchPartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const PartitionSearchOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<partition::PackedStep> steps,
                            SampleSteps(costs, sample, options.steps));
  return SearchPartitionOn(strategy, costs, sample, steps, options);
}

}  // namespace pipeloom::planner
