#include "planner/sample_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/typical_work.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kMostSteps = 16;

}  // namespace

absl::StatusOr<std::vector<partition::PackedStep>> SampleSteps(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count) {
  JobSpec job = costs.job();
  job.parallel.dp = 1;
  const partition::LayerPricing pricing(job, costs);
  Partition whole;
  whole.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  struct Weighed {
    partition::PackedStep step{};
    Duration work{};
  };
  std::vector<Weighed> all;
  size_t full = 0;  // Microbatches of the first step.
  for (int64_t first = 0; first < sample.samples.size() &&
                          static_cast<int32_t>(all.size()) < kMostSteps;) {
    auto packed = partition::PackStep(job, sample, first);
    if (!packed.ok()) {
      if (!all.empty()) break;  // What is left is no work for the model.
      return absl::InvalidArgumentError(absl::StrFormat(
          "the sample of batches that a partition is chosen by: %s",
          packed.status().message()));
    }
    first += packed->num_samples;
    // A short last step stands for nothing.
    if (!all.empty() && packed->packed[0].size() < full) break;
    full = packed->packed[0].size();
    PIPELOOM_ASSIGN_OR_RETURN(
        const Microbatches microbatches,
        partition::SplitMicrobatches(job, *packed, /*replica=*/0, whole));
    Weighed weighed{.step = *std::move(packed)};
    for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
      weighed.work += pricing.AllPasses(sub.module, sub.shape);
    }
    all.push_back(std::move(weighed));
  }
  if (all.empty()) {
    return absl::InvalidArgumentError(
        "the sample of batches that a partition is chosen by is empty");
  }
  std::stable_sort(
      all.begin(), all.end(),
      [](const Weighed& a, const Weighed& b) { return a.work < b.work; });
  const size_t n = all.size();
  const size_t k = std::min(n, static_cast<size_t>(std::max(count, 1)));
  std::vector<partition::PackedStep> steps;
  // The middles of k equal parts.
  for (size_t i = 0; i < k; ++i) {
    steps.push_back(std::move(all[(2 * i + 1) * n / (2 * k)].step));
  }
  return steps;
}

absl::StatusOr<partition::PackedStep> PackFullStep(
    const JobSpec& job, const BatchMetadata& sample) {
  BatchMetadata repeated = sample;
  for (int doubled = 0;; ++doubled) {
    absl::StatusOr<partition::PackedStep> packed =
        partition::PackStep(job, repeated, 0);
    const auto wanted = static_cast<size_t>(job.training.microbatches);
    // The last replica is the first that is short.
    const bool full = packed.ok() && packed->packed.back().size() >= wanted;
    if (full || doubled == 12 || repeated.samples.size() == 0) return packed;
    const BatchMetadata once = repeated;
    for (const SampleMetadata& s : once.samples) repeated.samples.push_back(s);
  }
}

}  // namespace pipeloom::planner
