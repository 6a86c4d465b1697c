// Prices by a shipped profile on a cluster whose links or device differ from
// those for which it was measured.
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "emulator/cost/profile_cost.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/profile_reader.h"
#include "gtest/gtest.h"
#include "tests/formats/data_dir.h"

namespace pipeloom::emulator {
namespace {

DeviceProfile H100Profile() {
  const std::string path =
      absl::StrCat(formats::kDataDir, "/profiles/h100-sxm.json");
  const auto text = formats::ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  auto profile = formats::ParseDeviceProfile(text.value_or(""), path);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : DeviceProfile();
}

ClusterSpec H100Cluster() {
  auto cluster =
      formats::LoadCluster("h100-sxm", formats::kDataDir, formats::ReadFile);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *cluster : ClusterSpec();
}

TEST(ProfileCollectives, StepsTakeTheLatencyOfTheClustersLinks) {
  const DeviceProfile h100 = H100Profile();
  ClusterSpec cluster = H100Cluster();
  ASSERT_EQ(ToMicroseconds(cluster.intra_node.latency),
            h100.collectives.node_latency_us);
  ASSERT_EQ(ToMicroseconds(cluster.inter_node.latency),
            h100.collectives.nic_latency_us);
  ParallelLayout layout{.tp = 8, .dp = 4};
  const auto seconds = [&](const CollectiveOp& op) {
    return ToSeconds(ProfileCost(cluster, layout, h100).Price(op).time);
  };
  const auto change = [&](const CollectiveOp& op, LinkSpec* link, double us) {
    const double before = seconds(op);
    const Duration own = link->latency;
    link->latency += Microseconds(us);
    const double after = seconds(op);
    link->latency = own;
    return (after - before) * 1e6;
  };
  CollectiveOp op{.kind = Collective::kAllGather,
                  .group = GroupKind::kTensor,
                  .size = 8,
                  .bytes = 64 << 20};
  // Seven steps inside the node, of a measured curve.
  EXPECT_NEAR(change(op, &cluster.intra_node, 100), 700, 0.01);
  EXPECT_EQ(change(op, &cluster.inter_node, 100), 0);
  op.kind = Collective::kAllToAll;
  EXPECT_NEAR(change(op, &cluster.intra_node, 100), 100, 0.01);
  op.kind = Collective::kRing;
  EXPECT_NEAR(change(op, &cluster.intra_node, 100), 700, 0.01);
  // Sixteen GPUs of two nodes, by the model: one of 15 steps leaves the node.
  op.kind = Collective::kReduceScatter;
  op.size = 16;
  layout = {.tp = 16, .dp = 2};
  EXPECT_NEAR(change(op, &cluster.inter_node, 90), 90, 0.01);
  EXPECT_NEAR(change(op, &cluster.intra_node, 90), 14 * 90, 0.01);
  // Without any latency: shorter, yet not for nothing.
  layout = {.tp = 8, .dp = 4};
  op.size = 8;
  op.bytes = 4096;
  const double small = seconds(op);
  cluster.intra_node.latency = kZero;
  EXPECT_LT(seconds(op), small);
  EXPECT_GT(seconds(op), 0);
  // Not known for which latency the profile holds: no change.
  DeviceProfile unknown = h100;
  unknown.collectives.node_latency_us = 0;
  EXPECT_EQ(ToSeconds(ProfileCost(cluster, layout, unknown).Price(op).time),
            small);
}

TEST(ProfileCost, AChangedRateChangesOnlyTheOperatorsThatUseIt) {
  const DeviceProfile h100 = H100Profile();
  ClusterSpec cluster = H100Cluster();
  const ParallelLayout layout{};
  const GemmOp product{.m = 4096, .n = 4096, .k = 4096};
  GemmOp low = product;
  low.precision = Precision::kFp8;
  const MemoryOp norm{.bytes = 1e9, .kind = MemoryKind::kNorm};
  const auto prices = [&] {
    const ProfileCost costs(cluster, layout, h100);
    return std::array{costs.Price(product), costs.Price(low),
                      costs.Price(norm)};
  };
  const auto before = prices();
  ASSERT_EQ(before[0].source, CostSource::kMeasured);
  cluster.device.fp8.flops_per_second *= 0.9;
  auto after = prices();
  EXPECT_EQ(after[0].time, before[0].time);
  EXPECT_EQ(after[0].source, CostSource::kMeasured);
  EXPECT_GT(after[1].time, before[1].time);
  EXPECT_EQ(after[2].time, before[2].time);
  cluster.device.fp8.flops_per_second /= 0.9;
  cluster.device.bf16.flops_per_second *= 0.9;
  after = prices();
  EXPECT_NE(after[0].source, CostSource::kMeasured);
  EXPECT_EQ(after[1].time, before[1].time);
  EXPECT_EQ(after[2].time, before[2].time);
}

}  // namespace
}  // namespace pipeloom::emulator
