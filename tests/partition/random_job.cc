#include "tests/partition/random_job.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "tests/support/small_job.h"

namespace pipeloom::testing {
namespace {

constexpr int64_t kWidth = 128;

LayerSpec Block(AttentionKind kind, bool context) {
  LayerSpec layer;
  layer.name = "block";
  layer.hidden = kWidth;
  layer.attention = {.kind = kind, .heads = 2, .kv_heads = 2, .head_dim = 64};
  if (context) {
    layer.cross_attention = {
        .heads = 2, .head_dim = 64, .context_width = kWidth};
  }
  layer.ffn = {.hidden = 4 * kWidth};
  layer.vector_parameters = 2 * kWidth;
  return layer;
}

LayerSpec Linear(bool on_output_tokens) {
  LayerSpec layer;
  layer.kind = LayerKind::kLinears;
  layer.name = "linear";
  layer.hidden = kWidth;
  layer.linears = {{.in = kWidth, .out = kWidth}};
  layer.on_output_tokens = on_output_tokens;
  return layer;
}

LayerSpec Vocab(LayerKind kind) {
  LayerSpec layer;
  layer.kind = kind;
  layer.name = "vocab";
  layer.hidden = kWidth;
  layer.vocab = 1000;
  return layer;
}

TokenRule ImageRule() {
  return {.kind = TokenRuleKind::kFixedSquare,
          .modality = Modality::kImage,
          .side = 56,
          .patch = 14,
          .merge = 2};
}
TokenRule AudioRule() {
  return {.kind = TokenRuleKind::kAudioRate,
          .modality = Modality::kAudio,
          .tokens_per_second = 10,
          .output_tokens_per_second = 5,
          .chunk_seconds = 4};
}
TokenRule ClipRule() {
  return {.kind = TokenRuleKind::kLatent,
          .modality = Modality::kVideo,
          .fps = 1,
          .spatial_stride = 16,
          .default_width = 32,
          .default_height = 32};
}

ModuleSpec Module(std::string name, ModuleRole role, int64_t blocks,
                  AttentionKind kind, bool context = false) {
  ModuleSpec module;
  module.name = std::move(name);
  module.role = role;
  for (int64_t i = 0; i < blocks; ++i) {
    module.layers.push_back(Block(kind, context));
  }
  return module;
}

void PushFront(LayerSpec layer, ModuleSpec* module) {
  std::vector<LayerSpec> layers = {std::move(layer)};
  for (const LayerSpec& old : module->layers) layers.push_back(old);
  module->layers = IdVector<LayerId, LayerSpec>(std::move(layers));
}

}  // namespace

JobSpec RandomJob(uint64_t seed) {
  Random random(seed);
  const auto chance = [&] { return random.Below(2) == 0; };
  JobSpec job = SmallVlmJob();
  job.name = "random";
  job.model = {};
  job.model.name = "random";
  auto& modules = job.model.modules;
  std::vector<ModuleId> feeders;
  if (chance()) {
    ModuleSpec vision = Module("vision", ModuleRole::kEncoder,
                               random.Between(1, 12), AttentionKind::kFull);
    vision.token_rules = {ImageRule()};
    if (chance()) PushFront(Linear(false), &vision);
    if (chance()) vision.layers.push_back(Linear(true));
    feeders.push_back(modules.push_back(vision));
    if (chance()) {
      ModuleSpec projector;
      projector.name = "projector";
      projector.role = ModuleRole::kEncoder;
      projector.layers.push_back(Linear(false));
      const ModuleId id = modules.push_back(projector);
      job.model.edges.push_back({.from = feeders.back(), .to = id});
      feeders.back() = id;
    }
  }
  if (chance()) {
    ModuleSpec audio = Module("audio", ModuleRole::kEncoder,
                              random.Between(1, 12), AttentionKind::kFull);
    audio.token_rules = {AudioRule()};
    feeders.push_back(modules.push_back(audio));
  }
  ModuleSpec backbone = Module("backbone", ModuleRole::kBackbone,
                               random.Between(1, 12), AttentionKind::kCausal);
  PushFront(Vocab(LayerKind::kEmbedding), &backbone);
  backbone.layers.push_back(Vocab(LayerKind::kLossHead));
  const ModuleId backbone_id = modules.push_back(backbone);
  for (const ModuleId feeder : feeders) {
    job.model.edges.push_back({.from = feeder, .to = backbone_id});
  }
  if (chance()) {
    const bool context = chance();
    ModuleSpec generator =
        Module("generator", ModuleRole::kGenerator, random.Between(1, 12),
               AttentionKind::kFull, context);
    generator.token_rules = {ClipRule()};
    const ModuleId id = modules.push_back(generator);
    job.model.edges.push_back(
        {.from = backbone_id, .to = id, .as_context = context});
  }
  for (const ModuleSpec& module : modules) {
    if (random.Below(4) == 0) {
      job.training.frozen_modules.push_back(module.name);
    }
    if (random.Below(4) == 0) {
      job.training.sub_microbatch_sizes.push_back(
          {.module = module.name, .instances = random.Between(1, 5)});
    }
  }
  job.cluster.num_nodes = 8;
  job.parallel.pp = static_cast<int32_t>(random.Between(1, 6));
  job.parallel.dp = static_cast<int32_t>(random.Between(1, 3));
  job.training.microbatches = static_cast<int32_t>(random.Between(1, 6));
  job.training.microbatch_tokens = random.Between(50, 400);
  job.training.microbatch_samples = chance() ? random.Between(1, 6) : 0;
  job.training.microbatch_images = chance() ? random.Between(1, 8) : 0;
  job.training.microbatch_seconds =
      chance() ? static_cast<double>(random.Between(2, 30)) : 0;
  PIPELOOM_CHECK(ValidateJobSpec(job).ok());
  return job;
}

BatchMetadata RandomMixedBatch(uint64_t seed, int32_t num_samples) {
  Random random(seed);
  BatchMetadata batch;
  for (int32_t i = 0; i < num_samples; ++i) {
    SampleMetadata sample;
    const int64_t kind = random.Below(10);
    sample.text_tokens = kind == 0   ? 0
                         : kind == 1 ? random.Between(100, 3000)
                                     : random.Between(1, 100);
    const int64_t most = kind == 2 ? 20 : 2;
    for (int64_t n = random.Between(0, most); n > 0; --n) {
      sample.images.push_back({64, 64});
    }
    if (random.Below(3) == 0) {
      for (int64_t n = random.Between(0, most); n > 0; --n) {
        sample.videos.push_back({.seconds = 0.5 * random.Unit() * 40});
      }
    }
    if (random.Below(3) == 0) {
      for (int64_t n = random.Between(0, most); n > 0; --n) {
        sample.audio_seconds.push_back(random.Unit() * 20);
      }
    }
    batch.samples.push_back(sample);
  }
  return batch;
}

}  // namespace pipeloom::testing
