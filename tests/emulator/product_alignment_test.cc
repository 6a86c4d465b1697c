// Products of widths that are no multiple of 8 against measured ones.
#include "emulator/framework/product_alignment.h"

#include <gtest/gtest.h>

#include "base/numeric.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

DeviceSpec H200() {
  DeviceSpec device = H800Cluster().device;
  device.bf16 = {989e12};
  device.fp8 = {1979e12};
  return device;
}

// A weight of `n` outputs and `k` inputs.
GemmOp Product(double tokens, double n, double k, QueryPass pass) {
  GemmOp op{.m = tokens, .n = n, .k = k, .pass = pass};
  if (pass == QueryPass::kInputGrad) {
    op.n = k;
    op.k = n;
  } else if (pass == QueryPass::kWeightGrad) {
    op.m = n;
    op.n = k;
    op.k = tokens;
  }
  return op;
}

// Microseconds of workloads/measured/h200-sxm/unaligned.csv.
TEST(ProductAlignment, UnalignedWidthsTakeAsLongAsMeasuredOnAnH200) {
  struct Point {
    double tokens, n, k;
    QueryPass pass;
    double us;
  };
  for (const Point& p :
       {Point{4096, 50257, 4096, QueryPass::kForward, 17130},
        Point{4096, 50257, 4096, QueryPass::kInputGrad, 12102},
        Point{4096, 50257, 4096, QueryPass::kWeightGrad, 11616},
        Point{4096, 151655, 2048, QueryPass::kForward, 26087},
        Point{4096, 151655, 2048, QueryPass::kInputGrad, 18261},
        Point{4096, 151655, 2048, QueryPass::kWeightGrad, 17595},
        Point{4096, 50258, 4096, QueryPass::kForward, 6017},
        Point{4096, 50258, 4096, QueryPass::kInputGrad, 6982},
        Point{4096, 50258, 4096, QueryPass::kWeightGrad, 6294}}) {
    const Duration time =
        UnalignedProductTime(Product(p.tokens, p.n, p.k, p.pass), H200());
    EXPECT_NEAR(ToSeconds(time) * 1e6, p.us, 0.15 * p.us)
        << p.n << " " << static_cast<int>(p.pass);
  }
}

TEST(ProductAlignment, TokensAndMultiplesOf8AreAligned) {
  for (const QueryPass pass :
       {QueryPass::kForward, QueryPass::kInputGrad, QueryPass::kWeightGrad}) {
    EXPECT_EQ(UnalignedProductTime(Product(4097, 50304, 4096, pass), H200()),
              kZero);
    EXPECT_GT(UnalignedProductTime(Product(4096, 3420, 1280, pass), H200()),
              kZero);
  }
  GemmOp fp8 = Product(4096, 50257, 4096, QueryPass::kForward);
  fp8.precision = Precision::kFp8;
  EXPECT_EQ(UnalignedProductTime(fp8, H200()), kZero);
}

// An A100 runs the same instructions: the share that is lost is smaller there.
TEST(ProductAlignment, OlderDevicesLoseLess) {
  DeviceSpec a100 = H200();
  a100.bf16 = {312e12};
  a100.fp8 = {};
  const GemmOp op = Product(4096, 50258, 4096, QueryPass::kForward);
  EXPECT_NEAR(ToSeconds(UnalignedProductTime(op, a100)) /
                  ToSeconds(UnalignedProductTime(op, H200())),
              989.0 / 2 / 312, 1e-6);
}

TEST(ProductAlignment, MegatronPadsTheVocabularyAndPyTorchDoesNot) {
  const auto forward = [](int64_t vocab, const TrainingSetup& setup) {
    LayerSpec head = LossHeadLayer();
    head.vocab = vocab;
    JobSpec job = JobOf({{head}}, {});
    job.setup = setup;
    job.cluster.device.fp8 = {1979e12};
    return ToSeconds(
        StageCostModel(job).Cost(StageOf(1), Sequences(1, 4096), true).forward);
  };
  const TrainingSetup pytorch = SetupOf(Framework::kPyTorch);
  EXPECT_GT(forward(50257, pytorch), 3 * forward(50304, pytorch));
  EXPECT_LE(forward(50257, {}), forward(50304, {}));
  TrainingSetup exact;
  exact.pads_vocabulary = false;
  EXPECT_GT(forward(50257, exact), 3 * forward(50304, exact));
}

}  // namespace
}  // namespace pipeloom::emulator
