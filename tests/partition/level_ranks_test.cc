#include "partition/placement/level_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace pipeloom::partition {
namespace {

int64_t Most(const std::vector<CutChain>& chains, int32_t num_ranks) {
  const std::vector<int64_t> loads = LoadsOf(chains, num_ranks);
  return *std::max_element(loads.begin(), loads.end());
}

// Cuts every so many units.
CutChain Even(std::vector<int64_t> weights, std::vector<int32_t> ranks) {
  CutChain chain{.weights = std::move(weights), .rank_of_run = ranks};
  const auto runs = static_cast<int32_t>(ranks.size());
  const auto units = static_cast<int32_t>(chain.weights.size());
  for (int32_t r = 0; r <= runs; ++r) {
    chain.begins.push_back(units * r / runs);
  }
  return chain;
}

void ExpectIsACut(const CutChain& chain) {
  ASSERT_EQ(chain.begins.size(), chain.rank_of_run.size() + 1);
  EXPECT_EQ(chain.begins.front(), 0);
  EXPECT_EQ(chain.begins.back(), static_cast<int32_t>(chain.weights.size()));
  for (size_t run = 0; run + 1 < chain.begins.size(); ++run) {
    EXPECT_LT(chain.begins[run], chain.begins[run + 1]);
    for (int32_t u = chain.begins[run]; chain.may && u < chain.begins[run + 1];
         ++u) {
      EXPECT_TRUE(chain.may(u, static_cast<int32_t>(run)));
    }
  }
}

// The least largest load of all cuts.
int64_t Optimum(std::vector<CutChain> chains, int32_t num_ranks) {
  int64_t best = std::numeric_limits<int64_t>::max();
  const auto set = [&](const auto& self, size_t c, size_t cut) -> void {
    if (c == chains.size()) {
      best = std::min(best, Most(chains, num_ranks));
      return;
    }
    CutChain& chain = chains[c];
    if (cut + 1 == chain.begins.size()) {
      self(self, c + 1, 1);
      return;
    }
    const auto rest = static_cast<int32_t>(chain.begins.size() - 1 - cut);
    for (int32_t at = chain.begins[cut - 1] + 1;
         at <= static_cast<int32_t>(chain.weights.size()) - rest; ++at) {
      chain.begins[cut] = at;
      self(self, c, cut + 1);
    }
  };
  set(set, 0, 1);
  return best;
}

TEST(LevelRanksTest, IsOptimalOnMostSmallProblemsAndNearOnTheOthers) {
  int optimal = 0;
  constexpr int kSeeds = 300;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const auto num_ranks = static_cast<int32_t>(random.Between(2, 3));
    std::vector<CutChain> chains;
    for (int c = 0; c < 2; ++c) {
      std::vector<int32_t> ranks(static_cast<size_t>(num_ranks));
      std::iota(ranks.begin(), ranks.end(), 0);
      if (random.Between(0, 1) == 1) std::reverse(ranks.begin(), ranks.end());
      std::vector<int64_t> weights;
      for (int64_t u = random.Between(num_ranks, 8); u > 0; --u) {
        weights.push_back(random.Between(50, 150));
      }
      chains.push_back(Even(std::move(weights), std::move(ranks)));
    }
    const int64_t before = Most(chains, num_ranks);
    const int64_t optimum = Optimum(chains, num_ranks);
    LevelRanks(num_ranks, &chains);
    for (const CutChain& chain : chains) ExpectIsACut(chain);
    const int64_t most = Most(chains, num_ranks);
    EXPECT_GE(most, optimum);
    EXPECT_LE(most, before);
    EXPECT_LE(static_cast<double>(most), 1.15 * static_cast<double>(optimum));
    optimal += most == optimum ? 1 : 0;
  }
  EXPECT_GT(optimal, kSeeds * 3 / 4);
}

// 60 layers of 81 and 40 of 53 on 8 ranks: 872.5 each. No rank can have that;
// 7 and 6 are 885, 8 and 4 are 860.
TEST(LevelRanksTest, TwoModelsDivideAsEvenlyAsTheirLayersCan) {
  for (const bool back : {false, true}) {
    std::vector<int32_t> looped;
    std::vector<int32_t> vee;
    for (int32_t run = 0; run < 16; ++run) {
      looped.push_back(back ? 7 - run % 8 : run % 8);
      vee.push_back(run < 8 ? run : 15 - run);
    }
    for (const std::vector<int32_t>& ranks : {looped, vee}) {
      std::vector<CutChain> chains = {Even(std::vector<int64_t>(60, 81), ranks),
                                      Even(std::vector<int64_t>(40, 53), vee)};
      LevelRanks(8, &chains);
      EXPECT_EQ(Most(chains, 8), 885);
    }
  }
}

// 28 layers of 10 on four ranks, one of half the speed: 8, 8, 4 and 8 take 80.
TEST(LevelRanksTest, ARankOfHalfTheSpeedGetsHalfTheLayers) {
  std::vector<CutChain> chains = {
      Even(std::vector<int64_t>(28, 10), {0, 1, 2, 3})};
  chains[0].slow_of_run = {1, 1, 2, 1};
  EXPECT_EQ(Most(chains, 4), 140);
  LevelRanks(4, &chains);
  ExpectIsACut(chains[0]);
  EXPECT_EQ(Most(chains, 4), 80);
  EXPECT_EQ(chains[0].begins[3] - chains[0].begins[2], 4);
}

TEST(LevelRanksTest, UnitsStayWhereTheyMustBe) {
  std::vector<CutChain> chains = {
      Even(std::vector<int64_t>(12, 10), {0, 1, 2, 3})};
  chains[0].weights[0] = 100;
  chains[0].may = [](int32_t unit, int32_t run) {
    return unit != 2 || run == 0;  // Units 0 to 2 are on the first.
  };
  LevelRanks(4, &chains);
  ExpectIsACut(chains[0]);
  EXPECT_EQ(chains[0].begins[1], 3);
  EXPECT_EQ(Most(chains, 4), 120);
}

}  // namespace
}  // namespace pipeloom::partition
