#include <utility>

#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

// Inputs of the norms of queries and keys are copies; values come out of the
// same product.
TEST(UnfusedMemory, NormsOfQueriesAndKeysKeepTheirInputs) {
  const auto kept = [](Framework framework, bool norms) {
    LayerSpec layer = Llama3Block();
    layer.attention.query_key_norms = norms;
    JobSpec job = JobOf({{layer}}, {.tp = 2});
    job.setup = SetupOf(framework);
    return StageCostModel(job)
        .Cost(StageOf(1), Sequences(1, 256), true)
        .activations;
  };
  for (const auto& [framework, bytes] : {std::pair(Framework::kMegatronCore, 2),
                                         std::pair(Framework::kPyTorch, 6)}) {
    EXPECT_EQ(kept(framework, true) - kept(framework, false),
              Bytes(int64_t{256} * (32 + 8) * 128 * bytes / 2));
  }
}

// With a mask, keys and values are repeated from 8 to 32 heads.
TEST(UnfusedMemory, AMaskRepeatsKeysAndValues) {
  const auto kept = [](AttentionKernel kernel) {
    JobSpec job = JobOf({{Llama3Block()}}, {});
    job.setup = SetupOf(Framework::kPyTorch);
    job.setup.attention = kernel;
    return StageCostModel(job)
        .Cost(StageOf(1), Sequences(1, 256), true)
        .activations;
  };
  EXPECT_EQ(kept(AttentionKernel::kMasked) - kept(AttentionKernel::kFused),
            Bytes(int64_t{256} * 2 * 2 * (32 - 8) * 128));
}

// Plain PyTorch keeps the activated gate of each visited expert, 8 and a shared
// one of 768 a token, and the results of the 8, 2048 wide.
TEST(UnfusedMemory, ExpertsOfPyTorchKeepActivatedGatesAndResults) {
  const auto kept = [](bool eager) {
    LayerSpec layer = MoeBlock();
    layer.attention.query_key_norms = false;
    JobSpec job = JobOf({{layer}}, {});
    job.setup = SetupOf(Framework::kPyTorch);
    job.setup.eager_pointwise = eager;
    return StageCostModel(job)
        .Cost(StageOf(1), Sequences(1, 256), true)
        .activations;
  };
  EXPECT_EQ(kept(true) - kept(false),
            Bytes(int64_t{256} * (2 * (9 * 768 + 8 * 2048) + 2 * 4 * 2048)));
}

}  // namespace
}  // namespace pipeloom::emulator
