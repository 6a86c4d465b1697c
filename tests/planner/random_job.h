// Random training jobs with a batch each, for tests that plan them with every
// strategy: models of one to four modules, all sizes of the parallel layout,
// steps with and without images, clips and sound.
#ifndef PIPELOOM_TESTS_PLANNER_RANDOM_JOB_H_
#define PIPELOOM_TESTS_PLANNER_RANDOM_JOB_H_

#include <cstdint>
#include <string>
#include <utility>

#include "base/random.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::testing {

struct RandomJobCase {
  JobSpec job{};
  BatchMetadata batch{};
};

struct RandomJobOptions {
  // The step's microbatches and the job's ranks at most.
  int32_t most_microbatches = 12;
  int32_t most_ranks = 8;
  int32_t most_layers = 10;  // Layers of one module.
};

namespace random_job_internal {

inline LayerSpec Block(Random& random, int64_t hidden, AttentionKind kind) {
  LayerSpec layer;
  layer.kind = LayerKind::kTransformer;
  layer.name = "block";
  layer.hidden = hidden;
  layer.attention = {.kind = kind,
                     .heads = hidden / 64,
                     .kv_heads = hidden / 64,
                     .head_dim = 64};
  layer.ffn = {.hidden = random.Between(2, 5) * hidden,
               .gated = random.Below(2) == 0};
  layer.vector_parameters = 2 * hidden;
  return layer;
}

inline LayerSpec Linear(std::string name, int64_t in, int64_t out,
                        bool on_output) {
  LayerSpec layer;
  layer.kind = LayerKind::kLinears;
  layer.name = std::move(name);
  layer.hidden = out;
  layer.linears = {{.in = in, .out = out}};
  layer.on_output_tokens = on_output;
  return layer;
}

inline LayerSpec Vocab(LayerKind kind, std::string name, int64_t hidden) {
  LayerSpec layer;
  layer.kind = kind;
  layer.name = std::move(name);
  layer.hidden = hidden;
  layer.vocab = 32000;
  return layer;
}

inline ModuleSpec Encoder(Random& random, Modality modality, int32_t most,
                          int64_t backbone_width) {
  // All widths are multiples of 64 x 8 heads, for any tp up to 8.
  const int64_t width = 512 * random.Between(1, 2);
  ModuleSpec module;
  module.name = modality == Modality::kImage   ? "vision"
                : modality == Modality::kVideo ? "video"
                                               : "audio";
  module.role = ModuleRole::kEncoder;
  module.layers.push_back(Linear("patches", 1024, width, false));
  const auto layers = random.Between(1, most);
  for (int64_t i = 0; i < layers; ++i) {
    module.layers.push_back(Block(random, width, AttentionKind::kFull));
  }
  module.layers.push_back(Linear("projector", width, backbone_width, true));
  TokenRule rule;
  rule.modality = modality;
  if (modality == Modality::kAudio) {
    rule.kind = TokenRuleKind::kAudioRate;
    rule.tokens_per_second = 50;
    rule.output_tokens_per_second = 12.5;
  } else if (modality == Modality::kVideo) {
    rule.kind = TokenRuleKind::kLatent;
    rule.spatial_stride = 32;
    rule.frame_group = 8;
    rule.fps = 8;
    rule.max_seconds = 4;
    rule.default_width = 640;
    rule.default_height = 360;
  } else {
    rule.kind = TokenRuleKind::kFixedSquare;
    rule.side = 448;
    rule.patch = 14;
    rule.merge = 4;
  }
  module.token_rules = {rule};
  return module;
}

}  // namespace random_job_internal

