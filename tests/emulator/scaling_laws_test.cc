// Laws that stages of every kind of layer keep under random layouts, setups and
// sizes: none needs to know what an operator costs.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

struct Case {
  JobSpec job{};
  int64_t sequences = 1;
  int64_t length = 1;
  std::string name{};
};

// Two layers of one kind, in a random job of up to 64 GPUs.
Case RandomCase(const LayerSpec& layer, uint64_t seed) {
  Random random(seed);
  const auto power = [&](uint64_t most) {
    return int32_t{1} << static_cast<int32_t>(random.Below(most));
  };
  ParallelLayout parallel{.tp = power(4), .cp = power(2), .dp = power(3)};
  parallel.ep = std::min(power(3), parallel.dp);
  parallel.expert_tp = static_cast<int32_t>(random.Below(2));
  parallel.context = static_cast<ContextParallelism>(random.Below(3));
  Case made{.job = JobOf({{layer, layer}}, parallel)};
  made.job.setup = SetupOf(static_cast<Framework>(random.Below(4)));
  made.job.setup.host_per_kernel = kZero;
  made.job.setup.host_per_step = kZero;
  made.job.setup.overlap = static_cast<CommunicationOverlap>(random.Below(3));
  made.job.training.optimizer_sharding =
      static_cast<OptimizerSharding>(random.Below(4));
  made.sequences = random.Between(1, 4);
  made.length = 256 * random.Between(1, 16);
  made.name = absl::StrCat("layer ", layer.name, " kind ",
                           static_cast<int>(layer.kind), ", seed ", seed);
  return made;
}

StageCost CostOf(const Case& given) {
  return StageCostModel(given.job).Cost(
      StageOf(2), Sequences(given.sequences, given.length), true);
}

std::vector<Duration> PassesOf(const StageCost& cost) {
  return {cost.forward, cost.backward, cost.weight_grad, cost.fused};
}

// Calls visit(case) for some random cases of every kind of layer.
template <typename Visit>
void ForEachCase(const Visit& visit) {
  uint64_t seed = 0;
  for (const LayerSpec& layer : EveryLayerKind()) {
    for (int i = 0; i < 12; ++i) {
      const Case made = RandomCase(layer, ++seed);
      SCOPED_TRACE(made.name);
      visit(made);
    }
  }
}

// A rate, or the inverse of a latency.
using Change = void (*)(ClusterSpec&, double);
constexpr Change kRates[] = {
    [](ClusterSpec& c, double f) { c.device.bf16.flops_per_second *= f; },
    [](ClusterSpec& c, double f) { c.device.fp8.flops_per_second *= f; },
    [](ClusterSpec& c, double f) {
      c.device.memory_bandwidth.bytes_per_second *= f;
    },
    [](ClusterSpec& c, double f) {
      c.intra_node.bandwidth.bytes_per_second *= f;
    },
    [](ClusterSpec& c, double f) {
      c.inter_node.bandwidth.bytes_per_second *= f;
    },
    [](ClusterSpec& c, double f) {
      c.intra_node.latency = Seconds(ToSeconds(c.intra_node.latency) / f);
    },
    [](ClusterSpec& c, double f) {
      c.inter_node.latency = Seconds(ToSeconds(c.inter_node.latency) / f);
    },
    [](ClusterSpec& c, double f) {
      c.device.kernel_overhead =
          Seconds(ToSeconds(c.device.kernel_overhead) / f);
    }};

TEST(ScalingLaws, TwiceAllRatesIsHalfTheTime) {
  ForEachCase([](const Case& given) {
    Case twice = given;
    for (const Change change : kRates) change(twice.job.cluster, 2);
    const std::vector<Duration> slow = PassesOf(CostOf(given));
    const std::vector<Duration> fast = PassesOf(CostOf(twice));
    for (size_t p = 0; p < slow.size(); ++p) {
      // Each operator's time is rounded.
      EXPECT_NEAR(ToSeconds(fast[p]), ToSeconds(slow[p]) / 2, 1e-6) << p;
    }
  });
}

TEST(ScalingLaws, NoRateThatRisesMakesAPassLonger) {
  ForEachCase([](const Case& given) {
    const std::vector<Duration> before = PassesOf(CostOf(given));
    for (const Change change : kRates) {
      Case faster = given;
      change(faster.job.cluster, 1.25);
      const std::vector<Duration> after = PassesOf(CostOf(faster));
      for (size_t p = 0; p < before.size(); ++p) {
        EXPECT_LE(after[p], before[p] + Nanoseconds(100)) << "pass " << p;
      }
    }
  });
}

TEST(ScalingLaws, FewerTokensNeverTakeLongerOrMoreMemory) {
  ForEachCase([](const Case& given) {
    Case fewer = given;
    fewer.length = given.length * 3 / 4;
    const StageCost large = CostOf(given);
    const StageCost small = CostOf(fewer);
    const std::vector<Duration> long_passes = PassesOf(large);
    const std::vector<Duration> passes = PassesOf(small);
    for (size_t p = 0; p < passes.size(); ++p) {
      EXPECT_LE(passes[p], long_passes[p]) << p;
    }
    EXPECT_LE(small.activations, large.activations);
    EXPECT_LE(small.output, large.output);
    EXPECT_LE(small.model_flops.count, large.model_flops.count);
  });
}

TEST(ScalingLaws, NoStageIsFasterThanItsFastestOperators) {
  ForEachCase([](const Case& given) {
    const StageCost cost = CostOf(given);
    const DeviceSpec& device = given.job.cluster.device;
    // No operator is faster: 1.15 is the gain of attention with wide heads.
    const double rate =
        device.bf16.flops_per_second *
        std::max(device.gemm_efficiency, 1.15 * device.attention_efficiency);
    const double least =
        cost.model_flops.count / rate / given.job.parallel.gpus_per_rank();
    EXPECT_GE(ToSeconds(cost.forward + cost.fused), least);
  });
}

}  // namespace
}  // namespace pipeloom::emulator
