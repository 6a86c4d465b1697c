#include "studies/job/launch_times.h"

#include <memory>
#include <set>

#include "absl/strings/str_format.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/partition.h"

namespace pipeloom::studies {
namespace {

// Returns the cost model of the job with a host that takes this long.
std::unique_ptr<const emulator::StageCostModel> ModelWith(
    JobSpec job, const emulator::OpCostModel* costs, Duration per_kernel) {
  job.setup.host_per_kernel = per_kernel;
  return std::make_unique<emulator::StageCostModel>(
      job, costs == nullptr ? nullptr
                            : emulator::OpCostsForLayout(*costs, job.parallel));
}

}  // namespace

std::vector<LaunchTimes> LaunchTimesOf(const JobSpec& job,
                                       const Microbatches& microbatches,
                                       const emulator::OpCostModel* costs,
                                       Duration per_kernel) {
  const auto free = ModelWith(job, costs, kZero);
  const auto hosted = ModelWith(job, costs, per_kernel);
  std::vector<LaunchTimes> times;
  for (const ModuleId m : job.model.modules.ids()) {
    LaunchTimes sum{.module = job.model.modules[m].name};
    const Stage whole{.module = m,
                      .first_layer = LayerId(0),
                      .num_layers = job.model.modules[m].layers.size(),
                      .rank = RankId(0),
                      .segment = SegmentId(0)};
    for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
      if (sub.module != m) continue;
      sum.on_gpu += free->Cost(whole, sub.shape, false).forward;
      sum.with_launches += hosted->Cost(whole, sub.shape, false).forward;
    }
    if (sum.on_gpu > kZero) times.push_back(sum);
  }
  return times;
}

std::vector<std::string> LaunchNotes(const JobSpec& job,
                                     const Microbatches& microbatches,
                                     const emulator::OpCostModel* costs) {
  std::vector<std::string> notes;
  if (job.setup.host_per_kernel > kZero) return notes;
  const std::vector<LaunchTimes> times =
      LaunchTimesOf(job, microbatches, costs, kUsualLaunch);
  Duration all{};
  for (const LaunchTimes& t : times) all += t.on_gpu;
  for (const LaunchTimes& t : times) {
    const double longer = ToSeconds(t.with_launches - t.on_gpu);
    if (longer < 0.1 * ToSeconds(t.on_gpu) || longer < 0.05 * ToSeconds(all)) {
      continue;
    }
    notes.push_back(absl::StrFormat(
        "passes of %s are so short that launching their kernels counts: with "
        "%.0f us a kernel they take %.1f times as long as planned. Set "
        "setup.host_per_kernel_us to what your host takes, or "
        "setup.graphs if CUDA graphs launch them",
        t.module, ToMicroseconds(kUsualLaunch),
        ToSeconds(t.with_launches) / ToSeconds(t.on_gpu)));
  }
  return notes;
}

std::vector<std::string> GraphNotes(const JobSpec& job,
                                    const Microbatches& microbatches) {
  std::vector<std::string> notes;
  if (job.setup.graphs == CudaGraphs::kNone) return notes;
  bool differ = false;
  for (const ModuleId m : job.model.modules.ids()) {
    std::set<int64_t> tokens;
    for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
      if (sub.module == m) tokens.insert(sub.shape.tokens);
    }
    differ |= tokens.size() > 1;
    if (tokens.size() <= 1 || !job.BucketsOf(m).empty()) continue;
    notes.push_back(absl::StrFormat(
        "%s has %d shapes in this step, but a CUDA graph has one: pad them to "
        "a "
        "few by training.shape_buckets (whatif --ask graphs chooses them), or "
        "leave setup.graphs out",
        job.model.modules[m].name, tokens.size()));
  }
  if (differ && job.setup.graphs == CudaGraphs::kIteration) {
    notes.push_back(
        "setup.graphs is a graph of the whole step, which cannot follow plans "
        "that differ from step to step: CUDA_GRAPHS_LAYERS can");
  }
  return notes;
}

}  // namespace pipeloom::studies
