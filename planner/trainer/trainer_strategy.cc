#include "planner/trainer/trainer_strategy.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "partition/placement/recipe.h"
#include "planner/step/partition_choice.h"
#include "planner/strategies/representative_step.h"
#include "planner/trainer/recompute.h"
#include "planner/trainer/trainer_partitions.h"
#include "planner/trainer/trainer_plan.h"

namespace pipeloom::planner {
namespace {

// The partitions that are judged by more than the median step.
constexpr size_t kFinalists = 4;

}  // namespace

absl::StatusOr<Partition> TrainerStrategy::MakePartition(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    const std::stop_token& stop) const {
  PIPELOOM_RETURN_IF_ERROR(CheckTrainerJob(trainer_, costs.job()));
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
          {.threads = std::clamp(
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
    return PlanForTrainer(trainer_, *recompute_, job, input);
  }
  PlanInput once = input;
  once.budget.max_evaluations = 1;
  PIPELOOM_ASSIGN_OR_RETURN(
      const RecomputeSetting setting,
      ChooseRecompute(
          trainer_, job.costs->job(), job.partition,
          [&](const RecomputeSetting& tried) {
            return PlanForTrainer(trainer_, tried, job, once).status();
          }));
  return PlanForTrainer(trainer_, setting, job, input);
}

absl::Status TrainerStrategy::FixRecompute(
    const PreparedJob& job, absl::Span<const partition::PackedStep> steps,
    int32_t replicas, const std::stop_token& stop) {
  PIPELOOM_RETURN_IF_ERROR(CheckTrainerJob(trainer_, job.costs->job()));
  struct Place {
    size_t step = 0;
    int32_t replica = 0;
  };
  std::vector<Place> places;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (int32_t r = 0; r < replicas; ++r) places.push_back({s, r});
  }
  const auto fits = [&](const RecomputeSetting& setting) -> absl::Status {
    for (size_t i = 0; i < places.size(); ++i) {
      if (stop.stop_requested()) return absl::CancelledError("stopped");
      PlanInput once;
      once.packed = &steps[places[i].step];
      once.step = static_cast<int64_t>(places[i].step);
      once.replica = places[i].replica;
      once.budget.max_evaluations = 1;
      const absl::Status status =
          PlanForTrainer(trainer_, setting, job, once).status();
      if (status.ok()) continue;
      // What did not fit is tried first the next time.
      std::rotate(places.begin(),
                  places.begin() + static_cast<std::ptrdiff_t>(i),
                  places.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return status;
    }
    return absl::OkStatus();
  };
  PIPELOOM_ASSIGN_OR_RETURN(
      recompute_,
      ChooseRecompute(trainer_, job.costs->job(), job.partition, fits));
  return absl::OkStatus();
}

}  // namespace pipeloom::planner
