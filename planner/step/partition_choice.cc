#include "planner/step/partition_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/numeric.h"
#include "base/status_macros.h"
#include "planner/core/executor.h"
#include "planner/step/rival_plans.h"
#include "planner/step/sample_steps.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kFirstSteps = 2;
constexpr int32_t kSteps = 5;
// Number of partitions that are judged in any case, and number of steps for
// which there must be time so that more are. For large steps of llama3-70b on
// 16 ranks the best of more was one that takes longer to plan.
constexpr size_t kAnyCase = 3;
constexpr int64_t kMoreStepsFrom = 40;
constexpr double kLagging = 1.03;  // Over the best of the first round.
constexpr double kSurely = 2;      // Standard errors.
// The least gain, as a mean over all steps of the sample, that counts as more
// than the noise of short searches: a single step's time varies by percents.
// Chosen on two jobs, dip-vlm-s with five microbatches of mixed samples and
// llama3-70b on 16 ranks with 25 microbatches of interleaved ones.
constexpr double kClearly = 0.01;
constexpr int64_t kLeastEvaluations = 4;
// Tasks of a step that is searched to its end in any case. Chosen, as the two
// below, on dip-t2v-s with 19 microbatches of mixed samples on 16 ranks and
// step1x-edit with 4 of speech.
constexpr int64_t kSmallStep = 300;
// The rounds, which share the work, and the most evaluations of a search.
constexpr int64_t kRounds = 3;
constexpr int64_t kMostEvaluations = 200;

struct Candidate {
  size_t index = 0;
  int64_t tasks = 0;              // In a step.
  bool is_large = false;          // Too many tasks for a search of 100 ms.
  std::vector<Duration> times{};  // Indexed by step; 0: it does not fit.
  int32_t misfits = 0;            // Weight of the steps that do not fit.
  double mean = 0;                // Weighted, of those that fit, in s.
};

bool Before(const Candidate& a, const Candidate& b) {
  return std::pair(a.misfits, a.mean) < std::pair(b.misfits, b.mean);
}

class Race {
 public:
  Race(const Strategy& strategy, const emulator::StageCostModel& costs,
       const std::vector<Partition>& partitions, int64_t least_tasks,
       const PartitionChoiceOptions& options)
      : strategy_(strategy),
        costs_(costs),
        partitions_(partitions),
        least_tasks_(least_tasks),
        seed_(options.seed),
        threads_(options.threads),
        stop_(options.stop) {}

  // Sets the candidates' times, misfits and means on these steps.
  void Judge(const std::vector<WeighedStep>& steps, int64_t evaluations,
             std::vector<Candidate>* candidates) const {
    const size_t count = candidates->size() * steps.size();
    std::vector<absl::StatusOr<Duration>> times(
        count, absl::UnknownError("not planned"));
    ParallelFor(threads_, static_cast<int32_t>(count), [&](int32_t i) {
      const auto at = static_cast<size_t>(i);
      const Candidate& c = (*candidates)[at / steps.size()];
      times[at] = TimeOf(
          steps[at % steps.size()], c,
          std::max(kLeastEvaluations, evaluations * least_tasks_ / c.tasks));
    });
    for (size_t c = 0; c < candidates->size(); ++c) {
      Candidate& candidate = (*candidates)[c];
      candidate.times.assign(steps.size(), kZero);
      candidate.misfits = 0;
      double sum = 0;
      int32_t weights = 0;
      for (size_t s = 0; s < steps.size(); ++s) {
        const auto& time = times[c * steps.size() + s];
        if (time.ok()) {
          candidate.times[s] = *time;
          sum += steps[s].weight * ToSeconds(*time);
          weights += steps[s].weight;
        } else {
          candidate.misfits += steps[s].weight;
        }
      }
      candidate.mean = weights == 0 ? 0 : sum / weights;
    }
  }

 private:
  absl::StatusOr<Duration> TimeOf(const WeighedStep& step,
                                  const Candidate& candidate,
                                  int64_t evaluations) const {
    const PreparedJob job{.strategy = &strategy_,
                          .costs = &costs_,
                          .partition = partitions_[candidate.index]};
    PlanInput input;
    input.packed = &step.step;
    input.pairs_forwards = false;
    input.seed = seed_;
    input.budget.max_evaluations = evaluations;
    input.budget.stop = stop_;
    if (stop_.stop_requested()) return absl::CancelledError("stopped");
    return candidate.is_large ? QuickTime(job, input) : JudgedTime(job, input);
  }

  const Strategy& strategy_;
  const emulator::StageCostModel& costs_;
  const std::vector<Partition>& partitions_;
  const int64_t least_tasks_;
  const uint64_t seed_;
  const int32_t threads_;
  const std::stop_token stop_;
};