// Passes ValidateJobSpec; its memory limit is the device's 512 GiB.
inline RandomJobCase RandomJob(uint64_t seed,
                               const RandomJobOptions& options = {}) {
  namespace in = random_job_internal;
  Random random(seed ^ 0x66616972u);
  RandomJobCase made;
  JobSpec& job = made.job;
  job.name = "random";
  const int64_t width = 512 * random.Between(1, 4);
  constexpr Modality kModalities[] = {Modality::kImage, Modality::kVideo,
                                      Modality::kAudio};
  bool has[3] = {false, false, false};
  for (int i = 0; i < 3; ++i) {
    has[i] = random.Below(i == 0 ? 2 : 3) == 0;
    if (!has[i]) continue;
    job.model.modules.push_back(
        in::Encoder(random, kModalities[i], options.most_layers, width));
  }
  const ModuleId backbone(job.model.modules.size());
  for (ModuleId m(0); m < backbone; m = ModuleId(m.value() + 1)) {
    job.model.edges.push_back({.from = m, .to = backbone});
  }
  ModuleSpec body;
  body.name = "backbone";
  body.layers.push_back(in::Vocab(LayerKind::kEmbedding, "embedding", width));
  const auto layers = random.Between(1, options.most_layers);
  for (int64_t i = 0; i < layers; ++i) {
    body.layers.push_back(in::Block(random, width, AttentionKind::kCausal));
  }
  body.layers.push_back(in::Vocab(LayerKind::kLossHead, "loss_head", width));
  job.model.modules.push_back(std::move(body));
  job.model.name = "random";

  DeviceSpec& device = job.cluster.device;
  device.name = "test-gpu";
  device.bf16 = {100e12};
  device.memory = Bytes(int64_t{512} << 30);
  device.memory_bandwidth = {1e12};
  device.gemm_efficiency = 0.75;
  device.attention_efficiency = 0.5;
  device.memory_efficiency = 0.8;
  device.kernel_overhead = Microseconds(4);
  device.host_bandwidth = {25e9};
  job.cluster.name = "test";
  job.cluster.num_nodes = 8;
  job.cluster.gpus_per_node = 8;
  // From links that hide nothing to such that cost nothing.
  constexpr double kLinks[] = {1e9, 20e9, 160e9, 400e9};
  job.cluster.intra_node = {.latency = Microseconds(5),
                            .bandwidth = {kLinks[random.Below(4)]}};
  job.cluster.inter_node = {.latency = Microseconds(10),
                            .bandwidth = {kLinks[random.Below(3)]}};
  job.parallel.tp = 1 << random.Below(4);
  job.parallel.pp = static_cast<int32_t>(random.Between(1, options.most_ranks));
  TrainingSpec& training = job.training;
  training.microbatches =
      static_cast<int32_t>(random.Between(1, options.most_microbatches));
  training.microbatch_tokens = 1024 << random.Below(4);
  if (random.Below(6) == 0) {
    training.memory_strategies = {MemoryStrategy::kKeep};
  } else if (random.Below(4) == 0) {
    training.memory_strategies.push_back(MemoryStrategy::kOffload);
  }
  if (backbone.value() > 0 && random.Below(4) == 0) {
    const ModuleId frozen(static_cast<int32_t>(
        random.Below(static_cast<uint64_t>(backbone.value()) + 1)));
    training.frozen_modules = {job.model.modules[frozen].name};
  }

  const auto often = static_cast<uint64_t>(random.Between(1, 5));
  for (int i = 0; i < 400; ++i) {
    SampleMetadata sample;
    sample.text_tokens = random.Between(1, 800);
    if (has[0] && random.Below(often) == 0) {
      const int64_t images = random.Between(1, 4);
      for (int64_t k = 0; k < images; ++k) {
        sample.images.push_back({.width = 448, .height = 448});
      }
    }
    if (has[1] && random.Below(often) == 0) {
      // Now and then one that is far longer than all others.
      const auto frames = static_cast<int32_t>(
          random.Below(8) == 0 ? 256 : random.Between(8, 64));
      sample.videos.push_back({.frames = frames,
                               .width = 640,
                               .height = 360,
                               .seconds = frames / 8.0});
    }
    if (has[2] && random.Below(often) == 0) {
      sample.audio_seconds.push_back(
          static_cast<double>(random.Between(1, 20)));
    }
    made.batch.samples.push_back(std::move(sample));
  }
  return made;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_RANDOM_JOB_H_
