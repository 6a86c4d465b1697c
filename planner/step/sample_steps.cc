#include "planner/step/sample_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/batching/epochs.h"
#include "partition/batching/typical_work.h"

namespace pipeloom::planner {
namespace {

constexpr int64_t kUsualSamples = 256;
// A sample with fewer steps is filled up with steps in other orders.
constexpr size_t kEnoughSteps = 8;
constexpr uint64_t kShuffleSeed = 0x5eed5;

// Makes one replica's steps and weighs them. Keeps a reference to the costs.
class Weigher {
 public:
  explicit Weigher(const emulator::StageCostModel& costs)
      : job_(OneReplica(costs.job())), pricing_(job_, costs) {
    whole_.sub_microbatch_instances.assign(job_.model.modules.size(), 0);
  }
  Weigher(const Weigher&) = delete;  // Pricing refers to the job.
  Weigher& operator=(const Weigher&) = delete;

  const JobSpec& job() const { return job_; }

  absl::StatusOr<WeighedStep> Weigh(partition::PackedStep step) const {
    PIPELOOM_ASSIGN_OR_RETURN(
        const Microbatches microbatches,
        partition::SplitUnpadded(job_, step, /*replica=*/0, whole_));
    WeighedStep weighed{.step = std::move(step)};
    std::vector<Bytes> full(static_cast<size_t>(microbatches.num_microbatches));
    for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
      weighed.work += pricing_.AllPasses(sub.module, sub.shape);
      full[static_cast<size_t>(sub.microbatch.value())] +=
          pricing_.Activations(sub.module, sub.shape);
    }
    for (const Bytes bytes : full) {
      weighed.fullest = std::max(weighed.fullest, bytes);
    }
    return weighed;
  }

 private:
  static JobSpec OneReplica(JobSpec job) {
    job.parallel.dp = 1;
    return job;
  }

  const JobSpec job_;
  const partition::LayerPricing pricing_;
  Partition whole_{};
};

absl::StatusOr<std::vector<WeighedStep>> StepsInOrder(
    const Weigher& weigher, const BatchMetadata& sample,
    size_t most = kMostSteps) {
  std::vector<WeighedStep> all;
  size_t full = 0;  // Number of microbatches of the steps before.
  for (int64_t first = 0; first < sample.samples.size() && all.size() < most &&
                          !AreEnough(all.size(), first);) {
    auto packed = partition::PackStep(weigher.job(), sample, first);
    if (!packed.ok()) {
      // The rest of the sample has no work for the model.
      if (!all.empty()) break;
      return absl::InvalidArgumentError(absl::StrFormat(
          "the sample of batches that a partition is chosen by: %s",
          packed.status().message()));
    }
    first += packed->num_samples;
    // A short last step is not representative.
    const size_t size = packed->packed[0].size();
    if (first >= sample.samples.size() && size < full) break;
    full = std::max(full, size);
    PIPELOOM_ASSIGN_OR_RETURN(WeighedStep weighed,
                              weigher.Weigh(*std::move(packed)));
    all.push_back(std::move(weighed));
  }
  if (all.empty()) {
    return absl::InvalidArgumentError(
        "the sample of batches that a partition is chosen by is empty");
  }
  return all;
}

void SortByWork(std::vector<WeighedStep>* steps) {
  std::stable_sort(steps->begin(), steps->end(),
                   [](const WeighedStep& a, const WeighedStep& b) {
                     return a.work < b.work;
                   });
}

Duration Distance(Duration a, Duration b) { return std::max(a - b, b - a); }

Duration MeanWork(const std::vector<WeighedStep>& pool, size_t first,
                  size_t end) {
  Duration sum{};
  for (size_t i = first; i < end; ++i) sum += pool[i].work;
  return sum / static_cast<int64_t>(end - first);
}

// Returns where each of `runs` runs of the sorted steps begins, for the least
// sum of distances from their runs' means. REQUIRES: 1 <= runs <= steps.
std::vector<size_t> EvenRuns(const std::vector<WeighedStep>& pool,
                             size_t runs) {
  const size_t n = pool.size();
  const auto spread = [&](size_t first, size_t end) {
    const Duration mean = MeanWork(pool, first, end);
    Duration sum{};
    for (size_t i = first; i < end; ++i) sum += Distance(pool[i].work, mean);
    return sum;
  };
  // Indexed by number of runs so far, then by number of steps in them.
  std::vector<std::vector<Duration>> least(runs + 1,
                                           std::vector<Duration>(n + 1));
  std::vector<std::vector<size_t>> begin(runs + 1,
                                         std::vector<size_t>(n + 1, 0));
  for (size_t end = 1; end <= n; ++end) least[1][end] = spread(0, end);
  for (size_t k = 2; k <= runs; ++k) {
    for (size_t end = k; end <= n; ++end) {
      for (size_t first = k - 1; first < end; ++first) {
        const Duration sum = least[k - 1][first] + spread(first, end);
        if (first > k - 1 && sum >= least[k][end]) continue;
        least[k][end] = sum;
        begin[k][end] = first;
      }
    }
  }
  std::vector<size_t> begins(runs);
  for (size_t k = runs, end = n; k > 0; --k) {
    end = begin[k][end];
    begins[k - 1] = end;
  }
  return begins;
}

// Doubles the sample until its first step is full on every replica.
BatchMetadata RepeatedUntilFull(const JobSpec& job,
                                const BatchMetadata& sample) {
  constexpr int kMostDoublings = 12;
  constexpr int64_t kMostSamples = 1'000'000;
  BatchMetadata repeated = sample;
  for (int doubled = 0; doubled < kMostDoublings; ++doubled) {
    const absl::StatusOr<partition::PackedStep> packed =
        partition::PackStep(job, repeated, 0);
    const auto wanted = static_cast<size_t>(job.training.microbatches);
    // The last replica is the first to run short.
    const bool full = packed.ok() && packed->packed.back().size() >= wanted;
    const int64_t size = repeated.samples.size();
    if (full || size == 0 || size > kMostSamples) break;
    const BatchMetadata once = repeated;
    for (const SampleMetadata& s : once.samples) repeated.samples.push_back(s);
  }
  return repeated;
}

}  // namespace

