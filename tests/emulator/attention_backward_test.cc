// The backward of attention: its model against closed forms, its fit against
// the constants that points were made with.
#include "emulator/cost/attention_backward.h"

#include <cmath>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace pipeloom::emulator {
namespace {

constexpr DeviceRates kRates = {.bf16_flops_per_second = 1e15,
                                .fp8_flops_per_second = 2e15,
                                .bytes_per_second = 1e13,
                                .multiprocessors = 100};
// Rate, fill, tail, overhead in microseconds.
constexpr BackwardConstants kMade = {0.6, 200, 0.7, 25};

AttentionShape Shape(double batch, double seq, double heads, double dim,
                     bool causal) {
  return {.batch = batch,
          .seq = seq,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = dim,
          .value_dim = dim,
          .causal = causal};
}

AttentionTable Table(bool causal) {
  return {.pass = QueryPass::kBackward,
          .dtype = QueryDtype::kBf16,
          .mask = causal ? QueryMask::kCausal : QueryMask::kFull};
}

void Add(AttentionTable* table, int64_t batch, int64_t seq, int64_t heads,
         int64_t dim, double us) {
  table->batch.push_back(batch);
  table->seq.push_back(seq);
  table->heads.push_back(heads);
  table->kv_heads.push_back(heads);
  table->head_dim.push_back(dim);
  table->us.push_back(us);
}

double MadeSeconds(const AttentionShape& shape) {
  return BackwardModelSeconds(kMade, kRates, shape);
}

TEST(AttentionBackward, ManyLongSequencesTakeFiveProductsAtTheRate) {
  const BackwardConstants bare = {0.6, 1e-9, 0.5, 1e-9};
  AttentionShape shape = Shape(64, 16384, 32, 128, false);
  shape.value_dim = 96;
  const double flops =
      2 * 64 * 32 * 16384.0 * 16384 * (3 * shape.head_dim + 2 * 128);
  EXPECT_NEAR(BackwardModelSeconds(bare, kRates, shape), flops / 0.6e15,
              1e-3 * flops / 0.6e15);
  shape.causal = true;
  const double half = flops / 2 * (1 + 128.0 / 16384);
  EXPECT_NEAR(BackwardModelSeconds(bare, kRates, shape), half / 0.6e15,
              1e-3 * half / 0.6e15);
}

// Measured on an H200 with cuDNN: 16 heads of 72, 80 and 128 take 9.7, 9.2 and
// 10.3 ms over 16,384 tokens, those of 64 6.0 ms.
TEST(AttentionBackward, HeadsBetweenTwoKernelsTakeTheWiderOne) {
  const BackwardConstants bare = {0.6, 1e-9, 0.5, 1e-9};
  const auto compute = [&](double dim) {
    return BackwardModelSeconds(bare, kRates, Shape(64, 8192, 32, dim, false));
  };
  EXPECT_NEAR(compute(112), compute(128), 1e-3 * compute(128));
  for (const double dim : {72.0, 80.0, 96.0}) {
    EXPECT_NEAR(compute(dim), compute(128), 0.02 * compute(128));
  }
  EXPECT_NEAR(compute(64) / compute(128), 6.0 / 10.3, 0.08);
}

TEST(AttentionBackward, WindowsAndSparsityScaleThePairsOnly) {
  const BackwardConstants bare = {0.6, 1e-9, 0.5, 1e-9};
  AttentionShape shape = Shape(64, 16384, 32, 128, false);
  const double whole = BackwardModelSeconds(bare, kRates, shape);
  shape.density = 0.25;
  EXPECT_NEAR(BackwardModelSeconds(bare, kRates, shape), whole / 4,
              whole * 1e-3);
}

TEST(AttentionBackward, HeadsBelowOneTurnOfTheDeviceCostNothingMore) {
  // 8 and 96 blocks of 128 keys on 100 multiprocessors.
  const double one = MadeSeconds(Shape(1, 1024, 1, 128, true));
  EXPECT_NEAR(MadeSeconds(Shape(1, 1024, 12, 128, true)), one, 1e-3 * one);
  EXPECT_GT(MadeSeconds(Shape(1, 1024, 26, 128, true)),
            1.3 * MadeSeconds(Shape(1, 1024, 12, 128, true)));
}

TEST(AttentionBackward, FitsTheConstantsThatPointsWereMadeWith) {
  AttentionTable causal = Table(true);
  AttentionTable full = Table(false);
  for (const int64_t seq : {1024, 4096, 16384}) {
    for (const int64_t heads : {4, 16, 64}) {
      for (const int64_t dim : {64, 128, 192}) {
        for (AttentionTable* table : {&causal, &full}) {
          const AttentionShape shape =
              Shape(2, static_cast<double>(seq), static_cast<double>(heads),
                    static_cast<double>(dim), table == &causal);
          Add(table, 2, seq, heads, dim, 1e6 * MadeSeconds(shape));
        }
      }
    }
  }
  const AttentionBackward fitted({&causal, &full}, kRates);
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    const AttentionShape shape =
        Shape(1 + static_cast<double>(random.Below(4)),
              std::round(512 * std::exp2(6 * random.Unit())),
              2 + static_cast<double>(random.Below(126)), 128, i % 2 == 0);
    const double expected = MadeSeconds(shape);
    EXPECT_NEAR(fitted.Seconds(shape, kRates), expected, 0.04 * expected)
        << "seed 7, shape " << i << ": " << shape.seq << " tokens, "
        << shape.heads << " heads";
  }
}

TEST(AttentionBackward, OneOddPointMovesItsNeighboursOnly) {
  AttentionTable table = Table(true);
  for (const int64_t seq : {1024, 2048, 4096, 8192, 16384, 32768}) {
    for (const int64_t heads : {8, 32}) {
      const AttentionShape shape = Shape(1, static_cast<double>(seq),
                                         static_cast<double>(heads), 128, true);
      const double odd = seq == 4096 && heads == 8 ? 1.5 : 1;
      Add(&table, 1, seq, heads, 128, 1e6 * odd * MadeSeconds(shape));
    }
  }
  const AttentionBackward fitted({&table}, kRates);
  const auto over = [&](double seq, double heads) {
    const AttentionShape shape = Shape(1, seq, heads, 128, true);
    return fitted.Seconds(shape, kRates) / MadeSeconds(shape);
  };
  EXPECT_GT(over(4096, 8), 1.2);
  EXPECT_NEAR(over(32768, 8), 1, 0.05);
  EXPECT_NEAR(over(4096, 128), 1, 0.08);
}

TEST(AttentionBackward, FasterDevicesAreScaledByTheirRates) {
  AttentionTable table = Table(false);
  for (const int64_t seq : {8192, 16384, 32768}) {
    Add(&table, 2, seq, 64, 128,
        1e6 * MadeSeconds(Shape(2, static_cast<double>(seq), 64, 128, false)));
  }
  const AttentionBackward fitted({&table}, kRates);
  DeviceRates twice = kRates;
  twice.bf16_flops_per_second *= 2;
  twice.bytes_per_second *= 2;
  const AttentionShape shape = Shape(2, 24576, 64, 128, false);
  EXPECT_NEAR(fitted.Seconds(shape, kRates) / fitted.Seconds(shape, twice), 2,
              0.02);
  EXPECT_TRUE(AttentionBackward({}, kRates).empty());
}

}  // namespace
}  // namespace pipeloom::emulator
