#include "studies/bench/random_problems.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/random.h"

namespace pipeloom::studies {
namespace {

constexpr int32_t kMostProblems = 10'000;
constexpr int32_t kMostTasks = 3000;

double Uniform(Random& random, double low, double high) {
  return low + (high - low) * random.Unit();
}

// Returns whole microseconds, as suites have them.
Duration Time(double milliseconds) {
  return Microseconds(std::max(1.0, std::round(1000 * milliseconds)));
}

// Returns factors on the work of microbatches; none if all are equal.
std::vector<double> Scale(Random& random, int32_t microbatches) {
  const int64_t kind = random.Below(10);
  std::vector<double> scale;
  if (kind < 4) return scale;
  for (int32_t m = 0; m < microbatches; ++m) {
    const double factor = kind < 7   ? Uniform(random, 0.7, 1.3)
                          : kind < 9 ? std::exp(Uniform(random, -2.3, 1.1))
                                     : Uniform(random, 0.3, 1);
    scale.push_back(std::round(100 * factor) / 100);
  }
  if (kind == 9) {
    scale[random.Below(microbatches)] = std::round(Uniform(random, 4, 10));
  }
  return scale;
}

}  // namespace

formats::SuiteProblem RandomProblem(ProblemSet set, int32_t index) {
  const bool is_test = set == ProblemSet::kTest;
  Random random((is_test ? uint64_t{0x7e57} : uint64_t{0x7a1}) << 32 |
                static_cast<uint64_t>(index));
  formats::PipelineProblem pipeline;
  constexpr int32_t kRanks[] = {2, 4, 4, 6, 8, 8, 12, 16};
  pipeline.ranks = kRanks[random.Below(8)];
  pipeline.split_backward = random.Below(5) < 3;
  const int64_t mix = random.Below(10);
  const int32_t modules = mix < 5 ? 1 : mix < 9 ? 2 : 3;
  int32_t stages = 0;
  double activations = 0;  // Bytes of a microbatch on a rank.
  for (int32_t i = 0; i < modules; ++i) {
    formats::PipelineModule module;
    module.name = absl::StrCat("module", i);
    module.chunks =
        static_cast<int32_t>(1 + random.Below(modules == 1 ? 4 : 2));
    module.vee = module.chunks > 1 && random.Below(2) == 0;
    const double forward = Uniform(random, 0.5, 2);
    module.forward = Time(forward);
    module.backward = Time(forward * Uniform(random, 0.9, 1.6));
    module.weight_grad = Time(forward * Uniform(random, 0.6, 1.1));
    module.activation = Bytes(random.Between(500, 2000));
    stages += module.chunks;
    activations += static_cast<double>(module.chunks) *
                   static_cast<double>(module.activation.count());
    pipeline.modules.push_back(std::move(module));
  }
  const int32_t passes = pipeline.split_backward ? 3 : 2;
  const int32_t most =
      std::max(4, kMostTasks / (passes * stages * pipeline.ranks));
  pipeline.microbatches =
      std::min(most, static_cast<int32_t>(random.Between(
                         std::max(2, pipeline.ranks / 2), 3 * pipeline.ranks)));
  for (formats::PipelineModule& module : pipeline.modules) {
    module.scale = Scale(random, pipeline.microbatches);
  }
  if (random.Below(4) != 0) {
    const double microbatches = Uniform(random, 1.5, pipeline.ranks + 1.0);
    pipeline.memory_limit =
        Bytes(static_cast<int64_t>(activations * microbatches));
  }
  if (random.Below(5) < 2) pipeline.delay = Time(Uniform(random, 0.005, 0.1));
  formats::SuiteProblem problem;
  const absl::string_view name = is_test ? "test" : "train";
  problem.name = absl::StrFormat("%s-%d", name, index);
  problem.family = absl::StrCat("random ", name);
  problem.pipeline = std::move(pipeline);
  return problem;
}

absl::StatusOr<std::vector<formats::SuiteProblem>> RandomProblems(
    absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  int32_t count = 0;
  if ((parts.first != "train" && parts.first != "test") ||
      !absl::SimpleAtoi(parts.second, &count) || count < 1 ||
      count > kMostProblems) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no set of random problems; it must be "
                     "train:N or test:N with N from 1 to ",
                     kMostProblems));
  }
  std::vector<formats::SuiteProblem> problems;
  for (int32_t i = 0; i < count; ++i) {
    problems.push_back(RandomProblem(
        parts.first == "test" ? ProblemSet::kTest : ProblemSet::kTrain, i));
  }
  return problems;
}

}  // namespace pipeloom::studies
