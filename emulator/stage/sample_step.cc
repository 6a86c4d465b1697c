#include "emulator/stage/sample_step.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"

namespace pipeloom::emulator {
namespace {

constexpr int kFactorBits = 20;

absl::Status CheckDeviation(const char* field, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("jitter.%s is %g; it must be in [0, 1]", field, value));
}

int64_t Times(int64_t time, int64_t factor) {
  // In two parts, so that long times do not overflow.
  const int64_t one = int64_t{1} << kFactorBits;
  return time / one * factor + time % one * factor / one;
}

}  // namespace

int64_t JitterFactor(double deviation, uint64_t seed, int32_t sample,
                     int64_t id) {
  Random random(seed ^ (static_cast<uint64_t>(sample) * 0x9e3779b97f4a7c15u) ^
                (static_cast<uint64_t>(id + 1) * 0xc2b2ae3d27d4eb4fu));
  const uint64_t draw = random.Next();
  int64_t sum = -131070;  // The mean of the sum of four 16-bit numbers.
  for (int k = 0; k < 4; ++k) {
    sum += static_cast<int64_t>((draw >> (16 * k)) & 0xffff);
  }
  // The standard deviation of the sum is 2^16 sqrt(4 / 12).
  constexpr int64_t kDeviation = 37837;
  const int64_t one = int64_t{1} << kFactorBits;
  const int64_t scale = std::llround(deviation * static_cast<double>(one));
  return std::max<int64_t>(0, one + scale * sum / kDeviation);
}

absl::StatusOr<SampledStep> SampleSteps(const ExecutionPlan& plan,
                                        const EmulateOptions& options,
                                        const Jitter& jitter,
                                        const std::stop_token& stop) {
  PIPELOOM_RETURN_IF_ERROR(CheckDeviation("compute", jitter.compute));
  PIPELOOM_RETURN_IF_ERROR(CheckDeviation("links", jitter.links));
  if (jitter.samples < 1 || jitter.samples > 1'000'000) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "jitter.samples is %d; it must be in [1, 1000000]", jitter.samples));
  }
  PIPELOOM_ASSIGN_OR_RETURN(const StepProgram program,
                            CompileStep(plan, options));
  const StepTimes times = TimesOf(program, plan, options);
  StepEngine engine(program, times);
  SampledStep result;
  result.samples.reserve(static_cast<size_t>(jitter.samples));
  for (int32_t sample = 0; sample < jitter.samples; ++sample) {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    if (jitter.compute > 0) {
      for (size_t slot = 0; slot < times.durations.size(); ++slot) {
        engine.durations()[slot] =
            Times(times.durations[slot],
                  JitterFactor(jitter.compute, jitter.seed, sample,
                               program.task_of_slot[slot].value()));
      }
    }
    if (jitter.links > 0) {
      for (size_t t = 0; t < times.transfers.size(); ++t) {
        const int64_t factor = JitterFactor(jitter.links, ~jitter.seed, sample,
                                            program.transfers[t].edge.value());
        engine.SetTransfer(
            static_cast<uint32_t>(t),
            {Times(times.transfers[t].occupancy, factor),
             Times(times.transfers[t].lag, factor), times.transfers[t].ahead});
      }
    }
    PIPELOOM_RETURN_IF_ERROR(engine.Run());
    result.samples.push_back(Nanoseconds(engine.finish()));
  }
  std::vector<Duration> sorted = result.samples;
  std::sort(sorted.begin(), sorted.end());
  Duration sum{};
  for (const Duration d : sorted) sum += d;
  const auto size = static_cast<int64_t>(sorted.size());
  const auto percentile = [&](int64_t percent) {
    return sorted[static_cast<size_t>((percent * size + 99) / 100 - 1)];
  };
  result.mean = sum / size;
  result.p50 = percentile(50);
  result.p90 = percentile(90);
  result.p99 = percentile(99);
  result.least = sorted.front();
  result.most = sorted.back();
  return result;
}

}  // namespace pipeloom::emulator