bool AreEnough(size_t steps, int64_t samples) {
  return steps >= kMostSteps ||
         (steps >= kUsualSteps && samples >= kUsualSamples);
}

absl::StatusOr<std::vector<partition::PackedStep>> SampleSteps(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count) {
  const Weigher weigher(costs);
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<WeighedStep> all,
                            StepsInOrder(weigher, sample));
  SortByWork(&all);
  const size_t n = all.size();
  const size_t k = std::min(n, static_cast<size_t>(std::max(count, 1)));
  std::vector<partition::PackedStep> steps;
  // Takes the middles of k equal parts.
  for (size_t i = 0; i < k; ++i) {
    steps.push_back(std::move(all[(2 * i + 1) * n / (2 * k)].step));
  }
  return steps;
}

absl::StatusOr<std::vector<WeighedStep>> StepPool(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    size_t most) {
  const Weigher weigher(costs);
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<WeighedStep> pool,
                            StepsInOrder(weigher, sample, most));
  if (pool.size() < 2 || pool.size() >= kEnoughSteps) return pool;
  PIPELOOM_ASSIGN_OR_RETURN(
      std::vector<partition::PackedStep> more,
      partition::PackShuffledSteps(
          weigher.job(), sample, kShuffleSeed,
          static_cast<int64_t>(kUsualSteps - pool.size())));
  for (partition::PackedStep& step : more) {
    PIPELOOM_ASSIGN_OR_RETURN(WeighedStep weighed,
                              weigher.Weigh(std::move(step)));
    pool.push_back(std::move(weighed));
  }
  return pool;
}

std::vector<WeighedStep> Stratify(std::vector<WeighedStep> pool,
                                  int32_t count) {
  SortByWork(&pool);
  if (static_cast<int64_t>(pool.size()) <= count) {
    std::reverse(pool.begin(), pool.end());
    return pool;
  }
  // Steps that stand for themselves.
  std::vector<WeighedStep> alone;
  if (count >= 2) {
    alone.push_back(std::move(pool.back()));
    pool.pop_back();
  }
  if (count >= 4) {
    const auto fullest = std::max_element(
        pool.begin(), pool.end(),
        [](const auto& a, const auto& b) { return a.fullest < b.fullest; });
    if (fullest->fullest > alone.front().fullest) {
      alone.push_back(std::move(*fullest));
      pool.erase(fullest);
    }
  }
  const size_t runs = static_cast<size_t>(count) - alone.size();
  std::vector<WeighedStep> strata;
  const std::vector<size_t> begins = EvenRuns(pool, runs);
  for (size_t i = 0; i < begins.size(); ++i) {
    const size_t first = begins[i];
    const size_t end = i + 1 < begins.size() ? begins[i + 1] : pool.size();
    const Duration mean = MeanWork(pool, first, end);
    size_t nearest = first;
    for (size_t at = first; at < end; ++at) {
      if (Distance(pool[at].work, mean) < Distance(pool[nearest].work, mean)) {
        nearest = at;
      }
    }
    strata.push_back(std::move(pool[nearest]));
    strata.back().weight = static_cast<int32_t>(end - first);
  }
  std::stable_sort(strata.begin(), strata.end(),
                   [](const WeighedStep& a, const WeighedStep& b) {
                     return a.work * a.weight > b.work * b.weight;
                   });
  for (WeighedStep& s : alone) strata.push_back(std::move(s));
  return strata;
}

MeanGain GainOf(const std::vector<WeighedStep>& steps,
                const std::vector<Duration>& before,
                const std::vector<Duration>& after) {
  MeanGain gain;
  double weights = 0;
  double sum = 0;
  double squares = 0;
  for (size_t s = 0; s < std::min(before.size(), after.size()); ++s) {
    if (before[s] == kZero || after[s] == kZero) continue;
    const double saved = ToSeconds(before[s]) - ToSeconds(after[s]);
    const double weight = steps[s].weight;
    weights += weight;
    sum += weight * saved;
    squares += weight * saved * saved;
    ++gain.steps;
  }
  if (gain.steps == 0) return gain;
  gain.mean = sum / weights;
  if (gain.steps == 1) return gain;
  const double variance =
      std::max(0.0, squares / weights - gain.mean * gain.mean);
  gain.error = std::sqrt(variance / (gain.steps - 1));
  return gain;
}

BatchMetadata FullSample(const JobSpec& job, const BatchMetadata& sample) {
  JobSpec one = job;
  one.parallel.dp = 1;
  return RepeatedUntilFull(one, sample);
}

absl::StatusOr<partition::PackedStep> PackFullStep(
    const JobSpec& job, const BatchMetadata& sample) {
  return partition::PackStep(job, RepeatedUntilFull(job, sample), 0);
}

}  // namespace pipeloom::planner
