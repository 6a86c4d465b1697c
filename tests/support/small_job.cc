#include "tests/support/small_job.h"

#include "base/random.h"

namespace pipeloom::testing {
namespace {

LayerSpec Block(int64_t hidden, AttentionKind kind, bool gated) {
  LayerSpec layer;
  layer.kind = LayerKind::kTransformer;
  layer.name = "block";
  layer.hidden = hidden;
  layer.attention = {.kind = kind,
                     .heads = hidden / 64,
                     .kv_heads = hidden / 64,
                     .head_dim = 64};
  layer.ffn = {.hidden = 4 * hidden, .gated = gated};
  layer.vector_parameters = 2 * hidden;
  return layer;
}

LayerSpec Linear(std::string name, int64_t in, int64_t out, bool on_output) {
  LayerSpec layer;
  layer.kind = LayerKind::kLinears;
  layer.name = std::move(name);
  layer.hidden = out;
  layer.linears = {{.in = in, .out = out}};
  layer.on_output_tokens = on_output;
  return layer;
}

LayerSpec Vocab(LayerKind kind, std::string name, int64_t hidden) {
  LayerSpec layer;
  layer.kind = kind;
  layer.name = std::move(name);
  layer.hidden = hidden;
  layer.vocab = 32000;
  return layer;
}

}  // namespace

JobSpec SmallVlmJob() {
  JobSpec job;
  job.name = "small-vlm";
  ModuleSpec encoder;
  encoder.name = "encoder";
  encoder.role = ModuleRole::kEncoder;
  encoder.layers.push_back(Linear("patch_embedding", 3 * 14 * 14, 256, false));
  for (int i = 0; i < 8; ++i) {
    encoder.layers.push_back(Block(256, AttentionKind::kFull, false));
  }
  encoder.layers.push_back(Linear("projector", 256 * 16, 512, true));
  TokenRule rule;
  rule.kind = TokenRuleKind::kFixedSquare;
  rule.modality = Modality::kImage;
  rule.side = 224;
  rule.patch = 14;
  rule.merge = 4;
  encoder.token_rules = {rule};
  ModuleSpec backbone;
  backbone.name = "backbone";
  backbone.role = ModuleRole::kBackbone;
  backbone.layers.push_back(Vocab(LayerKind::kEmbedding, "embedding", 512));
  for (int i = 0; i < 8; ++i) {
    backbone.layers.push_back(Block(512, AttentionKind::kCausal, true));
  }
  backbone.layers.push_back(Vocab(LayerKind::kLossHead, "loss_head", 512));
  job.model.name = "small-vlm";
  job.model.modules = {encoder, backbone};
  job.model.edges = {{.from = ModuleId(0), .to = ModuleId(1)}};

  DeviceSpec& device = job.cluster.device;
  device.name = "test-gpu";
  device.bf16 = {100e12};
  device.memory = Bytes(int64_t{8} << 30);
  device.memory_bandwidth = {1e12};
  device.gemm_efficiency = 0.75;
  device.attention_efficiency = 0.5;
  device.memory_efficiency = 0.8;
  device.kernel_overhead = Microseconds(4);
  device.host_bandwidth = {25e9};
  job.cluster.name = "test";
  job.cluster.num_nodes = 1;
  job.cluster.gpus_per_node = 8;
  job.cluster.intra_node = {.latency = Microseconds(5), .bandwidth = {160e9}};
  job.cluster.inter_node = {.latency = Microseconds(10), .bandwidth = {22e9}};
  job.parallel.pp = 4;
  job.training.microbatches = 8;
  job.training.microbatch_tokens = 2048;
  return job;
}

JobSpec SmallExpertJob() {
  JobSpec job = SmallVlmJob();
  for (LayerSpec& layer : job.model.modules[ModuleId(1)].layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    layer.ffn = {.hidden = 0,
                 .gated = true,
                 .experts = 8,
                 .experts_per_token = 2,
                 .expert_hidden = 1024};
  }
  job.parallel.dp = 2;
  job.parallel.ep = 2;
  return job;
}

BatchMetadata RandomBatch(uint64_t seed, int32_t num_samples,
                          int32_t max_images) {
  Random random(seed);
  BatchMetadata batch;
  for (int32_t i = 0; i < num_samples; ++i) {
    SampleMetadata sample;
    sample.text_tokens = random.Between(1, 400);
    const int64_t images = random.Between(0, max_images);
    for (int64_t k = 0; k < images; ++k) {
      sample.images.push_back(
          {.width = static_cast<int32_t>(random.Between(28, 2000)),
           .height = static_cast<int32_t>(random.Between(28, 2000))});
    }
    batch.samples.push_back(sample);
  }
  return batch;
}

}  // namespace pipeloom::testing
