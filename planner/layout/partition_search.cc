#include "planner/layout/partition_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/placement/recipe.h"
#include "planner/core/executor.h"
#include "planner/layout/partition_moves.h"
#include "planner/step/plan_alone.h"
#include "planner/step/plan_step.h"
#include "planner/step/sample_steps.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

using partition::PartitionBuilder;
using partition::PartitionRecipe;
using Candidate = PartitionCandidate;

// Number judged together, so that threads have work and results do not depend
// on them.
constexpr size_t kRound = 8;
constexpr size_t kFinalists = 6;  // Judged on more steps.
// Finalists judged with more effort, in addition to DIP's rule.
constexpr size_t kLast = 3;
constexpr size_t kBeam = 3;
constexpr int64_t kFinalEffort = 4;  // Factor on the evaluations.
// Partitions that make a step of more tasks than this, and of more than twice
// those of the coarsest partition, are not tried (except the rule's): planning
// would take too long in every step, and short tasks do not pay.
constexpr int64_t kManyTasks = 8000;
// A partition that is over the best on the first step by more than this is not
// judged on the others.
constexpr int64_t kLaggingPercent = 2;
constexpr int32_t kMaxEffort = 1000;
// Standard errors by which a partition must be better than the rule's.
constexpr double kSurely = 2;

// Orders all candidates: more steps that fit, then less time.
bool Before(const Candidate& a, const Candidate& b) {
  if (!a.time.has_value() || !b.time.has_value()) {
    return a.time.has_value() && !b.time.has_value();
  }
  if (a.misfits != b.misfits) return a.misfits < b.misfits;
  return *a.time < *b.time;
}

// Returns whether the mean difference over the steps that both fit is certain:
// more than kSurely times its standard error. The results of a short search
// vary by percents from step to step, and the best of many has had luck.
bool IsSurelyBefore(const Candidate& a, const Candidate& b,
                    const std::vector<WeighedStep>& steps) {
  if (a.misfits != b.misfits || !a.time.has_value() || !b.time.has_value()) {
    return Before(a, b);
  }
  double weights = 0;
  double sum = 0;
  double squares = 0;
  int32_t n = 0;
  for (size_t s = 0; s < steps.size(); ++s) {
    if (a.times[s] == kZero || b.times[s] == kZero) continue;
    const double gain = ToSeconds(b.times[s]) - ToSeconds(a.times[s]);
    const double weight = steps[s].weight;
    weights += weight;
    sum += weight * gain;
    squares += weight * gain * gain;
    ++n;
  }
  if (n < 2) return Before(a, b);
  const double mean = sum / weights;
  const double variance = std::max(0.0, squares / weights - mean * mean);
  return mean > kSurely * std::sqrt(variance / (n - 1));
}

Duration Scaled(Duration time, Duration to, Duration from) {
  return Duration(static_cast<int64_t>(ToSeconds(to) / ToSeconds(from) *
                                       static_cast<double>(time.count())));
}

int64_t NumTasks(const partition::PackedStep& step, const JobSpec& job,
                 const Partition& partition) {
  const auto microbatches =
      partition::SplitMicrobatches(job, step, /*replica=*/0, partition);
  return microbatches.ok() ? partition::MostTasks(*microbatches, partition) : 0;
}

