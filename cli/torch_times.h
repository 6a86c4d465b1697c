// What the torch device's tasks have taken, to predict the next step's time.
//
// The time of a task of one stage and pass is taken to be
//     a + b sequences + c tokens + d sum of squared sequence lengths
// with coefficients of at least 0, by least squares of relative errors over the
// last steps; the first step, which warms up, counts only as long as it is the
// only one. To it come, by rank, the medians of the epilogue and of what a rank
// spends on sends and copies, spread over its tasks. All of these are processor
// time. The emulator makes a step of them; the median ratio of measured steps
// to those that the emulator made of the very times of their tasks, what waking
// up and other processes cost, multiplies it.
#ifndef PIPELOOM_CLI_TORCH_TIMES_H_
#define PIPELOOM_CLI_TORCH_TIMES_H_

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
#include "ir/execution_plan.h"
#include "ir/step_trace.h"
#include "runtime/torch/torch_trainer.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::cli {

class TorchTimes {
 public:
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
  using Key = std::pair<StageId, Pass>;

  static Features Of(const runtime::TorchWork& work, const Task& task);
  static Features Fit(const std::deque<Seen>& seen);

  int64_t steps_ = 0;
  std::map<Key, std::deque<Seen>> seen_{};
  std::map<Key, Features> fits_{};
  std::map<RankId, RankSeen> ranks_{};
  std::deque<double> ratios_{};  // Measured over undisturbed, by step.
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TORCH_TIMES_H_
