#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "emulator/network/collective_profile.h"
#include "emulator/network/ring_model.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::testing::HasSubstr;

CollectiveCurve Curve(OpType op, int64_t ranks, std::vector<int64_t> bytes,
                      std::vector<double> us) {
  CollectiveCurve curve;
  curve.op = op;
  curve.ranks = ranks;
  curve.bytes = std::move(bytes);
  curve.us = std::move(us);
  return curve;
}

// 5 us, then 100 GB/s.
CollectiveProfile Simple() {
  CollectiveProfile profile;
  profile.curves = {
      Curve(OpType::kAllGather, 2, {1000, 1'000'000, 4'000'000}, {5, 10, 40}),
      Curve(OpType::kAllGather, 8, {1000, 1'000'000, 4'000'000}, {9, 14, 56})};
  profile.nic_bytes_per_second = 25e9;
  return profile;
}

CollectiveQuery Gather(double bytes, int64_t ranks) {
  return {OpType::kAllGather, QuerySpan::kNode, bytes, ranks, 0};
}

double Us(const CollectiveCosts& costs, const CollectiveQuery& query) {
  return costs.Time(query).seconds * 1e6;
}

TEST(CollectiveCosts, GiveAMeasuredPointBack) {
  const CollectiveCosts costs(Simple());
  EXPECT_NEAR(Us(costs, Gather(1'000'000, 8)), 14, 1e-9);
  EXPECT_EQ(costs.Time(Gather(1'000'000, 8)).source,
            CollectiveSource::kMeasured);
}

TEST(CollectiveCosts, FollowAPowerLawBetweenSizesExactly) {
  const CollectiveCosts costs(Simple());
  EXPECT_NEAR(Us(costs, Gather(2'000'000, 2)), 20, 1e-9);
  EXPECT_EQ(costs.Time(Gather(2'000'000, 2)).source,
            CollectiveSource::kInterpolated);
}

TEST(CollectiveCosts, HoldTheLatencyBelowAndTheBandwidthAbove) {
  const CollectiveCosts costs(Simple());
  EXPECT_NEAR(Us(costs, Gather(1, 2)), 5, 1e-9);
  EXPECT_NEAR(Us(costs, Gather(400'000'000, 2)), 4000, 1e-6);
}

TEST(CollectiveCosts, AddTheLastStretchsTimePerByteBeyondTheLastPoint) {
  CollectiveProfile profile;
  profile.curves = {Curve(OpType::kAllGather, 2,
                          {1'000'000, 2'000'000, 3'900'000, 4'000'000},
                          {20, 30, 49, 50})};
  // 10 us a MB from 2 to 4 MB, not 12.5.
  EXPECT_NEAR(Us(CollectiveCosts(profile), Gather(14e6, 2)), 150, 1e-6);
}

TEST(CollectiveCosts, ShrinkAsRingsDoBelowALargeFirstPoint) {
  CollectiveProfile profile;
  profile.curves = {
      Curve(OpType::kAllGather, 8, {64'000'000, 128'000'000}, {200, 400})};
  const CollectiveCosts costs(profile);
  EXPECT_LT(Us(costs, Gather(8e6, 8)), 60);
  EXPECT_GT(Us(costs, Gather(8e6, 8)), 25);
  EXPECT_GT(Us(costs, Gather(1, 8)), 5);
}

TEST(CollectiveCosts, LieBetweenTheGroupsNextToOne) {
  const CollectiveCosts costs(Simple());
  // Halfway between 2 and 8 in logarithms.
  EXPECT_NEAR(Us(costs, Gather(1000, 4)), std::sqrt(5.0 * 9.0), 1e-9);
}

TEST(CollectiveCosts, GrowWithLatencyAndWireBeyondTheLargestGroup) {
  const CollectiveCosts costs(Simple());
  // Two doublings from 2 to 8 took 4 us; the wire share goes from 7/8 to
  // 31/32 at 4 MB * 7/8 / 56 us.
  const double rate = 4e6 * 7 / 8 / 56e-6;
  const double wire = 4e6 * (31.0 / 32 - 7.0 / 8) / rate * 1e6;
  EXPECT_NEAR(Us(costs, Gather(4e6, 32)), 56 + wire + 4, 1e-6);
}

