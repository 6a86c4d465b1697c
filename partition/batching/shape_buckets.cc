#include "partition/batching/shape_buckets.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace pipeloom::partition {
namespace {

constexpr int64_t kTokensAGpu = 64;
constexpr size_t kMostSizes = 1024;

// Returns the tokens of the copy of the module that has most.
int64_t TokensOfCopy(const WorkShape& shape, int32_t copies) {
  if (copies <= 1) return shape.tokens;
  return LargestShare(shape, copies).tokens;
}

// Returns the attention of so much padding.
double SquaredPadding(const WorkShape& shape, int64_t padding) {
  const int64_t length =
      shape.longest > 0 ? std::min(shape.longest, padding) : padding;
  return static_cast<double>(padding) * static_cast<double>(length);
}

void Pad(int64_t bucket, int32_t copies, SubMicrobatch* sub) {
  WorkShape& shape = sub->shape;
  const int64_t own = TokensOfCopy(shape, copies);
  const int64_t total = copies > 1 ? bucket * copies : bucket;
  const int64_t padding = total - shape.tokens;
  sub->bucket = bucket;
  if (total > shape.tokens) sub->unpadded = shape;
  if (copies > 1) {
    shape.share_squared = LargestShare(shape, copies).squared_tokens +
                          SquaredPadding(shape, bucket - own);
    shape.share_tokens = bucket;
  }
  if (padding == 0) return;
  const double squared = SquaredPadding(shape, padding);
  shape.squared_tokens += squared;
  if (shape.sequences > 0 && squared > 0) {
    const double length = squared / static_cast<double>(padding);
    shape.sequences += static_cast<double>(padding) / length;
  }
  shape.tokens = total;
}

// Sizes of sub-microbatches, ascending, with how many have each.
using Sizes = std::vector<std::pair<int64_t, int64_t>>;

// Returns the sizes rounded up to a multiple, so that at most kMostSizes
// differ.
Sizes RoundedUp(const std::vector<int64_t>& sizes, int64_t multiple) {
  while (true) {
    std::map<int64_t, int64_t> counts;
    for (const int64_t size : sizes) {
      ++counts[(size + multiple - 1) / multiple * multiple];
    }
    if (counts.size() <= kMostSizes) return {counts.begin(), counts.end()};
    multiple *= 2;
  }
}

// Returns the buckets with the least padding; the largest size is one of them.
std::vector<int64_t> LeastPadding(const Sizes& sizes, int32_t count) {
  const size_t n = sizes.size();
  const auto buckets = std::min(n, static_cast<size_t>(count));
  // Padding of sizes [i, j] to size j is size_j x (their number) - their sum.
  std::vector<double> number(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    number[i + 1] = number[i] + static_cast<double>(sizes[i].second);
  }
  const auto padded = [&](size_t i, size_t j) {
    return static_cast<double>(sizes[j].first) * (number[j + 1] - number[i]);
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // best[b][j]: fewest padded tokens of the first j sizes in b buckets.
  std::vector<std::vector<double>> best(buckets + 1,
                                        std::vector<double>(n + 1, kNever));
  std::vector<std::vector<size_t>> from(buckets + 1,
                                        std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t b = 1; b <= buckets; ++b) {
    for (size_t j = 1; j <= n; ++j) {
      for (size_t i = b - 1; i < j; ++i) {
        const double tokens = best[b - 1][i] + padded(i, j - 1);
        if (tokens < best[b][j]) {
          best[b][j] = tokens;
          from[b][j] = i;
        }
      }
    }
  }
  std::vector<int64_t> result;
  size_t end = n;
  for (size_t b = buckets; b > 0; --b) {
    result.push_back(sizes[end - 1].first);
    end = from[b][end];
  }
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace

void PadToBuckets(const JobSpec& job, Microbatches* microbatches) {
  if (job.training.shape_buckets.empty()) return;
  for (SubMicrobatch& sub : microbatches->sub_microbatches) {
    const absl::Span<const int64_t> buckets = job.BucketsOf(sub.module);
    if (buckets.empty()) continue;
    const int32_t copies = job.CopiesOf(sub.module);
    const auto fits = std::lower_bound(buckets.begin(), buckets.end(),
                                       TokensOfCopy(sub.shape, copies));
    if (fits == buckets.end()) {
      sub.shape.host_launched = true;
    } else {
      Pad(*fits, copies, &sub);
    }
  }
}

std::vector<TrainingSpec::ShapeBuckets> ChooseShapeBuckets(
    const JobSpec& job, absl::Span<const Microbatches> steps, int32_t count) {
  IdVector<ModuleId, std::vector<int64_t>> sizes(job.model.modules.size());
  for (const Microbatches& step : steps) {
    for (const SubMicrobatch& sub : step.sub_microbatches) {
      sizes[sub.module].push_back(
          TokensOfCopy(sub.shape, job.CopiesOf(sub.module)));
    }
  }
  std::vector<TrainingSpec::ShapeBuckets> result;
  for (const ModuleId m : job.model.modules.ids()) {
    if (sizes[m].empty()) continue;
    const ParallelLayout layout = job.LayoutOf(m);
    const int64_t multiple = kTokensAGpu * layout.tp * layout.cp;
    result.push_back(
        {.module = job.model.modules[m].name,
         .tokens = LeastPadding(RoundedUp(sizes[m], multiple), count)});
  }
  return result;
}

std::vector<PaddedShape> PaddedShapesOf(const JobSpec& job,
                                        const Microbatches& microbatches,
                                        const StageGraph& graph) {
  if (job.training.shape_buckets.empty()) return {};
  using Key = std::tuple<ModuleId, MicrobatchId, int32_t>;
  std::map<Key, PaddedShape> shapes;
  for (const Task& task : graph.tasks()) {
    if (job.BucketsOf(task.module).empty()) continue;
    shapes[{task.module, task.microbatch, task.sub_microbatch}] = {
        .module = task.module,
        .microbatch = task.microbatch,
        .sub_microbatch = task.sub_microbatch};
  }
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    const auto found = shapes.find({sub.module, sub.microbatch, sub.index});
    if (found == shapes.end()) continue;
    found->second.tokens = sub.data().tokens;
    found->second.bucket = sub.bucket;
  }
  std::vector<PaddedShape> result;
  for (const auto& [key, shape] : shapes) result.push_back(shape);
  return result;
}

}  // namespace pipeloom::partition