// Returns the fastest, or one that is about as fast and has fewer tasks: in the
// same time its steps are searched further, unless they are small anyway.
Candidate FastestOf(const std::vector<Candidate>& candidates) {
  const Candidate best =
      *std::min_element(candidates.begin(), candidates.end(), Before);
  Candidate fewest = best;
  if (best.tasks <= kSmallStep) return best;
  for (const Candidate& c : candidates) {
    if (c.misfits == best.misfits && c.mean <= (1 + kClearly) * best.mean &&
        c.tasks < fewest.tasks) {
      fewest = c;
    }
  }
  return fewest;
}

// Returns whether `a` is faster than the rule beyond what the steps' noise
// explains: results of short searches vary by percents from step to step.
bool IsSurelyFaster(const Candidate& a, const Candidate& rule,
                    const std::vector<WeighedStep>& steps) {
  if (a.misfits != rule.misfits) return a.misfits < rule.misfits;
  const MeanGain gain = GainOf(steps, rule.times, a.times);
  if (gain.steps < 2) return gain.mean > 0;
  return gain.mean > kSurely * gain.error;
}

// Returns the same for times of all steps, whose mean is certain except for the
// noise of searches.
bool IsClearlyFaster(const Candidate& a, const Candidate& rule) {
  if (a.misfits != rule.misfits) return a.misfits < rule.misfits;
  return a.mean < (1 - kClearly) * rule.mean;
}

}  // namespace

absl::StatusOr<size_t> ChoosePartition(const Strategy& strategy,
                                       const emulator::StageCostModel& costs,
                                       const BatchMetadata& sample,
                                       const std::vector<Partition>& partitions,
                                       const PartitionChoiceOptions& options) {
  if (partitions.size() == 1) return 0;
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<WeighedStep> pool,
                            StepPool(costs, sample, kMostSteps));
  std::vector<Candidate> candidates(partitions.size());
  int64_t least_tasks = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < candidates.size(); ++i) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const Microbatches microbatches,
        partition::SplitMicrobatches(costs.job(), pool.front().step,
                                     /*replica=*/0, partitions[i]));
    candidates[i].index = i;
    candidates[i].tasks =
        std::max<int64_t>(1, partition::MostTasks(microbatches, partitions[i]));
    least_tasks = std::min(least_tasks, candidates[i].tasks);
  }
  if (least_tasks <= options.many_tasks) {
    size_t large = 0;  // The first large one; 0: none.
    for (Candidate& c : candidates) {
      c.is_large = c.index > 0 && c.tasks > options.many_tasks;
      if (c.is_large && large == 0) large = c.index;
    }
    std::erase_if(candidates, [&](const Candidate& c) {
      return c.is_large && c.index != large;
    });
    if (candidates.size() == 1) return 0;
  }
  // Work of judging all candidates on one step.
  const auto each = [&] {
    return options.evaluations * least_tasks *
           static_cast<int64_t>(candidates.size());
  };
  while (candidates.size() > kAnyCase &&
         options.work / each() < kMoreStepsFrom) {
    candidates.pop_back();
  }
  const int64_t steps_left = options.work / each() - kFirstSteps;
  if (steps_left < kFirstSteps) return 0;  // Too large to be judged.
  // Returns the evaluations of a round: longer searches of small steps cost
  // little, and judge better.
  const auto evaluations = [&](const std::vector<WeighedStep>& steps) {
    const int64_t once =
        static_cast<int64_t>(steps.size() * candidates.size()) * least_tasks;
    return std::max(options.evaluations,
                    std::min(options.work / kRounds / once, kMostEvaluations));
  };
  const Race race(strategy, costs, partitions, least_tasks, options);
  const std::vector<WeighedStep> first = Stratify(pool, kFirstSteps);
  const std::vector<WeighedStep> steps = Stratify(
      pool, static_cast<int32_t>(std::min<int64_t>(kSteps, steps_left)));

  race.Judge(first, evaluations(first), &candidates);
  if (options.stop.stop_requested()) return absl::CancelledError("stopped");
  const Candidate best =
      *std::min_element(candidates.begin(), candidates.end(), Before);
  std::erase_if(candidates, [&](const Candidate& c) {
    return c.index > 0 &&
           (c.misfits > best.misfits || c.mean > kLagging * best.mean);
  });
  if (candidates.size() == 1) return 0;
  race.Judge(steps, evaluations(steps), &candidates);
  if (options.stop.stop_requested()) return absl::CancelledError("stopped");
  const auto fastest = [&] { return FastestOf(candidates); };
  if (fastest().index == 0) return 0;
  if (IsSurelyFaster(fastest(), candidates.front(), steps)) {
    return fastest().index;
  }
  // A few steps that differ much tell little. All of them tell the mean.
  const auto all = static_cast<int64_t>(pool.size());
  if (all <= static_cast<int64_t>(steps.size()) ||
      all > steps_left - static_cast<int64_t>(steps.size())) {
    return 0;
  }
  race.Judge(pool, evaluations(pool), &candidates);
  if (options.stop.stop_requested()) return absl::CancelledError("stopped");
  return IsClearlyFaster(fastest(), candidates.front()) ? fastest().index : 0;
}

}  // namespace pipeloom::planner
