// Convolutional parts of shipped models against sums known from elsewhere.
#include <string>

#include "emulator/ops/op_graph.h"
#include "formats/job/spec_loader.h"
#include "gtest/gtest.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

struct Work {
  double products = 0;
  double attention = 0;
};

Work ForwardWork(const ModuleSpec& module, const WorkShape& shape,
                 const std::string& prefix) {
  Work work;
  for (const LayerSpec& layer : module.layers) {
    if (layer.name.rfind(prefix, 0) != 0) continue;
    for (const OpStep& step : BuildLayerOps(layer, shape, {}, {}).forward) {
      for (const Op& op : step.compute) {
        if (const auto* gemm = std::get_if<GemmOp>(&op)) {
          work.products += gemm->flops();
        }
        if (const auto* attention = std::get_if<AttentionOp>(&op)) {
          work.attention += attention->flops;
        }
      }
    }
  }
  return work;
}

// One image of `side` latents a side.
WorkShape Latents(int64_t side) {
  const auto tokens = static_cast<double>(side * side);
  return {.instances = 1,
          .tokens = side * side,
          .output_tokens = side * side,
          .squared_tokens = tokens * tokens};
}

// 339 G multiply-adds of Stable Diffusion's U-Net are its published figure at
// 512 px; the other sizes are sums over its layers made independently.
TEST(ConvolutionWalk, StableDiffusionUNetDoesItsPublishedWork) {
  ASSERT_OK_AND_ASSIGN(
      const ModelSpec model,
      formats::LoadModel("disttrain-9b", formats::kDataDir, formats::ReadFile));
  const ModuleSpec& unet = model.modules[ModuleId(3)];
  int64_t parameters = 0;
  for (const LayerSpec& layer : unet.layers) {
    if (layer.name.rfind("unet_", 0) == 0) parameters += Parameters(layer);
  }
  EXPECT_EQ(parameters, 865'910'724);
  const struct {
    int64_t side;
    double products, attention;
  } cases[] = {{32, 0.172, 0.009},
               {64, 0.678, 0.126},
               {96, 1.521, 0.628},
               {128, 2.701, 1.974}};
  for (const auto& c : cases) {
    const Work work = ForwardWork(unet, Latents(c.side), "unet_");
    EXPECT_NEAR(work.products / 1e12, c.products, 0.0006) << c.side;
    EXPECT_NEAR(work.attention / 1e12, c.attention, 0.0006) << c.side;
  }
}

TEST(ConvolutionWalk, StableDiffusionEncoderDoesItsWork) {
  ASSERT_OK_AND_ASSIGN(
      const ModelSpec model,
      formats::LoadModel("disttrain-9b", formats::kDataDir, formats::ReadFile));
  const ModuleSpec& vae = model.modules[ModuleId(1)];
  EXPECT_EQ(Parameters(vae), 83'653'863);
  const Work work = ForwardWork(vae, Latents(64), "");
  EXPECT_NEAR((work.products + work.attention) / 1e12, 1.117, 0.001);
}

}  // namespace
}  // namespace pipeloom::emulator
