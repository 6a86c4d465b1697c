#include "planner/layout/finalists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pipeloom::planner {
namespace {

using ::testing::ElementsAre;

PartitionCandidate Tried(const std::string& name, const std::string& origin,
                         double seconds) {
  return {.name = name, .origin = origin, .time = Seconds(seconds)};
}

std::vector<std::string> NamesOf(
    const std::vector<PartitionCandidate>& partitions) {
  std::vector<std::string> names;
  for (const PartitionCandidate& p : partitions) names.push_back(p.name);
  return names;
}

// Partitions of one origin with layers moved leave room for others, which are
// slower on the few steps judged so far.
TEST(FinalistsTest, AreOfSeveralOrigins) {
  std::vector<PartitionCandidate> tried = {Tried("start", "start", 30)};
  for (int i = 0; i < 9; ++i) {
    tried.push_back(Tried("a" + std::to_string(i), "a", 20 - i));
  }
  tried.push_back(Tried("b", "b", 22));
  tried.push_back(Tried("c", "c", 21));
  tried.push_back({.name = "does not fit", .origin = "d"});
  EXPECT_THAT(NamesOf(Finalists(tried, 4)),
              ElementsAre("start", "a8", "a7", "a6", "c"));
  EXPECT_THAT(NamesOf(Finalists(tried, 8)),
              ElementsAre("start", "a8", "a7", "a6", "c", "b"));
  EXPECT_THAT(NamesOf(Finalists(tried, 2)), ElementsAre("start", "a8", "a7"));
}

// Steps of 20 s by one partition, and shorter ones by another: by the given
// seconds.
bool IsSurelyBetterBy(const std::vector<double>& gains) {
  PartitionCandidate slow;
  PartitionCandidate fast;
  Duration sum{};
  for (const double gain : gains) {
    slow.times.push_back(Seconds(20));
    fast.times.push_back(Seconds(20 - gain));
    sum += fast.times.back();
  }
  slow.time = Seconds(20);
  fast.time = sum / static_cast<int64_t>(gains.size());
  return IsSurelyBetterPartition(fast, slow,
                                 std::vector<WeighedStep>(gains.size()));
}

TEST(FinalistsTest, AGainCountsAboveItsStandardError) {
  EXPECT_TRUE(IsSurelyBetterBy({1, 1, 1, 1, 1, 1, 1, 1}));
  // A mean of 1 and a standard error of 2 / sqrt(7).
  EXPECT_TRUE(IsSurelyBetterBy({3, -1, 3, -1, 3, -1, 3, -1}));
  // A mean of 1 and a standard error of 3 / sqrt(7).
  EXPECT_FALSE(IsSurelyBetterBy({4, -2, 4, -2, 4, -2, 4, -2}));
  EXPECT_FALSE(IsSurelyBetterBy({-1, -1, -1}));
  // One step tells of no error.
  EXPECT_TRUE(IsSurelyBetterBy({1}));
}

TEST(FinalistsTest, FittingMoreStepsComesFirst) {
  PartitionCandidate fits = Tried("fits", "a", 30);
  PartitionCandidate not_all = Tried("not all", "b", 20);
  not_all.misfits = 1;
  EXPECT_TRUE(IsBetterPartition(fits, not_all));
  EXPECT_TRUE(IsSurelyBetterPartition(fits, not_all, {}));
  EXPECT_TRUE(IsBetterPartition(not_all, {.name = "fits none"}));
  EXPECT_FALSE(IsBetterPartition({.name = "fits none"}, not_all));
  EXPECT_THAT(BestPartitions({not_all, {.name = "fits none"}, fits}),
              ElementsAre(2, 0));
}

}  // namespace
}  // namespace pipeloom::planner
