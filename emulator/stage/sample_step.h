// A step under jitter: one plan emulated many times with random durations.
#ifndef PIPELOOM_EMULATOR_STAGE_SAMPLE_STEP_H_
#define PIPELOOM_EMULATOR_STAGE_SAMPLE_STEP_H_

#include <cstdint>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::emulator {

// Jitter of durations. Every duration is multiplied by 1 + s z, at least 0,
// with z bell-shaped, of mean 0 and standard deviation 1, within +-3.5 (the sum
// of four uniform numbers). A draw depends only on seed, sample and the id of
// the task or edge: not on order, ranks or other draws.
struct Jitter {
  double compute = 0;  // s of task durations, in [0, 1].
  double links = 0;    // s of occupancies and of the delays after them.
  uint64_t seed = 1;
  int32_t samples = 100;  // In [1, 1'000'000].
};

// Statistics of step times; a percentile is the smallest sample that so many
// percent of the samples do not exceed.
struct SampledStep {
  Duration mean{};
  Duration p50{};
  Duration p90{};
  Duration p99{};
  Duration least{};
  Duration most{};
  std::vector<Duration> samples{};  // In the order in which they were drawn.
};

// Returns the factor of one draw, in units of 2^-20. For tests.
int64_t JitterFactor(double deviation, uint64_t seed, int32_t sample,
                     int64_t id);

// Samples the step times of a plan, which is compiled once. InvalidArgument
// names a field out of range; other errors are those of EmulateStep. O(samples
// * instructions). Cancelled: a stop was requested.
absl::StatusOr<SampledStep> SampleSteps(const ExecutionPlan& plan,
                                        const EmulateOptions& options,
                                        const Jitter& jitter,
                                        const std::stop_token& stop = {});

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_SAMPLE_STEP_H_
