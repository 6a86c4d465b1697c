// Times of a model's modules as pipeloom.capture has measured them, each module
// alone on one GPU, in JSON:
//
//   {"captured_times": [
//     {"module": "vision", "layers": 26, "device": "NVIDIA H100 80GB HBM3",
//      "runs": [{"tokens": 1024, "instances": 4, "output_tokens": 256,
//                "forward_us": 812.5, "backward_us": 1650.0}]}]}
#ifndef PIPELOOM_TRACE_CAPTURED_TIMES_H_
#define PIPELOOM_TRACE_CAPTURED_TIMES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "emulator/calibration/cost_learner.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/job_spec.h"

namespace pipeloom::trace {

// A forward and a backward, with both gradients, of all layers of a module.
struct CapturedRun {
  int64_t tokens = 0;
  int64_t instances = 0;
  int64_t output_tokens = 0;
  double forward_us = 0;
  double backward_us = 0;
};

struct CapturedModule {
  std::string name{};
  int64_t layers = 0;
  std::string device{};  // As torch names it.
  std::vector<CapturedRun> runs{};
};

// Returns whether a text is such a file rather than a trace.
bool IsCapturedTimes(absl::string_view text);
// InvalidArgument: "FILE:LINE: ..." with the mistake.
absl::StatusOr<std::vector<CapturedModule>> ParseCapturedTimes(
    absl::string_view text, absl::string_view file);

// Learns the ratios of measured to priced time of each module's forwards and
// backwards: the sum over its runs, each priced on one GPU with all weights
// trained, sequences of equal length and no gradient of the module's input.
// InvalidArgument: the job's model has no such module or another number of its
// layers; or a ratio is outside [1 / kMaxCorrection, kMaxCorrection], so that
// the times are those of another device.
absl::StatusOr<emulator::CostLearner> LearnFromCapture(
    const std::vector<CapturedModule>& captured, const JobSpec& job,
    std::unique_ptr<const emulator::OpCostModel> operators);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_CAPTURED_TIMES_H_
