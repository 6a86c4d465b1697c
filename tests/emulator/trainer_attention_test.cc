// The fused attention of trainers, where the profile has another kernel's.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/framework/framework_price.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/profile_reader.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/formats/data_dir.h"

namespace pipeloom::emulator {
namespace {

ClusterSpec ClusterOf(const std::string& name) {
  auto cluster =
      formats::LoadCluster(name, formats::kDataDir, formats::ReadFile);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *cluster : ClusterSpec();
}

DeviceProfile ProfileOf(const std::string& device) {
  const std::string path =
      absl::StrCat(formats::kDataDir, "/profiles/", device, ".json");
  const auto text = formats::ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  auto profile = formats::ParseDeviceProfile(text.value_or(""), path);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return profile.ok() ? *profile : DeviceProfile();
}

AttentionOp Call(double sequences, double length, double heads, double kv_heads,
                 int64_t head_dim, bool causal) {
  const double tokens = sequences * length;
  return {
      .flops = 4 * heads * static_cast<double>(head_dim) * tokens * length *
               (causal ? 0.5 : 1),
      .bytes = 4 * tokens * (heads + kv_heads) * static_cast<double>(head_dim),
      .mean_length = length,
      .head_dim = head_dim,
      .causal = causal,
      .tokens = tokens,
      .heads = heads,
      .kv_heads = kv_heads};
}

// A GPU with its shipped profile.
class Gpu {
 public:
  // `forward`: a factor on what its profile says of forward calls.
  explicit Gpu(const std::string& name, double forward = 1)
      : cluster_(ClusterOf(name)),
        profile_(Changed(ProfileOf(name), forward)),
        costs_(cluster_, parallel_, profile_) {}

  // Microseconds of a call in a step of Megatron-Core.
  double InStep(const AttentionOp& op,
                AttentionKernel kernel = AttentionKernel::kFused) const {
    const LayerSpec layer = Llama3Block();
    const WorkShape shape = Sequences(1, 1024);
    const TrainingSetup setup{.attention = kernel};
    const FrameworkPrices prices(layer, shape, parallel_, setup, cluster_,
                                 cluster_.device, costs_);
    return ToMicroseconds(prices.Cost(op));
  }

 private:
  static DeviceProfile Changed(DeviceProfile profile, double forward) {
    for (AttentionTable& table : profile.attention) {
      if (table.pass != QueryPass::kForward) continue;
      for (double& us : table.us) us *= forward;
    }
    return profile;
  }

  ParallelLayout parallel_{};
  ClusterSpec cluster_;
  DeviceProfile profile_;
  ProfileCost costs_;
};

// cuDNN's forward, in a row at full power, as torch calls it
// (workloads/measured/h200-sxm/attention.csv).
TEST(TrainersAttention, ForwardOnHopperIsNotThatOfAnInferenceEngine) {
  struct Case {
    double sequences, length, heads, kv_heads;
    int64_t head_dim;
    bool causal;
    double measured_us;
  };
  const std::vector<Case> cases = {{16, 1024, 32, 32, 64, true, 201.6},
                                   {8, 2048, 32, 32, 64, true, 347.6},
                                   {2, 8192, 32, 32, 64, true, 1227.8},
                                   {16, 1024, 32, 32, 64, false, 311.4},
                                   {32, 512, 32, 8, 128, true, 182.3},
                                   {16, 1024, 32, 8, 128, true, 290.7},
                                   {4, 4096, 32, 8, 128, true, 914.8},
                                   {1, 16384, 32, 32, 128, true, 3452.8},
                                   {8, 2048, 16, 16, 72, false, 412.6}};
  const Gpu h200("h200-sxm");
  for (const Case& c : cases) {
    const double us = h200.InStep(
        Call(c.sequences, c.length, c.heads, c.kv_heads, c.head_dim, c.causal));
    EXPECT_GT(us / c.measured_us, 0.8)
        << c.sequences << " x " << c.length << ", head " << c.head_dim;
    EXPECT_LT(us / c.measured_us, 1.55)
        << c.sequences << " x " << c.length << ", head " << c.head_dim;
  }
}

// A profile that was calibrated with another kernel, as fast or faster, counts.
TEST(TrainersAttention, FasterMeasuredForwardsKeepTheirTime) {
  const AttentionOp op = Call(2, 8192, 32, 8, 128, true);
  const double shipped = Gpu("h200-sxm").InStep(op);
  const double faster = Gpu("h200-sxm", 0.8).InStep(op);
  EXPECT_NEAR(faster / shipped, 0.8, 0.04);
}

// The same kernel with a mask leaves out half of the pairs.
TEST(TrainersAttention, LeavingPairsOutNeverTakesLonger) {
  for (const char* name : {"a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm"}) {
    const Gpu gpu(name);
    for (const int64_t head_dim : {64, 128}) {
      for (double length = 256; length <= 16384; length *= 2) {
        for (const double sequences : {1.0, 8.0, 64.0}) {
          for (const bool backward : {false, true}) {
            AttentionOp causal =
                Call(sequences, length, 12, 12, head_dim, true);
            AttentionOp full = Call(sequences, length, 12, 12, head_dim, false);
            causal.backward = full.backward = backward;
            if (backward) {
              causal.flops *= 2.5;
              full.flops *= 2.5;
            }
            EXPECT_LE(gpu.InStep(causal), 1.0001 * gpu.InStep(full))
                << name << ", " << sequences << " x " << length << ", head "
                << head_dim << (backward ? ", backward" : "");
          }
        }
      }
    }
  }
}

// Products of an H20 are 0.15 as fast as an H100's, so that kernels with older
// instructions do not lose to its own.
TEST(TrainersAttention, FlashAttention2ReachesTheReducedRateOfAnH20) {
  const AttentionOp op = Call(2, 8192, 32, 8, 128, true);
  const Gpu h20("h20");
  EXPECT_LT(h20.InStep(op, AttentionKernel::kFlash2), 1.2 * h20.InStep(op));
  const Gpu h100("h100-sxm");
  EXPECT_GT(h100.InStep(op, AttentionKernel::kFlash2), 1.5 * h100.InStep(op));
}

}  // namespace
}  // namespace pipeloom::emulator
