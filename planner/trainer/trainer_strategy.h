// Plans for a trainer with limits (ir/plan/trainer.h): a partition, one setting
// of recomputation for the whole job, and orders that it can execute.
//
// Partitions: all modules as one chain, cut by time, parameters or number of
// layers into as many stages a rank as the trainer takes, in a loop or a V. The
// one whose plans of sample steps are fastest is taken. Backwards are split if
// that is faster and the trainer can.
#ifndef PIPELOOM_PLANNER_TRAINER_TRAINER_STRATEGY_H_
#define PIPELOOM_PLANNER_TRAINER_TRAINER_STRATEGY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/plan/trainer.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {

class TrainerStrategy : public Strategy, public PlansWholeSteps {
 public:
  // Keeps a reference. `rival`: the other strategy; null for pipeloom's
  // search. REQUIRES: !trainer.everything.
  explicit TrainerStrategy(const TrainerLimits& trainer,
                           std::unique_ptr<const Strategy> rival = nullptr)
      : trainer_(trainer), rival_(std::move(rival)) {}

  absl::string_view name() const override {
    return rival_ != nullptr ? rival_->name() : "pipeloom";
  }
  bool split_backward() const override {
    return rival_ != nullptr ? rival_->split_backward()
                             : trainer_.split_backward;
  }
  // Also FailedPrecondition: the job, or the other strategy, has what the
  // trainer cannot execute.
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override;
  // Unimplemented: steps are planned as a whole.
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override;
  bool Accepts(const Partition& partition, const JobSpec& job) const override;
  // Chooses recomputation for this step alone unless FixRecompute was called.
  absl::StatusOr<PlanResult> PlanWholeStep(
      const PreparedJob& job, const PlanInput& input) const override;

  // Sets the recomputation of all later plans to that with which the first of
  // these steps are fastest and all of them, of replicas [0, replicas), fit.
  // ResourceExhausted: there is none.
  absl::Status FixRecompute(const PreparedJob& job,
                            absl::Span<const partition::PackedStep> steps,
                            int32_t replicas, const std::stop_token& stop);
  const TrainerLimits& trainer() const { return trainer_; }
  const std::optional<RecomputeSetting>& recompute() const {
    return recompute_;
  }

 private:
  // Checks the job and the other strategy.
  absl::Status Check(const JobSpec& job) const;

  const TrainerLimits& trainer_;
  std::unique_ptr<const Strategy> rival_{};
  std::optional<RecomputeSetting> recompute_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_TRAINER_STRATEGY_H_