TEST(CollectiveCosts, CostNothingForOneRankOrNoBytes) {
  const CollectiveCosts costs(Simple());
  EXPECT_EQ(Us(costs, Gather(1e6, 1)), 0);
  EXPECT_EQ(Us(costs, Gather(0, 8)), 0);
}

TEST(CollectiveCosts, CallAnEstimateInterpolated) {
  CollectiveProfile profile = Simple();
  profile.curves[0].estimated = {1'000'000};
  const CollectiveCosts costs(profile);
  EXPECT_EQ(costs.Time(Gather(1'000'000, 2)).source,
            CollectiveSource::kInterpolated);
}

TEST(CollectiveCosts, MakeAnAllReduceOfItsTwoHalvesWhereItHasNoCurve) {
  CollectiveProfile profile = Simple();
  profile.curves.push_back(
      Curve(OpType::kReduceScatter, 8, {1000, 1'000'000}, {7, 12}));
  const CollectiveCosts costs(profile);
  EXPECT_NEAR(Us(costs, {OpType::kAllReduce, QuerySpan::kNode, 1e6, 8, 0}), 26,
              1e-9);
}

TEST(CollectiveCosts, AreInfiniteWhereNothingCoversThem) {
  const CollectiveCosts costs(Simple());
  const CollectiveQuery query{OpType::kSendRecv, QuerySpan::kNode, 1e6, 2, 0};
  EXPECT_FALSE(costs.CanPrice(query));
  EXPECT_TRUE(costs.CanPrice(Gather(1e6, 2)));
}

