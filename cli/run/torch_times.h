// A model of the torch device's task times, learned from past steps, which
// predicts the next step's time.
//
// The time of a task of one stage and pass is modelled as
//     a + b sequences + c tokens + d sum over sequences of
//                                      length x (length + context length)
// with coefficients of at least 0, fitted by least squares of relative errors
// over the last steps; the first step, which warms up, counts only while it is
// the only one. For each rank, the medians of its epilogue and of its time for
// sends and copies, spread over its tasks, are added. All of these are
// processor times, of which the emulator makes a step time. That is multiplied
// by the ratio of the last steps' measured times to the times of the same
// model, with most weight on the latest step. The ratio covers wake-ups, other
// processes, the machine's changing speed, and waits for tasks that happen to
// be late.
//
// This is not the learner of emulator/calibration/cost_learner.h, which
// corrects the times of a cost model: a cost model prices a GPU, and these are
// tasks of a scaled-down model on processors, of which there are no prices to
// correct. Work is fitted instead. The ratio of steps weighs the latest most
// because it predicts the next step and no factor of later plans.
#ifndef PIPELOOM_CLI_RUN_TORCH_TIMES_H_
#define PIPELOOM_CLI_RUN_TORCH_TIMES_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"
#include "runtime/torch/torch_trainer.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::cli {

class TorchTimes {
 public:
  // First steps, which are dropped when there are later ones.
  static constexpr int64_t kWarmUpSteps = 1;
  struct Prediction {
    Duration step{};
    Duration undisturbed{};  // If each rank were alone on its core.
  };
  // Learns from one step. `spent` is of all ranks. Returns the time that the
  // step would have taken undisturbed.
  absl::StatusOr<Duration> Learn(const ExecutionPlan& plan,
                                 const runtime::TorchWork& work,
                                 const runtime::TorchSpent& spent,
                                 const StepTrace& trace);
  // Predicts a step's time; nullopt if nothing has been learned of some stage
  // and pass in the plan.
  absl::StatusOr<std::optional<Prediction>> Predict(
      const ExecutionPlan& plan, const runtime::TorchWork& work) const;

 private:
  static constexpr size_t kFeatures = 4;
  static constexpr size_t kRemembered = 400;  // Tasks of a stage and pass.
  static constexpr size_t kSteps = 9;         // Steps for values kept by step.
  using Features = std::array<double, kFeatures>;
  struct Seen {
    Features features{};
    double seconds = 0;
  };
  struct RankSeen {
    std::deque<double> epilogue{};  // Seconds in each step.
    std::deque<double> between{};   // Seconds per task in each step.
  };
  struct Step {
    ExecutionPlan plan{};
    IdVector<TaskId, Features> features{};
    double seconds = 0;
    double undisturbed = 0;
  };
  using Key = std::pair<StageId, Pass>;

  static Features Of(const runtime::TorchWork& work, const Task& task);
  static Features Fit(const std::deque<Seen>& seen);
  static double Apply(const Features& fit, const Features& features);
  absl::Status Compare();
  // Returns the emulated step time of the fits; nullopt if a stage was not seen
  // yet.
  absl::StatusOr<std::optional<Duration>> Fitted(
      const ExecutionPlan& plan,
      const IdVector<TaskId, Features>& features) const;

  int64_t steps_ = 0;
  std::map<Key, std::deque<Seen>> seen_{};
  std::map<Key, Features> fits_{};
  std::map<RankId, RankSeen> ranks_{};
  std::deque<Step> last_{};
  // For each step of `last_`: measured over fitted time.
  std::deque<double> ratios_{};
  std::deque<double> undisturbed_ratios_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_TORCH_TIMES_H_
