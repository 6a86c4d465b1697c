// What the torch device's tasks have taken, to predict the next step's time.
//
// The time of a task of one stage and pass is taken to be
//     a + b sequences + c tokens + d sum of squared sequence lengths
// with coefficients of at least 0, by least squares of relative errors over the
// last steps; the first step, which warms up, counts only as long as it is the
// only one. To it come, by rank, the medians of the epilogue and of what a rank
// spends on sends and copies, spread over its tasks. All of these are processor
// time. The emulator makes a step of them. What the last steps took over what
// the same fits make of them multiplies it, the latest step counting most: it
// is what waking up, other processes and the machine's changing speed cost, and
// that a step waits for whichever task happens to be late.
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
  static constexpr int64_t kWarmUpSteps = 1;  // Not learned from later on.
  struct Prediction {
    Duration step{};
    Duration undisturbed{};  // Were each rank alone on its core.
  };
  // `spent` of all ranks. Returns what the step would have taken undisturbed.
  absl::StatusOr<Duration> Learn(const ExecutionPlan& plan,
                                 const runtime::TorchWork& work,
                                 const runtime::TorchSpent& spent,
                                 const StepTrace& trace);
  // Nothing before something has been learned of all that the plan needs.
  absl::StatusOr<std::optional<Prediction>> Predict(
      const ExecutionPlan& plan, const runtime::TorchWork& work) const;

 private:
  static constexpr size_t kFeatures = 4;
  static constexpr size_t kRemembered = 400;  // Tasks of a stage and pass.
  static constexpr size_t kSteps = 9;         // Of what is known by step.
  using Features = std::array<double, kFeatures>;
  struct Seen {
    Features features{};
    double seconds = 0;
  };
  struct RankSeen {
    std::deque<double> epilogue{};  // Seconds, by step.
    std::deque<double> between{};   // Seconds a task, by step.
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
  // The emulator's step of the fits; nothing: a stage was not seen yet.
  absl::StatusOr<std::optional<Duration>> Fitted(
      const ExecutionPlan& plan,
      const IdVector<TaskId, Features>& features) const;

  int64_t steps_ = 0;
  std::map<Key, std::deque<Seen>> seen_{};
  std::map<Key, Features> fits_{};
  std::map<RankId, RankSeen> ranks_{};
  std::deque<Step> last_{};
  // Of `last_`: what they took over what the fits make of them.
  std::deque<double> ratios_{};
  std::deque<double> undisturbed_ratios_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_TORCH_TIMES_H_
