// Shares of a device's speed that a step keeps, in a cluster file.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "formats/job/device_share_notes.h"
#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the device of a cluster file with these fields.
DeviceSpec DeviceWith(const std::string& fields) {
  const std::string text = absl::StrCat(
      R"({"device": {"name": "toy", "bf16_flops_per_second": 1e14,
          "memory_bytes": 8589934592,
          "memory_bandwidth_bytes_per_second": 1e12, "gemm_efficiency": 0.75,
          "attention_efficiency": 0.5, "memory_efficiency": 0.8,)",
      fields, R"("kernel_overhead_us": 4.5,
          "host_bandwidth_bytes_per_second": 25000000000},
          "num_nodes": 1, "gpus_per_node": 8,
          "intra_node": {"latency_us": 5, "bandwidth_bytes_per_second": 160e9},
          "inter_node": {"latency_us": 10, "bandwidth_bytes_per_second": 22e9}
          })");
  const auto cluster =
      LoadCluster("toy.json", "", [&](const std::string&) { return text; });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? cluster->device : DeviceSpec();
}

TEST(DeviceSharesTest, AttentionKeepsAsMuchAsProductsUnlessItIsSaid) {
  EXPECT_EQ(DeviceWith("").sustained_attention, 1);
  const DeviceSpec follows = DeviceWith(R"("sustained_bf16": 0.7,)");
  EXPECT_EQ(follows.sustained_attention, 0.7);
  EXPECT_EQ(follows.sustained_fp8, 1);
  const DeviceSpec apart = DeviceWith(
      R"("sustained_attention": 0.9, "sustained_bf16": 0.7,
         "sustained_fp8": 0.8,)");
  EXPECT_EQ(apart.sustained_attention, 0.9);
  EXPECT_EQ(apart.sustained_fp8, 0.8);
}

TEST(DeviceSharesTest, AShareThatTheShippedDeviceHasIsMissed) {
  ASSERT_OK_AND_ASSIGN(ClusterSpec cluster,
                       LoadCluster("b200-sxm", kDataDir, ReadFile));
  const auto notes = [&] {
    return DeviceShareNotes(cluster, kDataDir, ReadFile);
  };
  EXPECT_THAT(notes(), IsEmpty());
  cluster.device.sustained_fp8 = 1;
  EXPECT_THAT(notes(), ElementsAre(AllOf(HasSubstr("\"b200-sxm\""),
                                         HasSubstr("has no sustained_fp8"),
                                         HasSubstr("one has 0.87"))));
  // As a file that states none is read.
  cluster.device.sustained_bf16 = cluster.device.sustained_attention = 1;
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("has no sustained_bf16"),
                                   HasSubstr("has no sustained_fp8")));
  // Its own node group, too; a device that does not ship is not known.
  NodeGroup group;
  group.device = cluster.device;
  cluster.device.name = "toy";
  EXPECT_THAT(notes(), IsEmpty());
  cluster.node_groups = {group, group};
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("has no sustained_bf16"),
                                   HasSubstr("has no sustained_fp8")));
}

TEST(DeviceSharesTest, ShippedClustersStateThem) {
  for (const std::string& name : ShippedClusterNames()) {
    ASSERT_OK_AND_ASSIGN(const ClusterSpec cluster,
                         LoadCluster(name, kDataDir, ReadFile));
    EXPECT_THAT(DeviceShareNotes(cluster, kDataDir, ReadFile), IsEmpty())
        << name;
  }
}

}  // namespace
}  // namespace pipeloom::formats