class PartitionSearch {
 public:
  PartitionSearch(const Strategy& strategy,
                  const emulator::StageCostModel& costs,
                  const PartitionBuilder& builder, const JudgedSteps& steps,
                  const PartitionSearchOptions& options)
      : strategy_(strategy),
        costs_(costs),
        builder_(builder),
        moves_(builder),
        steps_(steps.steps),
        finals_(steps.finals.empty() ? steps.steps : steps.finals),
        options_(options),
        effort_(std::clamp(options.effort, 1, kMaxEffort)),
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
          2 * NumTasks(steps_.front().step, costs_.job(), coarse->partition));
    }
    if (options_.start.has_value()) {
      PIPELOOM_RETURN_IF_ERROR(
          Try({Candidate{.partition = *options_.start, .name = "start"}}));
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
  bool Accepts(const Partition& partition) const {
    const auto* const whole = dynamic_cast<const PlansWholeSteps*>(&strategy_);
    return whole == nullptr || whole->Accepts(partition, costs_.job());
  }
  bool Known(const Partition& partition) const {
    return std::any_of(tried_.begin(), tried_.end(), [&](const Candidate& c) {
      return c.partition == partition;
    });
  }

  // Judges the new ones of some partitions, a round at a time, and keeps the
  // best.
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
      // The start is judged in any case.
      if (!tried_.empty() && Over()) break;
      if (tried_.size() + round.size() >= partitions_) break;
      if (!c.has_value() || Known(c->partition) || !Accepts(c->partition)) {
        continue;
      }
      if (std::any_of(round.begin(), round.end(), [&](const Candidate& r) {
            return r.partition == c->partition;
          })) {
        continue;
      }
      if (!tried_.empty() && NumTasks(steps_.front().step, costs_.job(),
                                      c->partition) > most_tasks_) {
        continue;
      }
      round.push_back(*c);
      if (round.size() == kRound) PIPELOOM_RETURN_IF_ERROR(judge());
    }
    if (!round.empty()) PIPELOOM_RETURN_IF_ERROR(judge());
    return absl::OkStatus();
  }

  using Range = std::vector<Candidate>::iterator;
  // Whether plans of other strategies are made too, which takes as long as the
  // search itself.
  enum class Rivals { kNone, kAlso };

  // Judges on all steps only those that are promising on the first step; the
  // others get a time extrapolated from it.
  absl::Status Race(Range begin, Range end) {
    if (steps_.size() == 1 || !best_.has_value() ||
        !tried_[*best_].time.has_value() ||
        tried_[*best_].first_step == kZero) {
      return Judge(steps_, options_.evaluations, 0, begin, end);
    }
    const Candidate& best = tried_[*best_];
    const std::vector<WeighedStep> first = {steps_.front()};
    PIPELOOM_RETURN_IF_ERROR(Judge(first, options_.evaluations, 0, begin, end));
    const Range lagging = std::stable_partition(begin, end, [&](auto& c) {
      return c.time.has_value() &&
             c.first_step * 100 <= best.first_step * (100 + kLaggingPercent);
    });
    for (Range c = lagging; c != end; ++c) {
      if (!c->time.has_value()) continue;
      c->misfits = best.misfits;
      c->time = std::max(*best.time + Duration(1),
                         Scaled(*best.time, c->first_step, best.first_step));
    }
    return Judge(steps_, options_.evaluations, 1, begin, lagging);
  }

  // Sets the weighted mean of the emulated times of the steps. Steps before
  // `first_step`, at most one, have been judged already.
  absl::Status Judge(const std::vector<WeighedStep>& steps, int64_t evaluations,
                     size_t first_step, Range begin, Range end,
                     Rivals rivals = Rivals::kNone) {
    const size_t each = steps.size() - first_step;
    const auto count = static_cast<size_t>(end - begin) * each;
    std::vector<absl::StatusOr<Duration>> times(
        count, absl::UnknownError("not planned"));
    ParallelFor(options_.threads, static_cast<int32_t>(count), [&](int32_t i) {
      // A plan may take seconds, so except for the rule's none goes on after a
      // stop.
      const auto at = static_cast<size_t>(i);
      const absl::Status stopped =
          tried_.empty() ? absl::CancelledError("stopped")
                         : absl::ResourceExhaustedError("stopped");
      const bool needs_answer = tried_.empty() && options_.needs_answer;
      if (!needs_answer && options_.stop.stop_requested()) {
        times[at] = stopped;
        return;
      }
      const auto c = begin + static_cast<std::ptrdiff_t>(at / each);
      const PreparedJob job{
          .strategy = &strategy_, .costs = &costs_, .partition = c->partition};
      PlanInput input;
      input.packed = &steps[first_step + at % each].step;
      input.seed = options_.seed;
      input.budget.max_evaluations = evaluations;
      input.budget.stop = options_.stop;
      input.budget.needs_answer = needs_answer;
      const auto planned = rivals == Rivals::kAlso ? PlanStep(job, input)
                                                   : PlanAlone(job, input);
      if (planned.ok()) {
        times[at] = planned->predicted.step_time();
      } else {
        times[at] =
            absl::IsCancelled(planned.status()) ? stopped : planned.status();
      }
    });
    size_t next = 0;
    for (auto c = begin; c != end; ++c) {
      Duration sum{};
      int32_t fitting = 0;
      c->times.assign(steps.size(), kZero);
      const auto add = [&](Duration time, int32_t weight) {
        sum += time * weight;
        fitting += weight;
      };
      if (first_step == 0) {
        c->misfits = 0;
        c->first_step = kZero;
      } else {
        add(c->first_step, steps.front().weight);
      }
      for (size_t s = first_step; s < steps.size(); ++s) {
        const auto& time = times[next++];
        if (time.ok()) {
          if (s == 0) c->first_step = *time;
          c->times[s] = *time;
          add(*time, steps[s].weight);
          continue;
        }
        if (!absl::IsResourceExhausted(time.status())) return time.status();
        if (no_fit_.ok()) no_fit_ = time.status();
        c->misfits += steps[s].weight;
      }
      c->time = fitting > 0 ? std::optional(sum / fitting) : std::nullopt;
    }
    return absl::OkStatus();
  }

  // Returns the tried partitions that fit, the fastest first.
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

  // Makes both kinds of changes to the best partition that has not had them,
  // again and again.
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

  // Judges some partitions again: all of them or, if stopped meanwhile, none.
  absl::Status JudgeAgain(const std::vector<WeighedStep>& steps,
                          int64_t evaluations, Rivals rivals,
                          std::vector<Candidate>* some) {
    if (Stopped()) return absl::OkStatus();
    std::vector<Candidate> judged = *some;
    PIPELOOM_RETURN_IF_ERROR(
        Judge(steps, evaluations, 0, judged.begin(), judged.end(), rivals));
    if (Stopped()) return absl::OkStatus();
    *some = std::move(judged);
    judged_by_ = &steps;
    return absl::OkStatus();
  }

  absl::StatusOr<PartitionSearchResult> Decide() {
    const size_t most = kFinalists + static_cast<size_t>(effort_) / 10;
    std::vector<Candidate> last = {tried_.front()};
    for (const size_t i : ByTime()) {
      if (last.size() > most) break;
      if (i > 0) last.push_back(tried_[i]);
    }
    // Another time on the only step would be the same.
    if (&finals_ != &steps_ || steps_.size() > 1) {
      PIPELOOM_RETURN_IF_ERROR(
          JudgeAgain(finals_, options_.evaluations, Rivals::kNone, &last));
    }
    std::stable_sort(last.begin() + 1, last.end(), Before);
    last.resize(std::min(last.size(), most - kFinalists + kLast + 1));
    PIPELOOM_RETURN_IF_ERROR(JudgeAgain(
        finals_, options_.evaluations * kFinalEffort, Rivals::kAlso, &last));
    const Candidate& rule = last.front();
    auto best = std::min_element(last.begin(), last.end(), Before);
    if (judged_by_ == &finals_ && !IsSurelyBefore(*best, rule, finals_)) {
      best = last.begin();
    }
    if (!best->time.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("none of the %d partitions tried fits the memory: %s",
                          tried_.size(), no_fit_.message()));
    }
    PartitionSearchResult result{.partition = best->partition,
                                 .step_time = *best->time,
                                 .misfits = best->misfits,
                                 .tried = static_cast<int32_t>(tried_.size()),
                                 .recipe = best->name};
    if (rule.time.has_value() && rule.misfits == best->misfits) {
      result.rule_time = *rule.time;
    }
    if (best->misfits > 0) result.misfit = std::string(no_fit_.message());
    for (const WeighedStep& step : *judged_by_) result.judged += step.weight;
    return result;
  }

  const Strategy& strategy_;
  const emulator::StageCostModel& costs_;
  const PartitionBuilder& builder_;
  const PartitionMoves moves_;
  const std::vector<WeighedStep>& steps_;
  const std::vector<WeighedStep>& finals_;
  // The steps of the last judgement.
  const std::vector<WeighedStep>* judged_by_ = &steps_;
  const PartitionSearchOptions& options_;
  const int32_t effort_;
  const size_t partitions_;  // The most partitions to try.
  int64_t most_tasks_ = 0;
  std::vector<Candidate> tried_{};
  std::optional<size_t> best_{};
  // Partitions whose recipe's neighbours were tried.
  std::vector<size_t> expanded_{};
  std::vector<size_t> moved_{};  // Partitions whose moved layers were tried.
  absl::Status no_fit_{};
};

}  // namespace

