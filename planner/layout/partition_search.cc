#include "planner/layout/partition_search.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/placement/recipe.h"
#include "planner/core/executor.h"
#include "planner/layout/finalists.h"
#include "planner/layout/partition_moves.h"
#include "planner/step/plan_alone.h"
#include "planner/step/rival_plans.h"
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
constexpr size_t kFinalists = 8;  // Judged on more steps.
// Finalists judged with more effort, in addition to DIP's rule.
constexpr size_t kLast = 4;
constexpr size_t kBeam = 3;
constexpr int64_t kFinalEffort = 4;  // Factor on the evaluations.
// Partitions that make a step of more tasks than this, and of more than twice
// those of the coarsest partition, are not tried (except the rule's): planning
// would take too long in every step, and short tasks do not pay.
constexpr int64_t kManyTasks = 8000;
// A partition that is over the best on the first step by more than this is not
// judged on the others.
constexpr int64_t kLaggingPercent = 2;
// Steps on which all finalists are judged, and by how much one is then over the
// best so that it is not judged on the others.
constexpr size_t kFewSteps = 2;
constexpr int64_t kFarPercent = 3;
constexpr int32_t kMaxEffort = 1000;

bool IsWithin(int64_t percent, Duration time, Duration best) {
  return time * 100 <= best * (100 + percent);
}

