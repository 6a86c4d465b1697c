// What the torch device's tasks have taken, to predict the next step's time.
//
// The time of a task of one stage and pass is taken to be
//     a + b sequences + c tokens + d sum of squared sequence lengths
// with coefficients of at least 0, by least squares of relative errors over the
// last steps; the first step, which warms up, counts only as long as it is the
// only one. To it come, by rank, the median time of the epilogue, and what a
// rank spends between its tasks without waiting (sends, copies), spread over
// its tasks. The step is the emulator's of that plan.
#ifndef PIPELOOM_CLI_TORCH_TIMES_H_
#define PIPELOOM_CLI_TORCH_TIMES_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/execution_plan.h"
#include "ir/step_trace.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::cli {

class TorchTimes {
 public:
  void Learn(const ExecutionPlan& plan, const runtime::TorchWork& work,
             const StepTrace& trace);
  // Nothing before something has been learned of all that the plan needs.
  absl::StatusOr<std::optional<Duration>> Predict(
      const ExecutionPlan& plan, const runtime::TorchWork& work) const;

 private:
  static constexpr size_t kFeatures = 4;
  static constexpr size_t kRemembered = 400;  // Tasks of a stage and pass.
  static constexpr size_t kSteps = 9;         // Of what is known by rank.
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
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TORCH_TIMES_H_
