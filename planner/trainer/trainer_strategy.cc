#include "planner/trainer/trainer_strategy.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "base/units.h"
#include "partition/placement/recipe.h"
#include "planner/memory/smallest_limit.h"
#include "planner/step/partition_choice.h"
#include "planner/strategies/representative_step.h"
#include "planner/trainer/recompute.h"
#include "planner/trainer/rival_order.h"
#include "planner/trainer/trainer_partitions.h"
#include "planner/trainer/trainer_plan.h"

namespace pipeloom::planner {
namespace {

// The partitions that are judged by more than the median step.
constexpr size_t kFinalists = 6;
constexpr int64_t kFinalEvaluations = 40;
// Evaluations that a setting of recomputation is judged by, and the best
// settings for the whole job once more, and the number of steps.
constexpr int64_t kJudgeEvaluations = 12;
constexpr int64_t kLongEvaluations = 400;
constexpr size_t kJudged = 3;
constexpr Bytes kNoMemoryLimit(0);

}  // namespace

absl::Status TrainerStrategy::Check(const JobSpec& job) const {
  PIPELOOM_RETURN_IF_ERROR(CheckTrainerJob(trainer_, job));
  return rival_ != nullptr ? CheckRival(trainer_, *rival_) : absl::OkStatus();
}

absl::StatusOr<Partition> TrainerStrategy::MakePartition(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    const std::stop_token& stop) const {
  PIPELOOM_RETURN_IF_ERROR(Check(costs.job()));
  if (rival_ != nullptr) {
    PIPELOOM_ASSIGN_OR_RETURN(Partition own,
                              rival_->MakePartition(costs, sample, stop));
    PIPELOOM_RETURN_IF_ERROR(CheckTrainerPartition(trainer_, costs.job(), own));
    return own;
  }
  PIPELOOM_ASSIGN_OR_RETURN(const RepresentativeStep median,
                            RepresentativeStep::Create(costs, sample, stop));
  PIPELOOM_ASSIGN_OR_RETURN(
      std::vector<Partition> partitions,
      TrainerPartitions(costs.job(), trainer_, median.units()));
  struct Judged {
    Duration time{};
    size_t index = 0;
  };
  std::vector<Judged> fitting;
  for (size_t i = 0; i < partitions.size(); ++i) {
    const absl::StatusOr<std::optional<Duration>> time =
        median.PlannedTime(*this, partitions[i]);
    if (absl::IsCancelled(time.status())) return time.status();
    // A stock schedule may have no order for so few microbatches.
    if (time.ok() && time->has_value()) fitting.push_back({**time, i});
  }
  if (fitting.empty()) return std::move(partitions.front());
  std::stable_sort(
      fitting.begin(), fitting.end(),
      [](const Judged& a, const Judged& b) { return a.time < b.time; });
  fitting.resize(std::min(fitting.size(), kFinalists));
  std::vector<Partition> finalists;
  for (const Judged& judged : fitting) {
    finalists.push_back(std::move(partitions[judged.index]));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const size_t chosen,
      ChoosePartition(
          *this, costs, sample, finalists,
          {.evaluations = kFinalEvaluations,
           .threads = std::clamp(
               static_cast<int32_t>(std::thread::hardware_concurrency()), 1, 8),
           .stop = stop}));
  return std::move(finalists[chosen]);
}

absl::StatusOr<SearchResult> TrainerStrategy::MakeSchedule(
    const StageGraph&, const Partition&, uint64_t, const SearchBudget&) const {
  return absl::UnimplementedError("steps are planned as a whole");
}

bool TrainerStrategy::Accepts(const Partition& partition,
                              const JobSpec& job) const {
  return CheckTrainerPartition(trainer_, job, partition).ok();
}

absl::StatusOr<PlanResult> TrainerStrategy::PlanWholeStep(
    const PreparedJob& job, const PlanInput& input) const {
  if (recompute_.has_value()) {
    return PlanForTrainer(trainer_, *recompute_, job, input, rival_.get());
  }
  PlanInput once = input;
  once.budget.max_evaluations =
      std::min(input.budget.max_evaluations, kJudgeEvaluations);
  const auto time =
      [&](const RecomputeSetting& setting,
          std::optional<Bytes> limit) -> absl::StatusOr<Duration> {
    PIPELOOM_ASSIGN_OR_RETURN(
        const PlanResult planned,
        PlanForTrainer(trainer_, setting, job, once, rival_.get(), limit));
    return planned.predicted.step_time();
  };
  PIPELOOM_ASSIGN_OR_RETURN(const Duration unlimited, time({}, kNoMemoryLimit));
  PIPELOOM_ASSIGN_OR_RETURN(
      const RecomputeSetting setting,
      ChooseRecompute(
          trainer_, job.costs->job(), job.partition, unlimited,
          [&](const RecomputeSetting& tried) { return time(tried, {}); },
          /*time_long=*/{}));
  return PlanForTrainer(trainer_, setting, job, input, rival_.get());
}

absl::Status TrainerStrategy::FixRecompute(
    const PreparedJob& job, absl::Span<const partition::PackedStep> steps,
    int32_t replicas, const std::stop_token& stop) {
  const JobSpec& spec = job.costs->job();
  PIPELOOM_RETURN_IF_ERROR(Check(spec));
  struct Place {
    size_t step = 0;
    int32_t replica = 0;
  };
  // Those whose times count come first.
  std::vector<Place> places;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (int32_t r = 0; r < replicas; ++r) places.push_back({s, r});
  }
  size_t counted = std::min(kJudged, places.size());
  const auto plan =
      [&](const Place& place, const RecomputeSetting& setting,
          int64_t evaluations,
          std::optional<Bytes> limit) -> absl::StatusOr<Duration> {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    PlanInput input;
    input.packed = &steps[place.step];
    input.step = static_cast<int64_t>(place.step);
    input.replica = place.replica;
    input.budget.max_evaluations = evaluations;
    PIPELOOM_ASSIGN_OR_RETURN(
        const PlanResult planned,
        PlanForTrainer(trainer_, setting, job, input, rival_.get(), limit));
    return planned.predicted.step_time();
  };
  const auto time =
      [&](const RecomputeSetting& setting, int64_t evaluations,
          std::optional<Bytes> limit) -> absl::StatusOr<Duration> {
    Duration sum{};
    for (size_t i = 0; i < counted; ++i) {
      PIPELOOM_ASSIGN_OR_RETURN(const Duration one,
                                plan(places[i], setting, evaluations, limit));
      sum += one;
    }
    return sum;
  };
  while (true) {
    PIPELOOM_ASSIGN_OR_RETURN(const Duration unlimited,
                              time({}, kJudgeEvaluations, kNoMemoryLimit));
    absl::StatusOr<RecomputeSetting> setting = ChooseRecompute(
        trainer_, spec, job.partition, unlimited,
        [&](const RecomputeSetting& tried) {
          return time(tried, kJudgeEvaluations, {});
        },
        [&](const RecomputeSetting& tried) {
          return time(tried, kLongEvaluations, {});
        });
    if (absl::IsResourceExhausted(setting.status())) {
      // Those that recompute most, if any is allowed.
      std::vector<RecomputeSetting> most =
          CommonSettings(trainer_, spec, job.partition);
      if (most.size() > 1) {
        std::erase_if(most, [](const RecomputeSetting& tried) {
          return tried.period == 0;
        });
      }
      const auto works = [&](Bytes limit) {
        const auto all_fit = [&](const RecomputeSetting& tried) {
          for (size_t i = 0; i < places.size(); ++i) {
            const int64_t evaluations = i < counted ? kJudgeEvaluations : 1;
            if (!plan(places[i], tried, evaluations, limit).ok()) return false;
          }
          return true;
        };
        return std::any_of(most.begin(), most.end(), all_fit);
      };
      return DescribeInfeasibleStep(
          setting.status(), std::nullopt, spec.MemoryLimit(),
          FindLimitThatWorks(spec.MemoryLimit(), spec.MemoryLimit(), works,
                             /*is_late=*/{}, stop));
    }
    PIPELOOM_RETURN_IF_ERROR(setting.status());
    size_t at = counted;
    for (; at < places.size(); ++at) {
      const absl::StatusOr<Duration> fits =
          plan(places[at], *setting, /*evaluations=*/1, /*limit=*/{});
      if (absl::IsResourceExhausted(fits.status())) break;
      PIPELOOM_RETURN_IF_ERROR(fits.status());
    }
    if (at == places.size()) {
      recompute_ = *std::move(setting);
      return absl::OkStatus();
    }
    // The step that does not fit counts from now on.
    std::swap(places[counted], places[at]);
    ++counted;
  }
}

}  // namespace pipeloom::planner