TEST(CollectiveCosts, NeverFallWithMoreBytesNorWithMoreRanksInsideTheCurves) {
  Random random(7);
  for (int round = 0; round < 50; ++round) {
    CollectiveProfile profile;
    for (const int64_t ranks : {2, 4, 8}) {
      std::vector<int64_t> bytes;
      std::vector<double> us;
      for (int64_t size = 512; size <= 1 << 24; size *= 4) {
        bytes.push_back(size);
        const double floor =
            profile.curves.empty() ? 1 : profile.curves.back().us[us.size()];
        const double before = us.empty() ? 1 : us.back();
        us.push_back(std::max(floor, before) * (1 + random.Unit()));
      }
      profile.curves.push_back(
          Curve(OpType::kAllToAll, ranks, std::move(bytes), std::move(us)));
    }
    ASSERT_THAT(ValidateCollectiveProfile(profile),
                ::pipeloom::testing::IsOk());
    const CollectiveCosts costs(profile);
    for (int64_t ranks = 2; ranks <= 70; ++ranks) {
      double before = 0;
      for (double size = 100; size < 1e9; size *= 1.7) {
        const CollectiveQuery query{OpType::kAllToAll, QuerySpan::kNode, size,
                                    ranks, 0};
        const double now = Us(costs, query);
        EXPECT_GE(now, before * (1 - 1e-12))
            << "seed 7, round " << round << ", " << ranks << " ranks";
        before = now;
        if (size > 8388608) continue;  // Extrapolated lines may cross.
        CollectiveQuery more = query;
        ++more.ranks;
        EXPECT_GE(Us(costs, more), now * (1 - 1e-12))
            << "seed 7, round " << round << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(CollectiveProfile, RefusesWhatIsNoCurve) {
  CollectiveProfile profile = Simple();
  profile.curves[0].us[1] = 4;
  EXPECT_THAT(ValidateCollectiveProfile(profile).message(),
              HasSubstr("us[1] is 4"));
  profile = Simple();
  profile.curves[1].bytes[2] = 1000;
  EXPECT_THAT(ValidateCollectiveProfile(profile).message(),
              HasSubstr("ascend"));
  profile = Simple();
  profile.curves[1].ranks = 2;
  EXPECT_THAT(ValidateCollectiveProfile(profile).message(),
              HasSubstr("no two"));
  profile = Simple();
  profile.curves[0].us[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(ValidateCollectiveProfile(profile).ok());
  profile = Simple();
  profile.compute_slowdown = 0.5;
  EXPECT_THAT(ValidateCollectiveProfile(profile).message(),
              HasSubstr("compute_slowdown"));
}

// ---- ring_model.h ----------------------------------------------------------

constexpr RingLinks kFast{300e9, 45e9};

TEST(RingModel, ReachesTheBusBandwidthOfLargeBuffers) {
  // 8 ranks of one node: 7/8 of S at 300 GB/s.
  const double seconds =
      RingModelSeconds(OpType::kAllGather, 80e9, {8, 8}, kFast);
  EXPECT_NEAR(seconds, 80e9 * 7 / 8 / 300e9, 1e-3 * seconds);
  // Two nodes of 4: four NICs, 180 GB/s.
  const double between =
      RingModelSeconds(OpType::kAllReduce, 8e9, {8, 4}, kFast);
  EXPECT_NEAR(between, 8e9 * 2 * 7 / 8 / 180e9, 1e-2 * between);
  // Eight NICs carry more than the node's links.
  EXPECT_NEAR(RingModelSeconds(OpType::kAllGather, 8e9, {16, 8}, kFast),
              8e9 * 15 / 16 / 300e9, 1e-3);
}

// Closed form: four nodes of eight, three hops between nodes, 28 inside.
TEST(RingModel, ABroadcastIsHandedOnBlockByBlock) {
  const RingLinks links{.node_bytes_per_second = 200e9,
                        .nic_bytes_per_second = 5e9};
  const auto wait_us = [&](double bytes, const RingGroup& group) {
    return BroadcastWaitSeconds(bytes, group, links) * 1e6;
  };
  const double block_us = 614400 / 5e3;
  EXPECT_NEAR(wait_us(100e6, {32, 8}), 14 + 28 * 1.9 + 3 * (4 + block_us),
              1e-6);
  // A tensor of any size from eight blocks on waits as long.
  EXPECT_EQ(wait_us(100e6, {32, 8}), wait_us(200e6, {32, 8}));
  // A vector's share of each channel is less than a block.
  EXPECT_NEAR(wait_us(8000, {32, 8}), 6.6 + 28 * 0.6 + 3 * (2.7 + 1000 / 5e3),
              1e-6);
  EXPECT_NEAR(wait_us(100e6, {8, 8}), 14 + 7 * 1.9, 1e-6);
  EXPECT_EQ(wait_us(100e6, {1, 1}), 0);
  EXPECT_EQ(wait_us(0, {32, 8}), 0);
}

TEST(RingModel, SendsFromGpuToGpuOverOneNic) {
  EXPECT_NEAR(RingModelSeconds(OpType::kSendRecv, 45e6, {2, 1}, kFast),
              1.015e-3, 1e-9);
}

TEST(RingModel, SplitsAnAllToAllBetweenNicAndNode) {
  // 8 of 16 ranks are on the other node: half of S over the NIC.
  const double seconds =
      RingModelSeconds(OpType::kAllToAll, 9e9, {16, 8}, kFast);
  EXPECT_NEAR(seconds, 4.5e9 / 45e9, 1e-3);
}

TEST(RingModel, AddsLatencyToEachStepAndNoneFallsBelowZero) {
  RingLinks slow = kFast;
  slow.nic_extra_us = 50;
  const auto time = [](const RingLinks& links) {
    return RingModelSeconds(OpType::kAllGather, 1e9, {32, 8}, links);
  };
  EXPECT_NEAR(time(slow) - time(kFast), 3 * 50e-6, 1e-9);
  RingLinks none = kFast;
  none.nic_extra_us = -1e6;
  none.node_extra_us = -1e6;
  EXPECT_LT(time(none), time(kFast));
  EXPECT_GE(time(none), 1e9 * 31 / 32 / 300e9);
}

TEST(RingModel, PrefersTreesForSmallBuffersOnManyNodes) {
  // A ring of 128 nodes would take 254 network steps of 2.7 us.
  EXPECT_LT(RingModelSeconds(OpType::kAllReduce, 1000, {1024, 8}, kFast),
            200e-6);
  EXPECT_GT(RingModelSeconds(OpType::kAllGather, 1000, {1024, 8}, kFast),
            300e-6);
}

TEST(RingModel, NeedsTheLinksThatItUses) {
  EXPECT_TRUE(std::isinf(
      RingModelSeconds(OpType::kAllGather, 1e6, {16, 8}, {300e9, 0})));
  EXPECT_TRUE(std::isfinite(
      RingModelSeconds(OpType::kAllGather, 1e6, {2, 1}, {0, 45e9})));
}

// Median all-reduces of 65,929,216 bytes (microsoft/vidur, MIT, A100 with a
// slow network). Two nodes of one GPU set the rate of a NIC: 5.87 GB/s.
TEST(RingModel, PredictsFourNicsFromOne) {
  const RingLinks links{200e9, 5.87e9};
  constexpr double kBytes = 65929216;
  EXPECT_NEAR(RingModelSeconds(OpType::kAllReduce, kBytes, {2, 1}, links),
              11.242e-3, 0.01 * 11.242e-3);
  EXPECT_NEAR(RingModelSeconds(OpType::kAllReduce, kBytes, {8, 4}, links),
              5.393e-3, 0.1 * 5.393e-3);
}

// ---- Overlap ---------------------------------------------------------------

TEST(Overlap, IsTheLongerOfTheTwoWithoutContention) {
  EXPECT_DOUBLE_EQ(OverlappedSeconds(3, 2, 1, 1), 3);
  EXPECT_DOUBLE_EQ(OverlappedSeconds(1, 2, 1, 1), 2);
}

TEST(Overlap, SlowsComputeOnlyWhileThereIsCommunication) {
  // 1.2 s of communication, in which 1 s of compute is done; 2 s are left.
  EXPECT_DOUBLE_EQ(OverlappedSeconds(3, 1.2, 1.2, 1), 3.2);
  // All of compute is overlapped with communication.
  EXPECT_DOUBLE_EQ(OverlappedSeconds(1, 5, 1.2, 1), 5);
  EXPECT_DOUBLE_EQ(OverlappedSeconds(1, 5, 1, 2), 5.5);
}

TEST(Overlap, NeverBeatsTheLongerNorLosesToTheSlowedSum) {
  Random random(11);
  for (int i = 0; i < 1000; ++i) {
    const double compute = random.Unit();
    const double communication = random.Unit();
    const double a = 1 + random.Unit();
    const double b = 1 + random.Unit();
    const double together = OverlappedSeconds(compute, communication, a, b);
    EXPECT_GE(together, std::max(compute, communication) - 1e-12) << i;
    EXPECT_LE(together, std::max(compute * a + communication,
                                 compute + communication * b))
        << i;
  }
}

// DeepSeek's published profile of a DualPipe pair of passes: 124 ms of compute
// kernels and 113 ms of communication in a span of 128.5 ms. With 20 of 132
// multiprocessors at communication, 106.8 ms of compute alone explain it.
TEST(Overlap, AgreesWithDualPipesMeasuredSpan) {
  const double slowdown = 132.0 / 112;
  const double alone = 124 - 113 * (1 - 1 / slowdown);
  EXPECT_NEAR(OverlappedSeconds(alone, 113, slowdown, 1), 124, 1e-9);
  EXPECT_NEAR(OverlappedSeconds(alone, 113, slowdown, 1), 128.5, 0.04 * 128.5);
}

}  // namespace
}  // namespace pipeloom::emulator
