// Costs from device profiles, judged on what they have not seen: sites of the
// shipped profiles are taken out, the constants fitted again, and the sites
// predicted. The same on the full public files: scripts/derive_profiles.py.
#include "emulator/cost/profile_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/fingerprint.h"
#include "base/random.h"
#include "emulator/calibration/query_cost.h"
#include "emulator/cost/factor_grid.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/network/collective_profile.h"
#include "emulator/stage/stage_cost.h"
#include "formats/profile/profile_reader.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/formats/data_dir.h"

namespace pipeloom::emulator {
namespace {

DeviceProfile Shipped(const std::string& device) {
  const std::string path =
      std::string(formats::kDataDir) + "/profiles/" + device + ".json";
  const auto text = formats::ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  if (!text.ok()) return {};
  auto profile = formats::ParseDeviceProfile(*text, path);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : DeviceProfile();
}

ClusterSpec ClusterLike(const DeviceProfile& profile) {
  ClusterSpec cluster = H800Cluster();
  cluster.device.name = profile.device;
  cluster.device.bf16 = {profile.rates.bf16_flops_per_second};
  cluster.device.fp8 = {profile.rates.fp8_flops_per_second};
  cluster.device.memory_bandwidth = {profile.rates.bytes_per_second};
  return cluster;
}

bool Fifth(const std::vector<int64_t>& site) {
  FingerprintBuilder builder;
  for (const int64_t size : site) builder.Add(size);
  return builder.Build().low % 5 == 0;
}

GemmOp GemmOf(const GemmTable& t, size_t i) {
  OpQuery q{.op = OpType::kGemm, .pass = t.pass, .dtype = t.dtype};
  q.m = t.m[i];
  q.n = t.n[i];
  q.k = t.k[i];
  return std::get<GemmOp>(OpsOf(q).front());
}

AttentionOp AttentionOf(const AttentionTable& t, size_t i) {
  OpQuery q{.op = OpType::kAttention,
            .pass = t.pass,
            .dtype = t.dtype,
            .mask = t.mask};
  q.batch = t.batch[i];
  q.seq = t.seq[i];
  q.heads = t.heads[i];
  q.kv_heads = t.kv_heads[i];
  q.head_dim = t.head_dim[i];
  return std::get<AttentionOp>(OpsOf(q).front());
}

struct Unseen {
  std::vector<Op> ops{};
  std::vector<double> us{};
};

// Moves forward bf16 products of every fifth (n, k) out of the profile.
Unseen WithholdGemm(DeviceProfile* profile) {
  Unseen unseen;
  for (GemmTable& t : profile->gemm) {
    if (t.pass != QueryPass::kForward || t.dtype != QueryDtype::kBf16) continue;
    GemmTable kept{.pass = t.pass, .dtype = t.dtype};
    for (size_t i = 0; i < t.size(); ++i) {
      if (!t.groups.empty() && t.groups[i] > 1) continue;
      if (Fifth({t.n[i], t.k[i]})) {
        unseen.ops.push_back(GemmOf(t, i));
        unseen.us.push_back(t.us[i]);
        continue;
      }
      kept.m.push_back(t.m[i]);
      kept.n.push_back(t.n[i]);
      kept.k.push_back(t.k[i]);
      kept.us.push_back(t.us[i]);
    }
    t = kept;
  }
  return unseen;
}

Unseen WithholdAttention(QueryMask mask, DeviceProfile* profile) {
  Unseen unseen;
  for (AttentionTable& t : profile->attention) {
    if (t.pass != QueryPass::kForward || t.mask != mask) continue;
    AttentionTable kept{.pass = t.pass, .dtype = t.dtype, .mask = t.mask};
    for (size_t i = 0; i < t.size(); ++i) {
      if (Fifth({t.heads[i], t.head_dim[i]})) {
        unseen.ops.push_back(AttentionOf(t, i));
        unseen.us.push_back(t.us[i]);
        continue;
      }
      kept.batch.push_back(t.batch[i]);
      kept.seq.push_back(t.seq[i]);
      kept.heads.push_back(t.heads[i]);
      kept.kv_heads.push_back(t.kv_heads[i]);
      kept.head_dim.push_back(t.head_dim[i]);
      kept.value_dim.push_back(t.value_dim[i]);
      kept.us.push_back(t.us[i]);
    }
    t = kept;
  }
  return unseen;
}

double MeanError(const OpCostModel& costs, const Unseen& unseen) {
  double sum = 0;
  for (size_t i = 0; i < unseen.ops.size(); ++i) {
    const OpPrice price = costs.Price(unseen.ops[i]);
    EXPECT_EQ(price.source, CostSource::kInterpolated);
    sum += std::abs(ToSeconds(price.time) * 1e6 / unseen.us[i] - 1);
  }
  return sum / static_cast<double>(unseen.ops.size());
}

TEST(ProfileCost, PredictsProductsOfUnseenWidthsWithinSixPercent) {
  for (const char* device : {"h100-sxm", "a100-sxm", "b200-sxm"}) {
    DeviceProfile profile = Shipped(device);
    const Unseen unseen = WithholdGemm(&profile);
    ASSERT_GT(unseen.ops.size(), 800u) << device;
    const ProfileCost costs(ClusterLike(profile), {}, profile);
    EXPECT_LE(MeanError(costs, unseen), 0.06) << device;
  }
}

// SimuMax measured products and their gradients on one A100 and on one B200.
// Eight of ten input gradients took 0.93 to 1.16 times as long as the forward
// product, eight of ten weight gradients 0.94 to 1.24 times.
TEST(ProfileCost, GradientsOfLargeProductsTakeAboutAsLongAsTheirForward) {
  for (const char* device : {"a100-sxm", "b200-sxm", "h100-sxm", "h200-sxm"}) {
    const DeviceProfile profile = Shipped(device);
    const ProfileCost costs(ClusterLike(profile), {}, profile);
    for (const auto& [m, outputs, inputs] :
         {std::array<double, 3>{8192, 8192, 8192},
          {8192, 16384, 53248},
          {4096, 28672, 8192}}) {
      const double forward =
          ToSeconds(costs.Cost(GemmOp{.m = m, .n = outputs, .k = inputs}));
      const double input_grad = ToSeconds(costs.Cost(GemmOp{
          .m = m, .n = inputs, .k = outputs, .pass = QueryPass::kInputGrad}));
      const double weight_grad =
          ToSeconds(costs.Cost(GemmOp{.m = outputs,
                                      .n = inputs,
                                      .k = m,
                                      .result_bytes = 8,
                                      .pass = QueryPass::kWeightGrad}));
      EXPECT_NEAR(input_grad / forward, 1.05, 0.12) << device << " " << outputs;
      EXPECT_NEAR(weight_grad / forward, 1.09, 0.15)
          << device << " " << outputs;
    }
  }
}

TEST(ProfileCost, CarriesTheH100ToTheH200ByTheDataSheetsWithinTenPercent) {
  const DeviceProfile h100 = Shipped("h100-sxm");
  const DeviceProfile h200 = Shipped("h200-sxm");
  Unseen all;
  for (const GemmTable& t : h200.gemm) {
    if (t.pass != QueryPass::kForward || t.dtype != QueryDtype::kBf16) continue;
    for (size_t i = 0; i < t.size(); ++i) {
      all.ops.push_back(GemmOf(t, i));
      all.us.push_back(t.us[i]);
    }
  }
  const ProfileCost costs(ClusterLike(h200), {}, h100);
  EXPECT_LE(MeanError(costs, all), 0.10);
}

TEST(ProfileCost, PredictsAttentionOfUnseenHeadsWithinTenPercent) {
  for (const char* device : {"h100-sxm", "b200-sxm", "a100-sxm"}) {
    for (const QueryMask mask : {QueryMask::kCausal, QueryMask::kFull}) {
      DeviceProfile profile = Shipped(device);
      const Unseen unseen = WithholdAttention(mask, &profile);
      if (unseen.ops.empty()) continue;  // No such table.
      const ProfileCost costs(ClusterLike(profile), {}, profile);
      EXPECT_LE(MeanError(costs, unseen), 0.10) << device << " " << Name(mask);
    }
  }
}

TEST(ProfileCost, AMeasuredPointIsItsOwnPrice) {
  const DeviceProfile profile = Shipped("h100-sxm");
  const ProfileCost costs(ClusterLike(profile), {}, profile);
  for (const GemmTable& t : profile.gemm) {
    for (size_t i = 0; i < t.size(); i += 997) {
      const OpPrice price = costs.Price(GemmOf(t, i));
      EXPECT_EQ(price.source, CostSource::kMeasured);
      EXPECT_NEAR(ToSeconds(price.time) * 1e6, t.us[i], 2e-3);
    }
  }
  const ClusterSpec other = H800Cluster();
  EXPECT_EQ(ProfileCost(other, {}, profile)
                .Price(GemmOf(profile.gemm.front(), 0))
                .source,
            CostSource::kInterpolated)
      << "another device's point";
}

TEST(ProfileCost, AnotherLayoutOfTheClusterPricesAsIfMadeAnew) {
  const DeviceProfile profile = Shipped("h100-sxm");
  const ClusterSpec cluster = ClusterLike(profile);
  auto like = std::make_unique<const ProfileCost>(
      cluster, ParallelLayout{.tp = 2, .dp = 4}, profile);
  for (const ParallelLayout& layout :
       {ParallelLayout{.tp = 8}, ParallelLayout{.tp = 2, .cp = 2, .dp = 2},
        ParallelLayout{.tp = 4, .pp = 2, .dp = 8}}) {
    const ProfileCost anew(cluster, layout, profile);
    auto shared = OpCostsForLayout(*like, layout);
    ASSERT_NE(shared, nullptr);
    for (const double bytes : {1e3, 1e6, 1e9}) {
      for (const GroupKind group :
           {GroupKind::kTensor, GroupKind::kContext, GroupKind::kData}) {
        const CollectiveOp op{.kind = Collective::kAllGather,
                              .group = group,
                              .size = 2,
                              .bytes = bytes};
        EXPECT_EQ(shared->Cost(op), anew.Cost(op));
      }
    }
    for (const double m : {100.0, 4096.0, 4097.0}) {
      const GemmOp gemm{.m = m, .n = 4096, .k = 1024};
      EXPECT_EQ(shared->Cost(gemm), anew.Cost(gemm));
      const MemoryOp memory{.bytes = m * 1e4};
      EXPECT_EQ(shared->Cost(memory), anew.Cost(memory));
    }
    // It outlives what it was made from.
    like.reset(static_cast<const ProfileCost*>(shared.release()));
  }
  EXPECT_EQ(OpCostsForLayout(RooflineCost(cluster, {}), {}), nullptr);
}

TEST(ProfileCost, WhatIsNotMeasuredFallsBackToTheRoofline) {
  const DeviceProfile profile = Shipped("h100-sxm");
  const ClusterSpec cluster = ClusterLike(profile);
  const ProfileCost costs(cluster, {}, profile);
  const RooflineCost roofline(cluster, {});
  const Op fp32 =
      GemmOp{.m = 512, .n = 512, .k = 512, .precision = Precision::kFp32};
  const Op convolution = FixedOp{.flops = 1e12, .bytes = 1e9};
  for (const Op& op : {fp32, convolution}) {
    EXPECT_EQ(costs.Price(op).source, CostSource::kRoofline);
    EXPECT_EQ(costs.Cost(op), roofline.Cost(op));
  }
}

TEST(ProfileCost, BeyondThePointsTheUtilisationIsHeld) {
  const DeviceProfile profile = Shipped("h100-sxm");
  const ProfileCost costs(ClusterLike(profile), {}, profile);
  GemmOp op{.m = 65536, .n = 8192, .k = 8192};
  const double once = ToSeconds(costs.Cost(op));
  op.m *= 8;
  EXPECT_NEAR(ToSeconds(costs.Cost(op)) / once, 8, 0.4);
}

TEST(ProfileCost, AnOperatorIsNeverShorterThanItsLeastTime) {
  const DeviceProfile profile = Shipped("h100-sxm");
  const auto costs =
      MakeOpCosts(ClusterLike(profile), {}, &profile, Duration(50'000));
  EXPECT_EQ(costs->Cost(GemmOp{.m = 8, .n = 128, .k = 128}), Duration(50'000));
  EXPECT_EQ(costs->Cost(MemoryOp{}), kZero) << "without work";
}

TEST(ProfileCost, ADerivedDeviceIsScaledByItsRates) {
  const DeviceProfile h100 = Shipped("h100-sxm");
  const DeviceProfile h20 = Shipped("h20");
  EXPECT_EQ(h20.derived_from, "h100-sxm");
  ClusterSpec cluster = ClusterLike(h20);
  cluster.device.bf16 = {148e12};
  cluster.device.memory_bandwidth = {4e12};
  const GemmOp op{.m = 8192, .n = 8192, .k = 8192};
  const double ratio =
      ToSeconds(ProfileCost(cluster, {}, h20).Cost(op)) /
      ToSeconds(ProfileCost(ClusterLike(h100), {}, h100).Cost(op));
  EXPECT_NEAR(ratio, 989.0 / 148, 0.7);
}

TEST(ProfileCost, CommunicationSlowsOverlappedComputeAsTheProfileSays) {
  DeviceProfile profile = Shipped("h100-sxm");
  const double slow = profile.collectives.compute_slowdown;
  EXPECT_NEAR(slow, 132.0 / 112, 1e-4);
  const ProfileCost shipped(ClusterLike(profile), {}, profile);
  // In 4 ms overlapped with communication, compute gets as far as in 4 / slow
  // ms alone.
  EXPECT_EQ(shipped.Overlap(Milliseconds(10), Milliseconds(4)),
            Nanoseconds(std::llround(1e6 * (4 + 10 - 4 / slow))));
  // Compute that ends first shows nothing of it.
  EXPECT_EQ(shipped.Overlap(Milliseconds(3), Milliseconds(4)), Milliseconds(4));
  EXPECT_EQ(shipped.Overlap(Milliseconds(3), kZero), Milliseconds(3));
  profile.collectives.compute_slowdown = 1;
  const ProfileCost off(ClusterLike(profile), {}, profile);
  const RooflineCost roofline(ClusterLike(profile), {});
  Random random(5);
  for (int k = 0; k < 1000; ++k) {
    const Duration a = Nanoseconds(random.Below(1'000'000'000));
    const Duration b = Nanoseconds(random.Below(1'000'000'000));
    EXPECT_EQ(off.Overlap(a, b), std::max(a, b));
    EXPECT_EQ(roofline.Overlap(a, b), std::max(a, b));
    EXPECT_GE(shipped.Overlap(a, b), std::max(a, b));
    EXPECT_LE(ToSeconds(shipped.Overlap(a, b)),
              ToSeconds(std::max(a, b)) * slow + 1e-8);
  }
}

TEST(ProfileCost, OnlyPassesThatOverlapCommunicationAreSlowedDown) {
  JobSpec job = JobOf({EveryLayerKind()}, {.tp = 4});
  DeviceProfile profile = Shipped("h100-sxm");
  const auto cost_of = [&](double slowdown, int32_t layer) {
    profile.collectives.compute_slowdown = slowdown;
    const StageCostModel model(
        job, MakeOpCosts(job.cluster, job.parallel, &profile));
    Stage stage;
    stage.module = ModuleId(0);
    stage.first_layer = LayerId(layer);
    stage.num_layers = 1;
    return model.Cost(stage, Sequences(2, 2048), true);
  };
  int slowed = 0;
  const auto layers =
      static_cast<int32_t>(job.model.modules[ModuleId(0)].layers.size());
  for (int32_t layer = 0; layer < layers; ++layer) {
    SCOPED_TRACE(layer);
    const StageCost off = cost_of(1, layer);
    const StageCost on = cost_of(1.2, layer);
    // Tensor parallelism hides nothing of the forward.
    EXPECT_EQ(on.forward, off.forward);
    EXPECT_GE(on.weight_grad, off.weight_grad);
    EXPECT_LE(on.weight_grad, 1.2 * off.weight_grad);
    slowed += on.weight_grad > off.weight_grad;
    StageCost same = on;
    same.forward = off.forward;
    same.backward = off.backward;
    same.weight_grad = off.weight_grad;
    EXPECT_GE(on.fused, off.fused);
    EXPECT_LE(on.fused, 1.2 * off.fused);
    same.fused = off.fused;
    // Less other compute finds room while collectives run.
    EXPECT_LE(on.backward_gap, off.backward_gap);
    EXPECT_LE(on.fused_gap, off.fused_gap);
    same.backward_gap = off.backward_gap;
    same.fused_gap = off.fused_gap;
    // They are waited for as long, up to rounding, unless compute that overlaps
    // with them lasts longer.
    const Duration rounding = Nanoseconds(10);
    EXPECT_GE(on.forward_compute + rounding, off.forward_compute);
    EXPECT_LE(on.forward_compute, off.forward_compute + rounding);
    EXPECT_GE(on.backward_compute + rounding, off.backward_compute);
    EXPECT_LE(on.backward_compute, off.backward_compute + rounding);
    EXPECT_GE(on.fused_compute + rounding, off.fused_compute);
    EXPECT_LE(on.fused_compute, 1.2 * off.fused_compute + rounding);
    same.forward_compute = off.forward_compute;
    same.backward_compute = off.backward_compute;
    same.fused_compute = off.fused_compute;
    EXPECT_EQ(same, off);
  }
  EXPECT_GT(slowed, 0);
}

TEST(ProfileCost, PricesAreEqualFromManyThreads) {
  const DeviceProfile profile = Shipped("a100-sxm");
  const ProfileCost shared(ClusterLike(profile), {}, profile);
  std::vector<std::vector<Duration>> seen(4);
  std::vector<std::thread> threads;
  for (std::vector<Duration>& times : seen) {
    threads.emplace_back([&] {
      for (int m = 1; m < 400; ++m) {
        times.push_back(shared.Cost(GemmOp{.m = 16.0 * m, .n = 768, .k = 999}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& times : seen) EXPECT_EQ(times, seen.front());
}

TEST(ProfileCost, StructureDoesNotDependOnTheSourceOfCosts) {
  JobSpec job = JobOf({EveryLayerKind()}, {});
  const DeviceProfile h100 = Shipped("h100-sxm");
  const DeviceProfile a100 = Shipped("a100-sxm");
  std::vector<std::unique_ptr<StageCostModel>> models;
  for (const DeviceProfile* profile :
       std::vector<const DeviceProfile*>{nullptr, &h100, &a100}) {
    models.push_back(std::make_unique<StageCostModel>(
        job, MakeOpCosts(job.cluster, job.parallel, profile)));
  }
  const ModuleId module(0);
  const auto layers =
      static_cast<int32_t>(job.model.modules[module].layers.size());
  for (int32_t first = 0; first < layers; ++first) {
    Stage stage;
    stage.module = module;
    stage.first_layer = LayerId(first);
    stage.num_layers = 1;
    const WorkShape shape = Sequences(2, 1000 + 512 * first);
    const StageCost want = models.front()->Cost(stage, shape, true);
    for (const auto& model : models) {
      const StageCost cost = model->Cost(stage, shape, true);
      EXPECT_EQ(cost.activations, want.activations) << first;
      EXPECT_EQ(cost.output, want.output) << first;
      EXPECT_EQ(cost.input, want.input) << first;
      EXPECT_EQ(cost.model_flops.count, want.model_flops.count) << first;
      EXPECT_EQ(cost.forward > kZero, want.forward > kZero) << first;
    }
  }
}

TEST(ProfileCollectives, StepsArePricedByTheCurvesWithTheirSource) {
  const DeviceProfile h100 = Shipped("h100-sxm");
  ClusterSpec cluster = H800Cluster();
  cluster.device.name = "h100-sxm";
  cluster.intra_node = {
      .latency = Microseconds(h100.collectives.node_latency_us),
      .bandwidth = {h100.collectives.node_bytes_per_second}};
  const ParallelLayout layout{.tp = 8, .pp = 2, .dp = 4};
  const CollectiveCosts curves(h100.collectives);
  const CollectiveOp gather{.kind = Collective::kAllGather,
                            .group = GroupKind::kTensor,
                            .size = 8,
                            .bytes = 64 << 20};
  const auto alone = [&](double bytes) {
    return curves.Time({.op = OpType::kAllGather, .bytes = bytes, .ranks = 8})
        .seconds;
  };
  const OpPrice measured = ProfileCost(cluster, layout, h100).Price(gather);
  EXPECT_EQ(measured.source, CostSource::kMeasured);
  EXPECT_NEAR(ToSeconds(measured.time), alone(64 << 20), 2e-9);
  CollectiveOp between = gather;
  between.bytes = 50e6;
  const OpPrice inter = ProfileCost(cluster, layout, h100).Price(between);
  EXPECT_EQ(inter.source, CostSource::kInterpolated);
  EXPECT_NEAR(ToSeconds(inter.time), alone(50e6), 2e-9);
  // Half the link: slower, but the latency's part does not double.
  cluster.intra_node.bandwidth.bytes_per_second /= 2;
  const OpPrice narrow = ProfileCost(cluster, layout, h100).Price(gather);
  EXPECT_EQ(narrow.source, CostSource::kInterpolated);
  EXPECT_GT(ToSeconds(narrow.time), 1.5 * ToSeconds(measured.time));
  EXPECT_LE(ToSeconds(narrow.time), 2 * ToSeconds(measured.time) + 2e-9);
  // Over the nodes' cards by the model; shared cards carry less.
  const CollectiveOp reduce{.kind = Collective::kReduceScatter,
                            .group = GroupKind::kData,
                            .size = 4,
                            .bytes = 1 << 30};
  const OpPrice wide = ProfileCost(cluster, layout, h100).Price(reduce);
  EXPECT_EQ(wide.source, CostSource::kRoofline);
  cluster.nics_per_node = 2;
  const OpPrice shared = ProfileCost(cluster, layout, h100).Price(reduce);
  EXPECT_NEAR(ToSeconds(shared.time), 4 * ToSeconds(wide.time),
              0.1 * ToSeconds(shared.time));
}

TEST(MissingLookups, NamesWhatTheJobAsksForInVainAndNothingElse) {
  const JobSpec job = JobOf(
      {{EmbeddingLayer(), Llama3Block()}, {Llama3Block(), LossHeadLayer()}},
      {.tp = 4, .pp = 2, .dp = 4});
  const DeviceProfile h100 = Shipped("h100-sxm");
  const ProfileCost measured(job.cluster, job.parallel, h100);
  const RooflineCost rates(job.cluster, job.parallel);
  const std::vector<std::string> some = MissingLookups(job, measured);
  const std::vector<std::string> all = MissingLookups(job, rates);
  EXPECT_LT(some.size(), all.size());
  const auto has = [](const std::vector<std::string>& lines,
                      const std::string& start) {
    return std::any_of(lines.begin(), lines.end(), [&](const auto& line) {
      return line.rfind(start, 0) == 0 && line.find(": ") != line.npos;
    });
  };
  EXPECT_TRUE(has(all, "gemm forward bf16"));
  EXPECT_TRUE(has(all, "all_gather over 4 GPUs"));
  EXPECT_FALSE(has(some, "gemm forward bf16"));
  EXPECT_TRUE(has(some, "optimizer"));
  EXPECT_FALSE(has(all, "gemm forward fp8")) << "the job has none";
}

TEST(MissingMeasurements, NamesEveryKindAndItsFallback) {
  EXPECT_EQ(MissingMeasurements(nullptr).size(), 1u);
  const DeviceProfile nothing;
  const std::vector<std::string> all = MissingMeasurements(&nothing);
  const DeviceProfile h100 = Shipped("h100-sxm");
  const std::vector<std::string> some = MissingMeasurements(&h100);
  EXPECT_LT(some.size(), all.size());
  bool gradient = false;
  for (const std::string& line : some) {
    EXPECT_NE(line.find(": "), std::string::npos) << line;
    EXPECT_NE(line.rfind("gemm forward bf16", 0), 0u) << line;
    gradient = gradient || line.rfind("gemm weight_grad bf16", 0) == 0;
  }
  EXPECT_TRUE(gradient) << "the H100 has no measured gradients";
}

TEST(FactorGrid, OnePointHoldsEverywhereNearAndFadesFarAway) {
  const FactorGrid grid({{{0, 0, 0, 0}, 1.0}, {{20, 0, 0, 0}, 0.0}},
                        {.lengths = {1, 1, 1, 1}, .prior = 0.1});
  EXPECT_NEAR(grid.LogFactor({0, 0, 0, 0}), 1 / 1.1, 1e-6);
  EXPECT_NEAR(grid.LogFactor({-5, 9, 9, 9}), 1 / 1.1, 1e-6) << "held";
  EXPECT_NEAR(grid.LogFactor({10, 0, 0, 0}), 0.5 / 1.1, 1e-6);
  EXPECT_EQ(FactorGrid().LogFactor({1, 2, 3, 4}), 0);
}

TEST(FactorGrid, WithManyKnotsItIsTheKernelMeanOfThePoints) {
  std::vector<FactorGrid::Point> points;
  for (int x = 0; x < 4; ++x) {
    for (int y = 0; y < 3; ++y) {
      points.push_back({{x * 1.5, y * 0.7, 0, 0}, std::sin(x * 3.0 + y)});
    }
  }
  const FactorGrid grid(points, {.lengths = {0.6, 0.4, 1, 1}, .prior = 0.05});
  for (const FactorGrid::Point& at : points) {
    double sum = 0;
    double weights = 0.05;
    for (const FactorGrid::Point& p : points) {
      const double w = std::exp(-std::abs(p.at[0] - at.at[0]) / 0.6 -
                                std::abs(p.at[1] - at.at[1]) / 0.4);
      sum += w * p.log_factor;
      weights += w;
    }
    EXPECT_NEAR(grid.LogFactor(at.at), sum / weights, 1e-9);
  }
}

// Queries are priced as the layers of jobs are.
TEST(OpsOfQueries, ResultsHaveTheTypeOfTheLayer) {
  const auto result_bytes = [](QueryDtype dtype, QueryPass pass) {
    OpQuery query{.op = OpType::kGemm, .pass = pass, .dtype = dtype};
    query.m = query.n = query.k = 64;
    return std::get<GemmOp>(OpsOf(query).at(0)).result_bytes;
  };
  for (const QueryPass pass : {QueryPass::kForward, QueryPass::kInputGrad}) {
    EXPECT_EQ(result_bytes(QueryDtype::kFp32, pass), 4);
    EXPECT_EQ(result_bytes(QueryDtype::kBf16, pass), 2);
    EXPECT_EQ(result_bytes(QueryDtype::kFp8, pass), 2);
  }
  EXPECT_EQ(result_bytes(QueryDtype::kFp32, QueryPass::kWeightGrad), 8);
}

}  // namespace
}  // namespace pipeloom::emulator
