#include "emulator/stage/made_gradients.h"

#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

JobSpec PyTorchJob(const ParallelLayout& parallel) {
  JobSpec job =
      JobOf({{EmbeddingLayer(), Llama3Block(), Llama3Block(), LossHeadLayer()}},
            parallel);
  job.setup = SetupOf(Framework::kPyTorch);
  job.training.optimizer_sharding = OptimizerSharding::kNone;
  return job;
}

TEST(MadeGradients, AreThoseOfAllWeights) {
  JobSpec job = PyTorchJob({});
  const StageCostModel costs(job);
  EXPECT_EQ(costs.Cost(StageOf(4), Sequences(1, 256), true).made.held,
            costs.Memory(StageOf(4)).gradients);
  job.setup.framework = Framework::kMegatronCore;
  EXPECT_EQ(StageCostModel(job).Cost(StageOf(4), Sequences(1, 256), true).made,
            MadeGradients());
}

// The head's product makes the table's gradient first; that of the embedding is
// added to it at the end.
TEST(MadeGradients, OfASharedTableAreMadeByTheHead) {
  JobSpec job = PyTorchJob({});
  ModuleSpec& module = job.model.modules[ModuleId(0)];
  const LayerId head(3);
  const MadeGradients apart = GradientsMadeBy(module, head, {}, 2);
  module.layers[head].tied = true;
  const Bytes table(2 * module.layers[head].vocab * module.layers[head].hidden);
  const MadeGradients tied = GradientsMadeBy(module, head, {}, 2);
  EXPECT_EQ(tied.held, apart.held) << "the table, and a norm";
  const MadeGradients embedding = GradientsMadeBy(module, LayerId(0), {}, 2);
  EXPECT_LT(100 * embedding.held, table);
  EXPECT_EQ(embedding.scratch, 2 * table);
}

// DistributedDataParallel's buckets are as large as the gradients.
TEST(MadeGradients, BucketsOfReplicasAreHeldInAdditionToGradients) {
  const auto gradients = [](const ParallelLayout& parallel,
                            OptimizerSharding sharding, Framework framework) {
    JobSpec job = PyTorchJob(parallel);
    job.setup.framework = framework;
    job.training.optimizer_sharding = sharding;
    return StageCostModel(job).Memory(StageOf(4)).gradients;
  };
  const Bytes alone =
      gradients({}, OptimizerSharding::kNone, Framework::kPyTorch);
  EXPECT_EQ(gradients({.dp = 2}, OptimizerSharding::kNone, Framework::kPyTorch),
            2 * alone);
  EXPECT_EQ(
      gradients({.dp = 2}, OptimizerSharding::kZero1, Framework::kPyTorch),
      alone);
  EXPECT_EQ(
      gradients({.dp = 2}, OptimizerSharding::kNone, Framework::kMegatronCore),
      alone);
}

}  // namespace
}  // namespace pipeloom::emulator