// Sets the weighted mean of the times of the steps judged so far.
void SetMean(const std::vector<WeighedStep>& steps, Candidate* c) {
  Duration sum{};
  int32_t fitting = 0;
  c->misfits = 0;
  for (size_t s = 0; s < c->times.size(); ++s) {
    if (c->times[s] == kZero) {
      c->misfits += steps[s].weight;
      continue;
    }
    sum += c->times[s] * steps[s].weight;
    fitting += steps[s].weight;
  }
  c->time = fitting > 0 ? std::optional(sum / fitting) : std::nullopt;
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
      PIPELOOM_RETURN_IF_ERROR(Try({Candidate{
          .partition = *options_.start, .name = "start", .origin = "start"}}));
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
      PIPELOOM_RETURN_IF_ERROR(Race(&round));
      for (Candidate& c : round) {
        if (!best_.has_value() || IsBetterPartition(c, tried_[*best_])) {
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

  using Candidates = std::vector<Candidate*>;
  // Whether the quick plans that are made in every step count too.
  enum class Rivals { kNone, kQuick };
  // The steps that candidates are judged by, and how thoroughly.
  struct Effort {
    const std::vector<WeighedStep>& steps;
    int64_t evaluations = 0;
    Rivals rivals = Rivals::kNone;
  };

  // Judges on all steps only those that are promising on the first step; the
  // others get a time extrapolated from it.
  absl::Status Race(std::vector<Candidate>* round) {
    const Effort effort{steps_, options_.evaluations};
    const Candidates all = PointersTo(round);
    if (steps_.size() == 1 || !best_.has_value() ||
        !tried_[*best_].time.has_value() ||
        tried_[*best_].times.front() == kZero) {
      return Judge(effort, 0, steps_.size(), all);
    }
    const Candidate& best = tried_[*best_];
    const Duration best_first = best.times.front();
    PIPELOOM_RETURN_IF_ERROR(Judge(effort, 0, 1, all));
    Candidates promising;
    for (Candidate* const c : all) {
      if (!c->time.has_value()) continue;
      if (IsWithin(kLaggingPercent, *c->time, best_first)) {
        promising.push_back(c);
        continue;
      }
      c->misfits = best.misfits;
      c->time = std::max(*best.time + Duration(1),
                         Scaled(*best.time, *c->time, best_first));
    }
    return Judge(effort, 1, steps_.size(), promising);
  }

  static Candidates PointersTo(std::vector<Candidate>* candidates) {
    Candidates pointers;
    for (Candidate& c : *candidates) pointers.push_back(&c);
    return pointers;
  }

  // Plans the steps from `first` on, up to `end`, and sets the weighted mean of
  // the emulated times of all steps up to there; those before `first` have been
  // judged already.
  absl::Status Judge(const Effort& effort, size_t first, size_t end,
                     const Candidates& candidates) {
    const size_t each = end - first;
    const size_t count = candidates.size() * each;
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
      const PreparedJob job{.strategy = &strategy_,
                            .costs = &costs_,
                            .partition = candidates[at / each]->partition};
      PlanInput input;
      input.packed = &effort.steps[first + at % each].step;
      input.seed = options_.seed;
      input.budget.max_evaluations = effort.evaluations;
      input.budget.stop = options_.stop;
      input.budget.needs_answer = needs_answer;
      times[at] = effort.rivals == Rivals::kQuick ? JudgedTime(job, input)
                                                  : TimeAlone(job, input);
      if (absl::IsCancelled(times[at].status())) times[at] = stopped;
    });
    size_t next = 0;
    for (Candidate* const c : candidates) {
      c->times.resize(first);
      for (size_t s = first; s < end; ++s) {
        const auto& time = times[next++];
        if (!time.ok()) {
          if (!absl::IsResourceExhausted(time.status())) return time.status();
          if (no_fit_.ok()) no_fit_ = time.status();
        }
        c->times.push_back(time.ok() ? *time : kZero);
      }
      SetMean(effort.steps, c);
    }
    return absl::OkStatus();
  }

  // Returns whether a partition needs no more judging, as it is far behind the
  // best on the steps so far; the rule only if that is certain.
  bool IsOut(const Candidate& c, const Candidate& best,
             const std::vector<WeighedStep>& steps) const {
    if (!best.time.has_value()) return false;
    const bool far = !c.time.has_value() || c.misfits > best.misfits ||
                     !IsWithin(kFarPercent, *c.time, *best.time);
    return far && (!IsRule(c) || IsSurelyBetterPartition(best, c, steps));
  }

  // Takes out those that need no more judging. Notes how far behind the best
  // the rule is, if it is one of them.
  void DropFar(const std::vector<WeighedStep>& steps,
               std::vector<Candidate>* finalists,
               std::vector<Candidate>* dropped) {
    const Candidate best = *std::min_element(
        finalists->begin(), finalists->end(), IsBetterPartition);
    const auto out = std::stable_partition(
        finalists->begin(), finalists->end(),
        [&](const Candidate& c) { return !IsOut(c, best, steps); });
    for (auto c = out; c != finalists->end(); ++c) {
      if (IsRule(*c) && c->time.has_value() && c->misfits == best.misfits) {
        rule_ratio_ = ToSeconds(*c->time) / ToSeconds(*best.time);
      }
      dropped->push_back(std::move(*c));
    }
    finalists->erase(out, finalists->end());
  }

  // Judges finalists on all steps and takes out those that are far behind the
  // best: on a few steps already, so that most steps are planned only with the
  // promising ones. If stopped meanwhile, leaves them as they are.
  absl::Status JudgeFinalists(const Effort& effort,
                              std::vector<Candidate>* finalists) {
    if (Stopped()) return absl::OkStatus();
    std::vector<Candidate> in = *finalists;
    std::vector<Candidate> out;
    const size_t all = effort.steps.size();
    size_t judged = 0;
    for (const size_t until : {kFewSteps, 2 * kFewSteps, all}) {
      const size_t end = std::min(until, all);
      if (end <= judged) continue;
      PIPELOOM_RETURN_IF_ERROR(Judge(effort, judged, end, PointersTo(&in)));
      judged = end;
      DropFar(effort.steps, &in, &out);
    }
    // One that was dropped may fit the steps that these do not.
    if (std::all_of(in.begin(), in.end(),
                    [](const Candidate& c) { return c.misfits > 0; })) {
      for (Candidate& c : out) {
        PIPELOOM_RETURN_IF_ERROR(Judge(effort, c.times.size(), all, {&c}));
        in.push_back(std::move(c));
      }
    }
    if (Stopped()) return absl::OkStatus();
    *finalists = std::move(in);
    judged_by_ = &effort.steps;
    return absl::OkStatus();
  }

  static absl::StatusOr<Duration> TimeAlone(const PreparedJob& job,
                                            const PlanInput& input) {
    PIPELOOM_ASSIGN_OR_RETURN(const PlanResult planned, PlanAlone(job, input));
    return planned.predicted.step_time();
  }

  // Changes the best recipes, until no single change of any of the few best
  // brings it among them.
  absl::Status Descend() {
    // A share of the effort is left for moving layers.
    while (!Over() && tried_.size() * 4 < partitions_ * 3) {
      std::optional<size_t> next;
      std::vector<size_t> order = BestPartitions(tried_);
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
      for (const size_t i : BestPartitions(tried_)) {
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
    const size_t most = kFinalists + static_cast<size_t>(effort_) / 10;
    std::vector<Candidate> last = Finalists(tried_, most);
    // Another time on the only step would be the same.
    if (&finals_ != &steps_ || steps_.size() > 1) {
      PIPELOOM_RETURN_IF_ERROR(
          JudgeFinalists({finals_, options_.evaluations}, &last));
    } else {
      std::vector<Candidate> far;
      DropFar(steps_, &last, &far);
    }
    std::stable_sort(last.begin(), last.end(), IsBetterPartition);
    const size_t kept = most - kFinalists + kLast;
    for (size_t i = last.size(); i-- > kept;) {
      if (!IsRule(last[i])) last.erase(last.begin() + static_cast<long>(i));
    }
    if (last.size() > 1) {
      std::vector<Candidate> again = last;
      // Shows how much the best gains, even if it was dropped.
      if (std::none_of(last.begin(), last.end(),
                       [&](const Candidate& c) { return IsRule(c); })) {
        again.push_back(tried_.front());
      }
      PIPELOOM_RETURN_IF_ERROR(JudgeFinalists(
          {finals_, options_.evaluations * kFinalEffort, Rivals::kQuick},
          &again));
      if (!Stopped()) last = std::move(again);
    }
    auto best = std::min_element(last.begin(), last.end(), IsBetterPartition);
    const auto rule =
        std::find_if(last.begin(), last.end(),
                     [&](const Candidate& c) { return IsRule(c); });
    if (judged_by_ == &finals_ && rule != last.end() &&
        !IsSurelyBetterPartition(*best, *rule, finals_)) {
      best = rule;
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
    if (rule == last.end()) {
      result.rule_time = Nanoseconds(static_cast<int64_t>(
          rule_ratio_ * static_cast<double>(best->time->count())));
    } else if (rule->time.has_value() && rule->misfits == best->misfits) {
      result.rule_time = *rule->time;
    }
    if (best->misfits > 0) result.misfit = std::string(no_fit_.message());
    for (const WeighedStep& step : *judged_by_) result.judged += step.weight;
    return result;
  }

  bool IsRule(const Candidate& c) const {
    return c.partition == tried_.front().partition;
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
  double rule_ratio_ = 0;  // The rule's time over the best one's, if dropped.
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
  JudgedSteps steps{.steps = Stratify(pool, std::max(options.steps, 1))};
  if (pool.size() > 1) {
    steps.finals = Stratify(pool, std::max(options.final_steps, 1));
  }
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
