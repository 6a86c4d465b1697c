// Kernels of attention that are not made for the device: conditions of the
// frameworks' code and closed forms.
#include "emulator/framework/score_kernels.h"

#include <gtest/gtest.h>

#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

WorkShape Known(int64_t sequences, int64_t length) {
  WorkShape shape = Sequences(sequences, length);
  shape.sequences = static_cast<double>(sequences);
  shape.longest = length;
  return shape;
}

// A Llama block has 32 heads.
TEST(ScoreKernels, AreFusedWhereMegatronsCodeHasAKernel) {
  struct Case {
    int32_t tp;
    int64_t sequences, length;
    bool fused;
  };
  TrainingSetup plain = SetupOf(Framework::kPyTorch);
  for (const Case& c : {Case{8, 1, 2048, true}, Case{16, 1, 2048, false},
                        Case{16, 2, 2048, true}, Case{16, 3, 2048, false},
                        Case{32, 4, 2048, true}, Case{32, 6, 2048, false},
                        Case{1, 1, 4096, true}, Case{1, 1, 8192, false},
                        Case{1, 1, 257, false}, Case{1, 1, 260, true}}) {
    const auto moved = [&](const TrainingSetup& setup) {
      return ScoreKernelsOf(Llama3Block(), Known(c.sequences, c.length),
                            {.tp = c.tp}, setup)
          .forward_bytes;
    };
    EXPECT_EQ(moved({}), c.fused ? 9 : 41)
        << c.tp << " " << c.sequences << " " << c.length;
    EXPECT_EQ(moved(plain), 9);
  }
}

TEST(ScoreKernels, WithoutMegatronsKernelCostTheirTrafficAndLaunches) {
  const auto cost = [](bool fits, double host_us) {
    LayerSpec block = Llama3Block();
    block.attention.heads = 8;
    JobSpec job = JobOf({{block, block}}, {.tp = 4});
    job.setup.attention = AttentionKernel::kUnfused;
    job.setup.host_per_kernel = Microseconds(host_us);
    WorkShape shape = Known(1, 4096);
    if (fits) shape.sequences = 0;  // Not known.
    return StageCostModel(job).Cost(StageOf(2), shape, true);
  };
  // Two layers of two heads.
  const double scores = 2.0 * 2 * 4096 * 4096;
  const double second_bytes = 3.35e12 * 0.8;
  const StageCost slow = cost(false, 0);
  const StageCost fast = cost(true, 0);
  EXPECT_NEAR(ToSeconds(slow.forward - fast.forward),
              32 * scores / second_bytes, 1e-8);
  EXPECT_NEAR(ToSeconds(slow.backward - fast.backward),
              42 * scores / second_bytes, 1e-8);
  EXPECT_EQ(slow.weight_grad, fast.weight_grad);
  EXPECT_EQ(slow.activations - fast.activations,
            Bytes(static_cast<int64_t>(2 * scores)));
  // A host so slow that it determines a pass: four and five kernels a layer.
  const double tick = 1e-3 * (2 * 4);
  EXPECT_NEAR(ToSeconds(cost(false, 1000).forward - cost(true, 1000).forward),
              tick, 0.02 * tick);
  EXPECT_NEAR(ToSeconds(cost(false, 1000).fused - cost(true, 1000).fused),
              1e-3 * (2 * 5), 0.02 * 1e-3 * (2 * 5));
}

// FlashAttention-2 has 0.295 of 989 TFLOP/s here and leaves half of the pairs
// out, and with a window nearly all.
TEST(AttentionKernels, AMaskAsATensorLeavesNoPairOut) {
  const auto forward = [](AttentionKernel kernel, int64_t window) {
    LayerSpec block = Llama3Block();
    block.attention.window = window;
    JobSpec job = JobOf({{block}}, {});
    job.cluster.device.fp8 = {1.979e15};
    job.setup.attention = kernel;
    return ToSeconds(
        StageCostModel(job).Cost(StageOf(1), Sequences(1, 4096), true).forward);
  };
  const double half =
      2.0 * 32 * 256 * 4096 * 4096 / 2 / (0.295 * 989e12) * (1 + 300 / 4096.0);
  EXPECT_NEAR(forward(AttentionKernel::kMasked, 0) -
                  forward(AttentionKernel::kFlash2, 0),
              half, 1e-6);
  EXPECT_NEAR(forward(AttentionKernel::kMasked, 512),
              forward(AttentionKernel::kMasked, 0), 1e-9);
  EXPECT_LT(forward(AttentionKernel::kFlash2, 512),
            forward(AttentionKernel::kFlash2, 0));
}

}  // namespace
}  // namespace pipeloom::emulator
