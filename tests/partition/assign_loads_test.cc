#include "partition/batching/assign_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace pipeloom::partition {
namespace {

using ::testing::ElementsAre;

int64_t Heaviest(const std::vector<int64_t>& weights,
                 const std::vector<int32_t>& group, int32_t groups) {
  const std::vector<int64_t> loads = GroupLoads(weights, group, groups);
  return *std::max_element(loads.begin(), loads.end());
}

// The optimum over all ways, groups being interchangeable.
class Exact {
 public:
  Exact(const std::vector<int64_t>& weights, int32_t groups)
      : weights_(weights), loads_(static_cast<size_t>(groups), 0) {
    std::sort(weights_.rbegin(), weights_.rend());
    best_ = std::accumulate(weights_.begin(), weights_.end(), int64_t{0});
    Place(0);
  }
  int64_t best() const { return best_; }

 private:
  void Place(size_t item) {
    if (item == weights_.size()) {
      best_ = std::min(best_, *std::max_element(loads_.begin(), loads_.end()));
      return;
    }
    for (int64_t& load : loads_) {
      const bool empty = load == 0;
      if (load + weights_[item] < best_) {
        load += weights_[item];
        Place(item + 1);
        load -= weights_[item];
      }
      if (empty) return;  // The other empty ones are the same.
    }
  }
  std::vector<int64_t> weights_;
  std::vector<int64_t> loads_;
  int64_t best_ = 0;
};

TEST(AssignLoadsTest, IsWithinFourThirdsOfTheOptimum) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const auto groups = static_cast<int32_t>(random.Between(2, 4));
    std::vector<int64_t> weights(static_cast<size_t>(random.Between(1, 11)));
    for (int64_t& weight : weights) weight = random.Between(1, 40);
    const int64_t optimum = Exact(weights, groups).best();
    const int64_t found =
        Heaviest(weights, AssignLoads(weights, groups), groups);
    ASSERT_GE(found, optimum) << seed;
    // Graham's bound for LPT, which improvements only tighten.
    ASSERT_LE(found * 3 * groups, optimum * (4 * groups - 1)) << seed;
  }
}

// LPT's own worst case for 2 groups: 7/6 of the optimum.
TEST(AssignLoadsTest, ExchangesMendTheWorstCaseOfLpt) {
  const std::vector<int64_t> weights = {3, 3, 2, 2, 2};
  EXPECT_EQ(Heaviest(weights, AssignLoads(weights, 2), 2), 6);
}

TEST(AssignLoadsTest, LeavesNoGroupEmptyWhereThereAreItems) {
  for (const int64_t weight : {0, 5}) {
    const std::vector<int64_t> weights(7, weight);
    const std::vector<int32_t> group = AssignLoads(weights, 7);
    std::vector<int32_t> sorted = group;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_THAT(sorted, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  }
  EXPECT_TRUE(AssignLoads({}, 3).empty());
}

// 50 items of like weight a group: the mean is met to a per mille.
TEST(AssignLoadsTest, ManyItemsAreSpreadEvenly) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    std::vector<int64_t> weights(3200);
    int64_t total = 0;
    for (int64_t& weight : weights) {
      weight = random.Between(1, 100'000);
      total += weight;
    }
    const int64_t most = Heaviest(weights, AssignLoads(weights, 64), 64);
    EXPECT_LE(most * 64, total + total / 1000) << seed;
  }
}

TEST(OrderBySizeTest, BeginsWithTheSmallestAndEndsSmall) {
  EXPECT_THAT(OrderBySize({5, 1, 9, 3}), ElementsAre(1, 2, 0, 3));
  EXPECT_THAT(OrderBySize({2}), ElementsAre(0));
  EXPECT_TRUE(OrderBySize({}).empty());
}

}  // namespace
}  // namespace pipeloom::partition
