#include "proto/convert/job_proto.h"

#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/random.h"
#include "formats/job/spec_loader.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::convert {
namespace {

DeviceSpec RandomDevice(Random& random) {
  DeviceSpec device;
  device.name = random.Below(2) == 0 ? "h800-sxm" : "a-card";
  device.bf16 = {1e12 * static_cast<double>(1 + random.Below(4000))};
  device.fp8 = {random.Below(2) == 0 ? 0 : 2 * device.bf16.flops_per_second};
  device.memory = Bytes(int64_t{1} << random.Between(33, 38));
  device.memory_bandwidth = {1e9 *
                             static_cast<double>(500 + random.Below(8000))};
  device.gemm_efficiency = 0.5 + 0.5 * random.Unit();
  device.attention_efficiency = 0.5 + 0.5 * random.Unit();
  device.memory_efficiency = 0.5 + 0.5 * random.Unit();
  device.sustained_bf16 = 0.5 + 0.5 * random.Unit();
  device.sustained_fp8 = 0.5 + 0.5 * random.Unit();
  device.sustained_attention = 0.5 + 0.5 * random.Unit();
  device.kernel_overhead = Nanoseconds(random.Below(9000));
  device.host_bandwidth = {1e9 * static_cast<double>(1 + random.Below(100))};
  device.source = "a test";
  return device;
}

// With every field that a cluster file may have, each now and then.
ClusterSpec RandomCluster(uint64_t seed) {
  Random random(seed);
  ClusterSpec cluster;
  cluster.name = "mixed";
  cluster.device = RandomDevice(random);
  cluster.num_nodes = 72;
  cluster.gpus_per_node = 8;
  cluster.intra_node = {Nanoseconds(random.Below(9000)), {2e11}};
  cluster.inter_node = {Nanoseconds(random.Below(30000)), {5e10}};
  cluster.source = "a test";
  constexpr DomainSpec kDomains[] = {{},
                                     {DomainKind::kSwitch, 72, 0},
                                     {DomainKind::kCube, 64, 0},
                                     {DomainKind::kHopRing, 0, 3}};
  cluster.domain = kDomains[random.Below(4)];
  cluster.nics_per_node = 1 << random.Below(4);
  if (random.Below(2) == 0) cluster.nics_per_node = 0;
  cluster.nic_sharing = static_cast<NicSharing>(random.Below(3));
  for (int32_t k = 0; k < random.Below(3); ++k) {
    NodeGroup group{.first_node = 3 * k, .num_nodes = 1 + k};
    group.every = random.Below(2) == 0 ? 0 : 12;
    group.device = RandomDevice(random);
    if (random.Below(2) == 0) {
      group.precision = static_cast<Precision>(random.Below(3));
    }
    cluster.node_groups.push_back(group);
  }
  for (int32_t k = 0; k < random.Below(3); ++k) {
    cluster.slow_gpus.push_back(
        {static_cast<int32_t>(random.Below(500)) + k, 1 + random.Unit()});
    cluster.slow_links.push_back({k, k + 7, 1 + random.Unit()});
  }
  if (random.Below(2) == 0) cluster.jitter = {random.Unit(), random.Unit()};
  return cluster;
}

TEST(JobProtoTest, ClustersComeBackEqualThroughTheirMessagesJson) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const ClusterSpec cluster = RandomCluster(seed);
    ASSERT_THAT(ValidateClusterSpec(cluster), testing::IsOk());
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    std::string json;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(ToProto(cluster),
                                                            &json, options)
                    .ok());
    ASSERT_OK_AND_ASSIGN(const ClusterSpec again,
                         formats::ParseCluster(json, "cluster"));
    EXPECT_EQ(again, cluster) << json;
  }
}

// One layer for each token mixer, and experts on narrow rows.
TEST(JobProtoTest, ModelsWithEveryTokenMixerComeBackEqual) {
  LayerSpec states;
  states.hidden = 64;
  states.state_space = {
      .heads = 8, .head_dim = 16, .state_dim = 32, .groups = 2, .chunk = 256};
  LayerSpec deltas;
  deltas.hidden = 64;
  deltas.delta_net = {.key_heads = 2,
                      .value_heads = 4,
                      .key_dim = 16,
                      .value_dim = 32,
                      .kernel = 3};
  deltas.ffn = {
      .experts = 8, .experts_per_token = 2, .expert_hidden = 24, .latent = 48};
  LayerSpec gated;
  gated.hidden = 64;
  gated.attention = {.kind = AttentionKind::kCausal,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .output_gate = true};
  ModuleSpec module;
  module.name = "backbone";
  for (const LayerSpec& layer : {states, deltas, gated}) {
    module.layers.push_back(layer);
  }
  ModelSpec model;
  model.name = "hybrid";
  model.modules.push_back(module);
  ASSERT_THAT(ValidateModelSpec(model), testing::IsOk());
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(ToProto(model), &json,
                                                          options)
                  .ok());
  ASSERT_OK_AND_ASSIGN(const ModelSpec again,
                       formats::ParseModel(json, "model"));
  EXPECT_EQ(again, model) << json;
}

}  // namespace
}  // namespace pipeloom::convert