absl::StatusOr<PartitionSearchResult> SearchPartitionOn(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample, const JudgedSteps& steps,
    const PartitionSearchOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const PartitionBuilder builder,
      PartitionBuilder::Create(costs.job(), costs, sample));
  return PartitionSearch(strategy, costs, builder, steps, options).Run();
}

absl::StatusOr<PartitionSearchResult> SearchPartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& part, const PartitionSearchOptions& options) {
  const BatchMetadata sample = FullSample(costs.job(), part);
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<WeighedStep> pool,
                            StepPool(costs, sample));
  const JudgedSteps steps{
      .steps = Stratify(pool, std::max(options.steps, 1)),
      .finals = Stratify(pool, std::max(options.final_steps, 1))};
  return SearchPartitionOn(strategy, costs, sample, steps, options);
}

absl::StatusOr<PartitionSearchResult> ImprovePartition(
    const Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& part, Partition own, PartitionSearchOptions options) {
  const BatchMetadata sample = FullSample(costs.job(), part);
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<partition::PackedStep> steps,
                            SampleSteps(costs, sample, 1));
  if (NumTasks(steps.front(), costs.job(), own) > kMostSearchedTasks) {
    return PartitionSearchResult{.partition = std::move(own)};
  }
  options.start = own;
  absl::StatusOr<PartitionSearchResult> found =
      SearchPartition(strategy, costs, sample, options);
  if (absl::IsResourceExhausted(found.status())) {
    return PartitionSearchResult{.partition = std::move(own)};
  }
  return found;
}

}  // namespace pipeloom::planner
