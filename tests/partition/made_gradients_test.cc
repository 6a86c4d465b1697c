#include <algorithm>

#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "tests/support/small_job.h"

namespace pipeloom::partition {
namespace {

// Bytes on the GPU of a job on one pipeline rank.
struct Held {
  Bytes gradients{};  // Set aside all the step long.
  Bytes peak{};       // With the gradients.
};

// Runs the passes of the first step in turn: forwards, then backwards.
Held Hold(JobSpec job, int32_t microbatches, int64_t slice, bool recompute) {
  BatchMetadata batch;
  for (int i = 0; i < 4; ++i) {
    batch.samples.push_back({.text_tokens = 900, .images = {{224, 224}}});
  }
  job.training.microbatches = microbatches;
  job.training.sub_microbatch_sizes = {{"encoder", slice}};
  const emulator::StageCostModel costs(job);
  const auto partition = SeparatedPartition(job, costs, batch);
  const auto packed = PackStep(job, batch, 0);
  EXPECT_TRUE(partition.ok() && packed.ok());
  const auto split = SplitMicrobatches(job, *packed, 0, *partition);
  EXPECT_TRUE(split.ok());
  EXPECT_EQ(split->num_microbatches, microbatches);
  GraphOptions options;
  if (recompute) {
    IdVector<StageId, MemoryChoice> whole;
    for (const Stage& stage : partition->stages) {
      whole.push_back(RecomputeWhole(stage.num_layers));
    }
    options.memory = PolicyByStage(whole, *partition, *split);
  }
  const auto built = BuildStageGraph(costs, *partition, *split, options);
  EXPECT_TRUE(built.ok()) << built.status();
  Held held{.gradients = built->graph.rank(RankId(0)).memory.gradients};
  Bytes now;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const Task& task : built->graph.tasks()) {
      if (task.pass != pass) continue;
      held.peak = std::max(held.peak, held.gradients + now + task.alloc);
      now += task.alloc - task.free;
    }
  }
  EXPECT_EQ(now, Bytes(0));
  return held;
}

// Plain PyTorch frees gradients between steps: with one microbatch a backward
// makes them while it frees activations, so that the peak is less than the sum.
TEST(MadeGradients, OfOneMicrobatchTakeThePlaceOfActivations) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.pp = 1;
  job.training.optimizer_sharding = OptimizerSharding::kNone;
  JobSpec sharded = job;
  for (JobSpec* of : {&job, &sharded}) {
    of->setup = SetupOf(Framework::kPyTorch);
    of->setup.fp32_loss = false;
  }
  // Another framework with the same kernels holds gradients all the time.
  sharded.setup.framework = Framework::kTorchTitan;
  job.setup.eager_pointwise = sharded.setup.eager_pointwise = false;
  for (const bool recompute : {false, true}) {
    const Held made = Hold(job, 1, 100, recompute);
    const Held held = Hold(sharded, 1, 100, recompute);
    EXPECT_EQ(made.gradients, held.gradients);
    EXPECT_GE(made.peak, made.gradients) << "all are there at the end";
    EXPECT_LT(made.peak, held.peak);
    EXPECT_GE(made.peak, held.peak - held.gradients);
    // The second microbatch begins with the gradients of the first.
    EXPECT_EQ(Hold(job, 2, 100, recompute).peak,
              Hold(sharded, 2, 100, recompute).peak);
  }
  // A module in slices makes its gradients with whichever is the first.
  EXPECT_GT(Hold(job, 1, 1, false).peak, Hold(job, 1, 100, false).peak);
}

}  // namespace
}  // namespace pipeloom::partition
