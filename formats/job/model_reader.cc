#include "formats/job/model_reader.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/job/model_names.h"

namespace pipeloom::formats {
namespace {

// Far above those of every existing model, and low enough that products of
// dimensions stay within int64_t.
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxExperts = 1 << 14;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxChannels = 1 << 16;
constexpr int64_t kMaxKernel = 16;
constexpr int64_t kMaxPixels = 1 << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 32;
constexpr int32_t kMaxLayers = 4096;
constexpr int32_t kMaxModules = 64;
constexpr int64_t kMaxParameters = 1'000'000'000'000'000;
constexpr double kMaxRate = 1e24;
constexpr double kMaxSeconds = 1e6;
constexpr int64_t kMaxChunk = 1 << 16;

// Reads the token mixers other than attention.
void ReadMixers(ObjectReader& reader, LayerSpec* layer) {
  reader.ReadObject("state_space", [&](ObjectReader& r) {
    StateSpaceSpec& s = layer->state_space;
    for (const absl::string_view name : {"heads", "head_dim", "state_dim"}) {
      r.Require(name);
    }
    r.Read("heads", int64_t{1}, kMaxHeads, &s.heads);
    r.Read("head_dim", int64_t{1}, kMaxHeads, &s.head_dim);
    r.Read("state_dim", int64_t{1}, kMaxHeads, &s.state_dim);
    r.Read("groups", int64_t{1}, kMaxHeads, &s.groups);
    r.Read("kernel", int64_t{1}, kMaxKernel, &s.kernel);
    r.Read("chunk", int64_t{1}, kMaxChunk, &s.chunk);
  });
  reader.ReadObject("delta_net", [&](ObjectReader& r) {
    DeltaNetSpec& d = layer->delta_net;
    for (const absl::string_view name :
         {"key_heads", "value_heads", "key_dim", "value_dim"}) {
      r.Require(name);
    }
    r.Read("key_heads", int64_t{1}, kMaxHeads, &d.key_heads);
    r.Read("value_heads", int64_t{1}, kMaxHeads, &d.value_heads);
    r.Read("key_dim", int64_t{1}, kMaxHeads, &d.key_dim);
    r.Read("value_dim", int64_t{1}, kMaxHeads, &d.value_dim);
    r.Read("kernel", int64_t{1}, kMaxKernel, &d.kernel);
    r.Read("chunk", int64_t{1}, kMaxChunk, &d.chunk);
  });
}

void ReadLayer(ObjectReader& reader, LayerSpec* layer) {
  reader.Require("kind");
  reader.ReadEnum<LayerKind>("kind", kLayerKinds, &layer->kind);
  reader.Read("name", &layer->name);
  reader.Read("hidden", int64_t{0}, kMaxWidth, &layer->hidden);
  reader.ReadObject("attention", [&](ObjectReader& r) {
    AttentionSpec& a = layer->attention;
    r.ReadEnum<AttentionKind>("kind", kAttentionKinds, &a.kind);
    r.Read("heads", int64_t{0}, kMaxHeads, &a.heads);
    r.Read("kv_heads", int64_t{0}, kMaxHeads, &a.kv_heads);
    r.Read("head_dim", int64_t{0}, kMaxHeads, &a.head_dim);
    r.Read("window", int64_t{0}, kMaxTokens, &a.window);
    r.Read("query_rank", int64_t{0}, kMaxWidth, &a.query_rank);
    r.Read("kv_rank", int64_t{0}, kMaxWidth, &a.kv_rank);
    r.Read("rope_dim", int64_t{0}, kMaxHeads, &a.rope_dim);
    r.Read("value_dim", int64_t{0}, kMaxHeads, &a.value_dim);
    r.ReadPositive("density", 1.0, &a.density);
    r.Read("query_key_norms", &a.query_key_norms);
    r.Read("output_gate", &a.output_gate);
    r.Read("scaled_rotary", &a.scaled_rotary);
  });
  ReadMixers(reader, layer);
  reader.ReadObject("cross_attention", [&](ObjectReader& r) {
    CrossAttentionSpec& c = layer->cross_attention;
    r.Read("heads", int64_t{0}, kMaxHeads, &c.heads);
    r.Read("head_dim", int64_t{0}, kMaxHeads, &c.head_dim);
    r.Read("context_width", int64_t{0}, kMaxWidth, &c.context_width);
    r.Read("context_tokens", int64_t{0}, kMaxWidth, &c.context_tokens);
  });
  reader.ReadObject("ffn", [&](ObjectReader& r) {
    FfnSpec& f = layer->ffn;
    r.Read("hidden", int64_t{0}, kMaxWidth, &f.hidden);
    r.Read("gated", &f.gated);
    r.Read("experts", int64_t{0}, kMaxExperts, &f.experts);
    r.Read("experts_per_token", int64_t{0}, kMaxExperts, &f.experts_per_token);
    r.Read("shared_experts", int64_t{0}, kMaxExperts, &f.shared_experts);
    r.Read("expert_hidden", int64_t{0}, kMaxWidth, &f.expert_hidden);
    r.Read("expert_biases", &f.expert_biases);
    r.Read("clamped", &f.clamped);
    r.Read("latent", int64_t{0}, kMaxWidth, &f.latent);
  });
  reader.Read("vocab", int64_t{0}, kMaxVocab, &layer->vocab);
  reader.ReadObjects("linears", [&](ObjectReader& r) {
    LinearSpec& linear = layer->linears.emplace_back();
    r.Read("in", int64_t{1}, kMaxWidth, &linear.in);
    r.Read("out", int64_t{1}, kMaxWidth, &linear.out);
    r.Require("in");
    r.Require("out");
  });
  reader.ReadObject("modulation", [&](ObjectReader& r) {
    ModulationSpec& m = layer->modulation;
    r.Read("vectors", int64_t{0}, int64_t{64}, &m.vectors);
    r.Read("condition_width", int64_t{0}, kMaxWidth, &m.condition_width);
  });
  reader.ReadObjects("convolutions", [&](ObjectReader& r) {
    ConvolutionSpec& c = layer->convolutions.emplace_back();
    r.Read("in", int64_t{1}, kMaxChannels, &c.in);
    r.Read("out", int64_t{1}, kMaxChannels, &c.out);
    r.Read("kernel", int64_t{1}, kMaxKernel, &c.kernel);
    r.Read("depth", int64_t{1}, kMaxKernel, &c.depth);
    r.ReadPositive("scale", 1024.0, &c.scale);
    r.Require("in");
    r.Require("out");
  });
  reader.Read("downsample", 1.0, 1024.0, &layer->downsample);
  reader.Read("vector_parameters", int64_t{0}, kMaxParameters,
              &layer->vector_parameters);
  reader.Read("biases", &layer->biases);
  reader.Read("dropout", &layer->dropout);
  reader.Read("tied", &layer->tied);
  reader.Read("on_output_tokens", &layer->on_output_tokens);
  reader.Read("fixed_flops_per_token", 0.0, kMaxRate,
              &layer->fixed_flops_per_token);
  reader.Read("fixed_flops_per_instance", 0.0, kMaxRate,
              &layer->fixed_flops_per_instance);
  reader.Read("fixed_activation_bytes_per_token", 0.0, 1e15,
              &layer->fixed_activation_bytes_per_token);
  reader.Read("fixed_activation_bytes_per_instance", 0.0, 1e15,
              &layer->fixed_activation_bytes_per_instance);
}

void ReadTokenRule(ObjectReader& reader, TokenRule* rule) {
  reader.Require("kind");
  reader.Require("modality");
  reader.ReadEnum<TokenRuleKind>("kind", kTokenRuleKinds, &rule->kind);
  reader.ReadEnum<Modality>("modality", kModalities, &rule->modality);
  const struct {
    absl::string_view name;
    int64_t low;
    int64_t high;
    int64_t* out;
  } integers[] = {
      {"side_px", 0, kMaxPixels, &rule->side},
      {"patch_px", 0, kMaxPixels, &rule->patch},
      {"merge", 1, 1024, &rule->merge},
      {"min_tokens", 0, kMaxTokens, &rule->min_tokens},
      {"max_tokens", 0, kMaxTokens, &rule->max_tokens},
      {"max_total_tokens", 0, kMaxTokens, &rule->max_total_tokens},
      {"min_frames", 0, kMaxTokens, &rule->min_frames},
      {"max_frames", 0, kMaxTokens, &rule->max_frames},
      {"max_tiles", 0, 4096, &rule->max_tiles},
      {"tokens_per_tile", 0, kMaxTokens, &rule->tokens_per_tile},
      {"output_tokens_per_tile", 0, kMaxTokens, &rule->output_tokens_per_tile},
      {"crop_side_px", 0, kMaxPixels, &rule->crop_side},
      {"output_tokens_per_crop", 0, kMaxTokens, &rule->output_tokens_per_crop},
      {"extra_tokens", 0, kMaxTokens, &rule->extra_tokens},
      {"spatial_stride_px", 0, kMaxPixels, &rule->spatial_stride},
      {"frame_group", 1, 1 << 20, &rule->frame_group},
      {"latents_per_group", 1, 1 << 20, &rule->latents_per_group},
      {"default_width_px", 0, kMaxPixels, &rule->default_width},
      {"default_height_px", 0, kMaxPixels, &rule->default_height},
  };
  for (const auto& i : integers) reader.Read(i.name, i.low, i.high, i.out);
  reader.Read("fps", 0.0, 1000.0, &rule->fps);
  reader.Read("max_seconds", 0.0, kMaxSeconds, &rule->max_seconds);
  reader.Read("tokens_per_second", 0.0, 1e6, &rule->tokens_per_second);
  reader.Read("output_tokens_per_second", 0.0, 1e6,
              &rule->output_tokens_per_second);
  reader.Read("chunk_seconds", 0.0, kMaxSeconds, &rule->chunk_seconds);

  // Fields that the kind requires.
  std::vector<absl::string_view> needed;
  switch (rule->kind) {
    case TokenRuleKind::kFixedSquare:
      needed = {"side_px", "patch_px"};
      break;
    case TokenRuleKind::kDynamicResolution:
      needed = {"patch_px", "max_tokens"};
      break;
    case TokenRuleKind::kTiles:
      needed = {"side_px", "max_tiles", "tokens_per_tile",
                "output_tokens_per_tile"};
      break;
    case TokenRuleKind::kGlobalAndCrops:
      needed = {"side_px", "patch_px", "crop_side_px", "output_tokens_per_tile",
                "output_tokens_per_crop"};
      break;
    case TokenRuleKind::kLatent:
      needed = {"spatial_stride_px"};
      break;
    case TokenRuleKind::kAudioRate:
      needed = {"tokens_per_second", "output_tokens_per_second"};
      break;
    case TokenRuleKind::kText:
      break;
    case TokenRuleKind::kAnyResolution:
      needed = {"side_px", "patch_px", "max_tiles", "max_tokens"};
      break;
  }
  for (const absl::string_view name : needed) {
    reader.Require(name);
    for (const auto& i : integers) {
      if (i.name == name && *i.out == 0) reader.Refuse(name, "> 0");
    }
  }
  if (rule->max_tokens > 0 && rule->min_tokens > rule->max_tokens) {
    reader.Refuse("min_tokens",
                  absl::StrCat("at most max_tokens, ", rule->max_tokens));
  }
  if (rule->max_frames > 0 && rule->min_frames > rule->max_frames) {
    reader.Refuse("min_frames",
                  absl::StrCat("at most max_frames, ", rule->max_frames));
  }
}

void ReadModule(ObjectReader& reader, ModuleSpec* module) {
  reader.Require("name");
  reader.Require("role");
  reader.Read("name", &module->name);
  reader.ReadEnum<ModuleRole>("role", kRoles, &module->role);
  reader.ReadEnum<Precision>("precision", kPrecisions, &module->precision);
  reader.Read("adapter_rank", int64_t{0}, int64_t{1} << 20,
              &module->adapter_rank);
  reader.ReadObjects("layers", [&](ObjectReader& r) {
    LayerSpec layer;
    int32_t count = 1;
    r.Require("layer");
    r.ReadObject("layer", [&](ObjectReader& l) { ReadLayer(l, &layer); });
    r.Read("count", 1, kMaxLayers, &count);
    if (module->layers.size() + count > kMaxLayers) {
      r.Fail(r.line(), absl::StrFormat("module \"%s\" has more than %d layers",
                                       module->name, kMaxLayers));
      return;
    }
    if (!r.ok()) return;
    for (int32_t i = 0; i < count; ++i) module->layers.push_back(layer);
  });
  reader.ReadObjects("token_rules", [&](ObjectReader& r) {
    ReadTokenRule(r, &module->token_rules.emplace_back());
  });
  reader.Read("source", &module->source);
}

// Sets `id` to the module named in field `field`.
void ReadModuleName(ObjectReader& reader, absl::string_view field,
                    const ModelSpec& model, ModuleId* id) {
  std::string name;
  reader.Require(field);
  reader.Read(field, &name);
  if (!reader.ok()) return;
  std::string names;
  for (const ModuleId m : model.modules.ids()) {
    if (model.modules[m].name == name) {
      *id = m;
      return;
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", model.modules[m].name);
  }
  reader.Refuse(field, absl::StrCat("the name of a module, one of ", names));
}

// Returns the names of modules that feed each other in a circle, "a -> b -> a",
// or "".
std::string FindCircle(const ModelSpec& model) {
  // 0: not seen, 1: on the way, 2: done.
  IdVector<ModuleId, int> state(model.modules.size());
  std::vector<ModuleId> way;
  std::string circle;
  const auto visit = [&](const auto& self, ModuleId m) -> bool {
    state[m] = 1;
    way.push_back(m);
    for (const ModuleEdge& edge : model.edges) {
      if (edge.from != m || state[edge.to] == 2) continue;
      if (state[edge.to] == 1) {
        size_t i = 0;
        while (way[i] != edge.to) ++i;
        for (; i < way.size(); ++i) {
          absl::StrAppend(&circle, model.modules[way[i]].name, " -> ");
        }
        circle += model.modules[edge.to].name;
        return true;
      }
      if (self(self, edge.to)) return true;
    }
    way.pop_back();
    state[m] = 2;
    return false;
  };
  for (const ModuleId m : model.modules.ids()) {
    if (state[m] == 0 && visit(visit, m)) break;
  }
  return circle;
}

}  // namespace

void ReadModel(ObjectReader& reader, ModelSpec* model) {
  reader.Read("name", &model->name);
  reader.ReadObjects("modules", [&](ObjectReader& r) {
    ReadModule(r, &model->modules[model->modules.push_back({})]);
    if (model->modules.size() > kMaxModules) {
      r.Fail(r.line(),
             absl::StrFormat("a model has at most %d modules", kMaxModules));
    }
  });
  reader.ReadObjects("edges", [&](ObjectReader& r) {
    ModuleEdge& edge = model->edges.emplace_back();
    ReadModuleName(r, "from", *model, &edge.from);
    ReadModuleName(r, "to", *model, &edge.to);
    r.Read("as_context", &edge.as_context);
  });
  reader.Read("published_parameters", int64_t{0}, kMaxParameters,
              &model->published_parameters);
  reader.Read("source", &model->source);
  reader.Read("missing", &model->missing);
  if (!reader.ok()) return;
  if (const std::string circle = FindCircle(*model); !circle.empty()) {
    reader.Fail(reader.LineOf("edges"),
                absl::StrFormat("modules feed each other in a circle: %s; the "
                                "edges must not close one",
                                circle));
    return;
  }
  double parameters = 0;  // As a double, since it may pass int64_t.
  for (const ModuleSpec& module : model->modules) {
    for (const LayerSpec& layer : module.layers) {
      parameters += static_cast<double>(Parameters(layer));
    }
  }
  if (parameters > static_cast<double>(kMaxParameters)) {
    reader.Fail(reader.line(),
                absl::StrFormat("model \"%s\" has %g parameters; it must have "
                                "at most %d",
                                model->name, parameters, kMaxParameters));
  }
}

namespace {

void ReadLink(ObjectReader& reader, LinkSpec* link) {
  double latency_us = 0;
  reader.Require("latency_us");
  reader.Require("bandwidth_bytes_per_second");
  reader.Read("latency_us", 0.0, 1e9, &latency_us);
  reader.ReadPositive("bandwidth_bytes_per_second", 1e18,
                      &link->bandwidth.bytes_per_second);
  link->latency = Microseconds(latency_us);
}

void ReadDevice(ObjectReader& reader, DeviceSpec* device) {
  int64_t memory_bytes = 0;
  double overhead_us = 0;
  reader.Read("name", &device->name);
  for (const absl::string_view name :
       {"bf16_flops_per_second", "memory_bytes",
        "memory_bandwidth_bytes_per_second", "gemm_efficiency",
        "attention_efficiency", "memory_efficiency",
        "host_bandwidth_bytes_per_second"}) {
    reader.Require(name);
  }
  reader.ReadPositive("bf16_flops_per_second", kMaxRate,
                      &device->bf16.flops_per_second);
  reader.Read("fp8_flops_per_second", 0.0, kMaxRate,
              &device->fp8.flops_per_second);
  reader.Read("memory_bytes", int64_t{1}, int64_t{1} << 50, &memory_bytes);
  reader.ReadPositive("memory_bandwidth_bytes_per_second", 1e18,
                      &device->memory_bandwidth.bytes_per_second);
  reader.ReadPositive("gemm_efficiency", 1.0, &device->gemm_efficiency);
  reader.ReadPositive("attention_efficiency", 1.0,
                      &device->attention_efficiency);
  reader.ReadPositive("memory_efficiency", 1.0, &device->memory_efficiency);
  reader.ReadPositive("sustained_bf16", 1.0, &device->sustained_bf16);
  reader.ReadPositive("sustained_fp8", 1.0, &device->sustained_fp8);
  device->sustained_attention = device->sustained_bf16;
  reader.ReadPositive("sustained_attention", 1.0, &device->sustained_attention);
  reader.Read("kernel_overhead_us", 0.0, 1e9, &overhead_us);
  reader.ReadPositive("host_bandwidth_bytes_per_second", 1e18,
                      &device->host_bandwidth.bytes_per_second);
  reader.Read("source", &device->source);
  device->memory = Bytes(memory_bytes);
  device->kernel_overhead = Microseconds(overhead_us);
}

constexpr std::pair<absl::string_view, DomainKind> kDomainKinds[] = {
    {"DOMAIN_KIND_NODE", DomainKind::kNode},
    {"DOMAIN_KIND_SWITCH", DomainKind::kSwitch},
    {"DOMAIN_KIND_CUBE", DomainKind::kCube},
    {"DOMAIN_KIND_HOP_RING", DomainKind::kHopRing},
};
constexpr std::pair<absl::string_view, NicSharing> kNicSharings[] = {
    {"NIC_SHARING_NONE", NicSharing::kNone},
    {"NIC_SHARING_IN_TURN", NicSharing::kInTurn},
    {"NIC_SHARING_FAIR", NicSharing::kFair},
};

constexpr int32_t kMaxGpus = 1 << 30;

// Reads the optional parts of a cluster file. ValidateClusterSpec checks that
// nodes and GPUs exist.
void ReadNetwork(ObjectReader& reader, ClusterSpec* cluster) {
  reader.ReadObject("domain", [&](ObjectReader& r) {
    r.ReadEnum<DomainKind>("kind", kDomainKinds, &cluster->domain.kind);
    r.Read("gpus", 0, kMaxGpus, &cluster->domain.gpus);
    r.Read("hops", 0, kMaxGpus, &cluster->domain.hops);
  });
  reader.Read("nics_per_node", 0, 1024, &cluster->nics_per_node);
  reader.ReadEnum<NicSharing>("nic_sharing", kNicSharings,
                              &cluster->nic_sharing);
  cluster->node_groups.clear();
  reader.ReadObjects("node_groups", [&](ObjectReader& r) {
    NodeGroup& group = cluster->node_groups.emplace_back();
    r.Require("num_nodes");
    r.Require("device");
    r.Read("first_node", 0, kMaxGpus, &group.first_node);
    r.Read("num_nodes", 1, kMaxGpus, &group.num_nodes);
    r.Read("every", 0, kMaxGpus, &group.every);
    r.ReadObject("device",
                 [&](ObjectReader& d) { ReadDevice(d, &group.device); });
    if (r.Has("precision")) {
      r.ReadEnum<Precision>("precision", kPrecisions,
                            &group.precision.emplace());
    }
  });
  cluster->slow_gpus.clear();
  reader.ReadObjects("slow_gpus", [&](ObjectReader& r) {
    SlowGpu& slow = cluster->slow_gpus.emplace_back();
    r.Require("factor");
    r.Read("gpu", 0, kMaxGpus, &slow.gpu);
    r.Read("factor", 1.0, 1e6, &slow.factor);
  });
  cluster->slow_links.clear();
  reader.ReadObjects("slow_links", [&](ObjectReader& r) {
    SlowNodeLink& slow = cluster->slow_links.emplace_back();
    r.Require("factor");
    r.Read("from_node", 0, kMaxGpus, &slow.from_node);
    r.Read("to_node", 0, kMaxGpus, &slow.to_node);
    r.Read("factor", 1.0, 1e6, &slow.factor);
  });
  reader.ReadObject("jitter", [&](ObjectReader& r) {
    r.Read("compute", 0.0, 1.0, &cluster->jitter.compute);
    r.Read("links", 0.0, 1.0, &cluster->jitter.links);
  });
}

}  // namespace

void ReadCluster(ObjectReader& reader, ClusterSpec* cluster) {
  reader.Read("name", &cluster->name);
  for (const absl::string_view name :
       {"device", "num_nodes", "gpus_per_node", "intra_node", "inter_node"}) {
    reader.Require(name);
  }
  reader.ReadObject("device",
                    [&](ObjectReader& r) { ReadDevice(r, &cluster->device); });
  reader.Read("num_nodes", 1, 1'000'000, &cluster->num_nodes);
  reader.Read("gpus_per_node", 1, 1024, &cluster->gpus_per_node);
  reader.ReadObject("intra_node", [&](ObjectReader& r) {
    ReadLink(r, &cluster->intra_node);
  });
  reader.ReadObject("inter_node", [&](ObjectReader& r) {
    ReadLink(r, &cluster->inter_node);
  });
  reader.Read("source", &cluster->source);
  ReadNetwork(reader, cluster);
}

}  // namespace pipeloom::formats
