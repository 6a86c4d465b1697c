#include "partition/placement/layer_partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracles/split_layers_brute_force.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::BestSplitQuality;
using ::pipeloom::testing::QualityOf;
using ::testing::Each;
using ::testing::ElementsAre;

std::vector<int64_t> RunSums(const std::vector<int64_t>& weights,
                             std::vector<int32_t> begins) {
  begins.push_back(static_cast<int32_t>(weights.size()));
  std::vector<int64_t> sums;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    sums.push_back(std::accumulate(weights.begin() + begins[i],
                                   weights.begin() + begins[i + 1],
                                   int64_t{0}));
  }
  return sums;
}

// Case G1: the DIP paper's 37B model, 64 vision layers of 6.75 ms and 64
// language layers of 10.5 ms in 16 stages. "Stage latency 63 to 73.5 ms".
TEST(SplitLayersTest, DividesTheDipPapersMotivatingModelAsReported) {
  std::vector<int64_t> microseconds(64, 6750);
  microseconds.insert(microseconds.end(), 64, 10500);
  const std::vector<int64_t> sums =
      RunSums(microseconds, SplitLayers(microseconds, 16));
  EXPECT_EQ(*std::max_element(sums.begin(), sums.end()), 73'500);
  EXPECT_EQ(*std::min_element(sums.begin(), sums.end()), 63'000);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 1'104'000);
}

TEST(SplitLayersTest, EqualsBruteForceOnAllSmallChainsOfThreeWeights) {
  for (int32_t n = 1; n <= 6; ++n) {
    for (int64_t code = 0; code < std::lround(std::pow(3, n)); ++code) {
      std::vector<int64_t> weights;
      for (int64_t rest = code, i = 0; i < n; ++i, rest /= 3) {
        weights.push_back(rest % 3 == 2 ? 5 : rest % 3);
      }
      for (int32_t runs = 1; runs <= n; ++runs) {
        ASSERT_EQ(QualityOf(weights, SplitLayers(weights, runs)),
                  BestSplitQuality(weights, runs))
            << ::testing::PrintToString(weights) << " in " << runs;
      }
    }
  }
}

TEST(SplitLayersTest, EqualsBruteForceOnRandomChains) {
  Random random(7);
  for (int trial = 0; trial < 1000; ++trial) {
    const int64_t largest = random.Below(2) == 0 ? 3 : 100;
    std::vector<int64_t> weights;
    for (int64_t n = random.Between(1, 10); n > 0; --n) {
      weights.push_back(random.Between(0, largest));
    }
    for (int32_t runs = 1; runs <= static_cast<int32_t>(weights.size());
         ++runs) {
      const std::vector<int32_t> begins = SplitLayers(weights, runs);
      ASSERT_EQ(begins.size(), static_cast<size_t>(runs));
      ASSERT_EQ(begins.front(), 0);
      ASSERT_TRUE(std::is_sorted(begins.begin(), begins.end()));
      ASSERT_EQ(QualityOf(weights, begins), BestSplitQuality(weights, runs))
          << ::testing::PrintToString(weights) << " in " << runs;
    }
  }
}

TEST(SplitLayersTest, MakesEarlierRunsShorterWhereItCannotDivideEvenly) {
  EXPECT_THAT(SplitLayers({1, 1, 1, 1, 1}, 2), ElementsAre(0, 2));
  EXPECT_THAT(SplitLayers({1, 1, 1, 1, 1}, 3), ElementsAre(0, 1, 3));
  EXPECT_THAT(SplitLayers({4}, 1), ElementsAre(0));
}

TEST(SplitLayersTest, GivesEveryRunALayerEvenIfLayersWeighNothing) {
  const std::vector<int64_t> weights(9, 0);
  std::vector<int32_t> begins = SplitLayers(weights, 5);
  std::vector<int32_t> lengths;
  begins.push_back(9);
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    lengths.push_back(begins[i + 1] - begins[i]);
  }
  EXPECT_THAT(lengths, Each(::testing::Ge(1)));
}

TEST(SplitLayersTest, TakesWeightsUpToTheLimitOfItsSums) {
  const int64_t huge = (int64_t{1} << 60) - 1;
  EXPECT_THAT(SplitLayers({huge, 1, huge, huge}, 3), ElementsAre(0, 1, 3));
}

}  // namespace
}  // namespace pipeloom::partition
