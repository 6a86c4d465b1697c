// Time of looking up the cost of one operator: seen before (cached) and new.
#include <cstdint>

#include "benchmark/benchmark.h"
#include "emulator/cost/profile_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {
namespace {

// Returns a profile with as many points as a shipped one; its times are made
// up.
DeviceProfile MadeUp() {
  DeviceProfile profile;
  profile.device = "made-up";
  profile.rates = {.bf16_flops_per_second = 989e12,
                   .fp8_flops_per_second = 1978e12,
                   .bytes_per_second = 3.35e12};
  GemmTable gemm;
  for (int64_t n = 256; n <= 65536; n = n * 3 / 2) {
    for (int64_t k = 256; k <= 65536; k = k * 3 / 2) {
      for (int64_t m = 1; m <= 32768; m = m * 5 / 4 + 1) {
        gemm.n.push_back(n);
        gemm.k.push_back(k);
        gemm.m.push_back(m);
        gemm.us.push_back(3 + static_cast<double>(m) * static_cast<double>(n) *
                                  static_cast<double>(k) / 3.5e8);
      }
    }
  }
  gemm.fit = {0.85, 0.75, 0.6, 0.45, 0.3, 100, 0.8, 2, 2, 3};
  profile.gemm.push_back(gemm);
  AttentionTable attention;
  for (int64_t seq = 128; seq <= 65536; seq *= 2) {
    for (int64_t heads = 8; heads <= 64; heads *= 2) {
      attention.batch.push_back(1);
      attention.seq.push_back(seq);
      attention.heads.push_back(heads);
      attention.kv_heads.push_back(8);
      attention.head_dim.push_back(128);
      attention.value_dim.push_back(128);
      attention.us.push_back(5 + static_cast<double>(seq * heads) * 1e-4 *
                                     static_cast<double>(seq));
    }
  }
  attention.fit = {0.5, 0.6, 0.5, 0.3, 0.5, 128, 0.7, 4, 3};
  profile.attention.push_back(attention);
  return profile;
}

ClusterSpec Cluster() {
  ClusterSpec cluster;
  cluster.device.name = "made-up";
  cluster.gpus_per_node = 8;
  return cluster;
}

void BM_CachedGemm(benchmark::State& state) {
  const ProfileCost costs(Cluster(), {}, MadeUp());
  const Op op = GemmOp{.m = 3000, .n = 5000, .k = 7000};
  for (auto _ : state) benchmark::DoNotOptimize(costs.Cost(op));
}
BENCHMARK(BM_CachedGemm);

void BM_NewGemm(benchmark::State& state) {
  const ProfileCost costs(Cluster(), {}, MadeUp());
  GemmOp op{.m = 3000, .n = 5000, .k = 7000};
  for (auto _ : state) {
    op.m += 1;
    benchmark::DoNotOptimize(costs.Cost(op));
  }
}
BENCHMARK(BM_NewGemm);

void BM_NewAttention(benchmark::State& state) {
  const ProfileCost costs(Cluster(), {}, MadeUp());
  AttentionOp op{.flops = 1e12,
                 .bytes = 1e8,
                 .mean_length = 4096,
                 .head_dim = 128,
                 .causal = true,
                 .tokens = 8192,
                 .heads = 32,
                 .kv_heads = 8};
  for (auto _ : state) {
    op.mean_length += 0.01;
    benchmark::DoNotOptimize(costs.Cost(op));
  }
}
BENCHMARK(BM_NewAttention);

}  // namespace
}  // namespace pipeloom::emulator
