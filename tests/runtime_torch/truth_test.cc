// Training with a pipeline gives what training without one gives: gradients and
// weights after three steps of changing batches and plans. Ranks are threads;
// torch_rank_program.cc does the same with processes. With
// PIPELOOM_TORCH_ON=cuda in the environment the pipeline trains on a GPU, the
// one process on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "ir/plan/pass_pairs.h"
#include "runtime/inproc_transport.h"
#include "runtime/launch.h"
#include "runtime/torch/torch_trainer.h"
#include "tests/runtime_torch/pair_neighbours.h"
#include "tests/runtime_torch/serial_training.h"
#include "tests/runtime_torch/training_case.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 3;

void ExpectSame(const TorchValues& mine, const TorchValues& reference,
                double bound, const char* what) {
  ASSERT_EQ(mine.size(), reference.size()) << what;
  for (const auto& [name, values] : reference) {
    const auto found = mine.find(name);
    ASSERT_NE(found, mine.end()) << what << " " << name;
    EXPECT_LE(Distance(found->second, values), bound) << what << " " << name;
  }
}

struct Bounds {
  double loss = 0;
  double gradient = 0;
  double weight = 0;
};

// In fp64 all cases keep one bound, far below the 1e-5 that is asked for. In
// fp32 sub-microbatches, which sum in another order than the whole batch, keep
// it for gradients; AdamW's first steps, about the sign of a gradient, make
// rounding visible in weights whose gradients are near 0. A GPU sums in an
// order of its own.
bool OnGpu() {
  const char* place = std::getenv("PIPELOOM_TORCH_ON");
  return place != nullptr && std::string(place) == "cuda";
}

Bounds BoundsOf(const TrainingCase& c, TorchPrecision precision) {
  if (precision == TorchPrecision::kFp64) return {1e-12, 1e-9, 1e-9};
  if (OnGpu()) return {1e-5, 1e-4, 1e-3};
  return {1e-6, 1e-5, c.sub_instances > 0 ? 1e-3 : 1e-5};
}

class TorchTruth : public ::testing::TestWithParam<
                       std::tuple<TrainingCase, TorchPrecision>> {};

TEST_P(TorchTruth, PipelineTrainsAsOneProcessDoes) {
  const auto& [c, precision] = GetParam();
  const Bounds bounds = BoundsOf(c, precision);
  ASSERT_OK_AND_ASSIGN(const auto run, CaseRun::Make(c));
  TorchSetup setup = run->Setup(precision);
  SerialTraining serial(setup);
  setup.options.cuda = OnGpu();
  ASSERT_OK_AND_ASSIGN(const auto trainer, MakeTorchTrainer(setup));
  ExpectSame(trainer->Weights(), serial.Weights(), 0, "initial weights");

  const RunParts parts{.make_transport =
                           [](const ExecutionPlan& p, const RunOptions&) {
                             return std::make_unique<InprocTransport>(
                                 p.graph.num_ranks(), 1);
                           },
                       .make_device =
                           [&](const DeviceContext& context) {
                             return trainer->MakeDevice(context);
                           }};
  RunOptions options;
  options.whole_tensors = true;
  options.timeout = std::chrono::minutes(5);
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    ASSERT_OK_AND_ASSIGN(TrainingStep now, run->Next());
    if (step % 2 == 1) {  // With forwards and backwards that run together.
      Random random(static_cast<uint64_t>(step));
      ASSERT_OK_AND_ASSIGN(now.plan, testing::PairNeighbours(now.plan, random));
      EXPECT_THAT(ValidateExecutionPlan(now.plan), IsOk());
      if (c.pp > 1 && c.schedule == "1f1b" &&
          c.memory != StepMemory::kHostCopies) {
        EXPECT_FALSE(SecondsOfPairs(now.plan.graph).empty());
      }
    }
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         trainer->BeginStep(now.plan, now.work, now.memory));
    const auto trace = RunPlanWith(plan, options, parts);
    ASSERT_THAT(trace, IsOk());
    const double loss = serial.Step(now.work);
    EXPECT_NEAR(trainer->Loss() / loss, 1, bounds.loss);
    ExpectSame(trainer->Gradients(), serial.Gradients(), bounds.gradient,
               "gradient");
    ExpectSame(trainer->Weights(), serial.Weights(), bounds.weight, "weight");
    // From there on, so that the next gradients are of equal weights.
    if (bounds.weight > bounds.gradient) serial.SetWeights(trainer->Weights());
    if (c.schedule == "zb-v") {
      EXPECT_TRUE(std::any_of(
          plan.graph.tasks().begin(), plan.graph.tasks().end(),
          [](const Task& t) { return t.pass == Pass::kWeightGrad; }));
    }
    if (c.memory == StepMemory::kHostCopies) {
      const std::vector<Instruction>& first = plan.programs[RankId(0)];
      EXPECT_TRUE(
          std::any_of(first.begin(), first.end(), [](const Instruction& i) {
            return std::holds_alternative<Offload>(i);
          }));
    }
  }
}

// All in fp64; in fp32, which is what trains, one of each kind.
std::vector<std::tuple<TrainingCase, TorchPrecision>> Params() {
  std::vector<std::tuple<TrainingCase, TorchPrecision>> params;
  for (const TrainingCase& c : TrainingCases()) {
    params.emplace_back(c, TorchPrecision::kFp64);
    const bool plain = !c.video && !c.uneven && c.pp > 1 &&
                       c.memory != StepMemory::kMixed &&
                       c.memory != StepMemory::kHostCopies;
    if (plain) params.emplace_back(c, TorchPrecision::kFp32);
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(
    All, TorchTruth, ::testing::ValuesIn(Params()), [](const auto& test) {
      return std::get<0>(test.param).name +
             (std::get<1>(test.param) == TorchPrecision::kFp64 ? "_fp64" : "");
    });

TEST(TorchModel, LayersThatItLacksAreNamed) {
  JobSpec job = JobOf({});
  job.model.modules[ModuleId(0)].layers[LayerId(2)].ffn = {
      .experts = 4, .experts_per_token = 2, .expert_hidden = 8};
  EXPECT_THAT(CheckTorchModel(job.model),
              pipeloom::testing::FailsWith(absl::StatusCode::kUnimplemented,
                                           HasSubstr("experts")));
}

// The scaled model of these layers is no model: rope_dim stays, head_dim does
// not.
TEST(TorchModel, LayersThatItLacksAreNamedBeforeTheModelIsScaled) {
  JobSpec job = JobOf({});
  EXPECT_THAT(CheckTorchLayers(job.model), IsOk());
  AttentionSpec& attention =
      job.model.modules[ModuleId(0)].layers[LayerId(2)].attention;
  attention.kv_rank = 512;
  attention.head_dim = 192;
  attention.rope_dim = 64;
  const auto names_it = pipeloom::testing::FailsWith(
      absl::StatusCode::kUnimplemented, HasSubstr("low-rank attention"));
  EXPECT_THAT(CheckTorchLayers(job.model), names_it);
  EXPECT_THAT(CheckTorchModel(ScaleModel(job.model, 64, 1)), names_it);
}

}  // namespace
}  // namespace pipeloom::runtime
