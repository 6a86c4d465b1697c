#include "tests/emulator/helpers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace pipeloom::emulator {
namespace {

LayerSpec Block(int64_t hidden, int64_t heads, int64_t kv_heads,
                int64_t head_dim, int64_t inner, bool gated,
                AttentionKind kind) {
  LayerSpec layer;
  layer.name = "block";
  layer.hidden = hidden;
  layer.attention.kind = kind;
  layer.attention.heads = heads;
  layer.attention.kv_heads = kv_heads;
  layer.attention.head_dim = head_dim;
  layer.ffn.hidden = inner;
  layer.ffn.gated = gated;
  layer.vector_parameters = 2 * hidden;
  return layer;
}

}  // namespace

ClusterSpec H800Cluster() {
  ClusterSpec cluster;
  cluster.name = "h800-8x8";
  DeviceSpec& device = cluster.device;
  device.name = "h800-sxm";
  device.bf16 = {989e12};
  device.memory = Bytes(80'000'000'000);
  device.memory_bandwidth = {3.35e12};
  device.gemm_efficiency = 0.8;
  device.attention_efficiency = 0.66;
  device.memory_efficiency = 0.8;
  device.kernel_overhead = Microseconds(4);
  device.host_bandwidth = {50e9};
  cluster.num_nodes = 8;
  cluster.gpus_per_node = 8;
  cluster.intra_node = {.latency = Microseconds(5), .bandwidth = {160e9}};
  cluster.inter_node = {.latency = Microseconds(10), .bandwidth = {22e9}};
  return cluster;
}

JobSpec JobOf(std::vector<std::vector<LayerSpec>> modules,
              const ParallelLayout& parallel) {
  JobSpec job;
  job.name = "test";
  job.model.name = "test";
  for (std::vector<LayerSpec>& layers : modules) {
    ModuleSpec module;
    module.name = absl::StrCat("m", job.model.modules.size());
    module.layers = IdVector<LayerId, LayerSpec>(std::move(layers));
    const ModuleId id = job.model.modules.push_back(std::move(module));
    if (id.value() > 0) {
      job.model.edges.push_back({.from = ModuleId(id.value() - 1), .to = id});
    }
  }
  job.cluster = H800Cluster();
  job.cluster.num_nodes =
      std::max(job.cluster.num_nodes,
               static_cast<int32_t>((parallel.num_gpus() + 7) / 8));
  job.parallel = parallel;
  job.training.microbatches = 8;
  job.training.microbatch_tokens = 8192;
  return job;
}

LayerSpec Llama3Block() {
  return Block(4096, 32, 8, 128, 14336, true, AttentionKind::kCausal);
}
LayerSpec Qwen32bBlock() {
  return Block(5120, 40, 8, 128, 27648, true, AttentionKind::kCausal);
}
LayerSpec Vit5bBlock() {
  return Block(1792, 16, 16, 112, 15360, false, AttentionKind::kFull);
}
LayerSpec MoeBlock() {
  LayerSpec layer = Block(2048, 32, 4, 128, 0, true, AttentionKind::kCausal);
  layer.ffn.experts = 128;
  layer.ffn.experts_per_token = 8;
  layer.ffn.shared_experts = 1;
  layer.ffn.expert_hidden = 768;
  return layer;
}
LayerSpec MlaBlock() {
  LayerSpec layer =
      Block(7168, 128, 128, 192, 18432, true, AttentionKind::kCausal);
  layer.attention.value_dim = 128;
  layer.attention.query_rank = 1536;
  layer.attention.kv_rank = 512;
  layer.attention.rope_dim = 64;
  return layer;
}
LayerSpec StateSpaceLayer() {
  LayerSpec layer;
  layer.hidden = 2688;
  layer.state_space = {
      .heads = 64, .head_dim = 64, .state_dim = 128, .groups = 8};
  layer.vector_parameters = layer.hidden;
  return layer;
}
LayerSpec DeltaNetBlock() {
  LayerSpec layer = GatedAttentionBlock();
  layer.attention = {};
  layer.delta_net = {
      .key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128};
  return layer;
}
LayerSpec GatedAttentionBlock() {
  LayerSpec layer =
      Block(5120, 24, 4, 256, 17408, true, AttentionKind::kCausal);
  layer.attention.output_gate = true;
  return layer;
}
LayerSpec LatentExpertsLayer() {
  LayerSpec layer;
  layer.hidden = 4096;
  layer.ffn = {.experts = 512,
               .experts_per_token = 22,
               .shared_experts = 2,
               .expert_hidden = 2688,
               .latent = 1024};
  layer.vector_parameters = layer.hidden;
  return layer;
}
LayerSpec DitBlock() {
  LayerSpec layer = Block(1152, 16, 16, 72, 4608, false, AttentionKind::kFull);
  layer.modulation = {.vectors = 6, .condition_width = 1152};
  return layer;
}
LayerSpec ConvolutionLayer() {
  LayerSpec layer;
  layer.kind = LayerKind::kConvolutions;
  layer.hidden = 640;
  layer.downsample = 2;
  layer.convolutions = {{.in = 320, .out = 640}, {.in = 640, .out = 640}};
  return layer;
}
LayerSpec CrossAttentionBlock() {
  LayerSpec layer =
      Block(3072, 24, 24, 128, 12288, false, AttentionKind::kFull);
  layer.cross_attention = {.heads = 24, .head_dim = 128, .context_width = 4096};
  return layer;
}
LayerSpec EmbeddingLayer() {
  LayerSpec layer;
  layer.kind = LayerKind::kEmbedding;
  layer.hidden = 4096;
  layer.vocab = 128256;
  return layer;
}
LayerSpec LossHeadLayer() {
  LayerSpec layer = EmbeddingLayer();
  layer.kind = LayerKind::kLossHead;
  return layer;
}
LayerSpec ProjectorLayer() {
  LayerSpec layer;
  layer.kind = LayerKind::kLinears;
  layer.hidden = 4096;
  layer.linears = {{.in = 7168, .out = 4096}, {.in = 4096, .out = 4096}};
  layer.on_output_tokens = true;
  return layer;
}
LayerSpec FixedLayer() {
  LayerSpec layer;
  layer.kind = LayerKind::kFixedWork;
  layer.hidden = 320;
  layer.vector_parameters = 1'000'000;
  layer.fixed_flops_per_token = 1e9;
  layer.fixed_flops_per_instance = 1e12;
  layer.fixed_activation_bytes_per_token = 1e3;
  layer.fixed_activation_bytes_per_instance = 1e6;
  return layer;
}

std::vector<LayerSpec> EveryLayerKind() {
  LayerSpec window = Vit5bBlock();
  window.attention.kind = AttentionKind::kWindow;
  window.attention.window = 64;
  LayerSpec low_rank = Llama3Block();
  low_rank.attention.query_rank = 2048;
  LayerSpec feed_forward_only = Llama3Block();
  feed_forward_only.attention = {};
  return {Llama3Block(),    Vit5bBlock(),          window,
          low_rank,         feed_forward_only,     MoeBlock(),
          EmbeddingLayer(), LossHeadLayer(),       CrossAttentionBlock(),
          ProjectorLayer(), FixedLayer(),          MlaBlock(),
          DitBlock(),       ConvolutionLayer(),    StateSpaceLayer(),
          DeltaNetBlock(),  GatedAttentionBlock(), LatentExpertsLayer()};
}

Stage StageOf(int32_t num_layers, int32_t module, int32_t first) {
  return {.module = ModuleId(module),
          .first_layer = LayerId(first),
          .num_layers = num_layers,
          .rank = RankId(0),
          .segment = SegmentId(0)};
}

WorkShape Sequences(int64_t sequences, int64_t length) {
  const auto n = static_cast<double>(sequences);
  const auto s = static_cast<double>(length);
  return {.instances = sequences,
          .tokens = sequences * length,
          .output_tokens = sequences * length / 4,
          .squared_tokens = n * s * s,
          .context_tokens = sequences * 64,
          .context_pairs = n * s * 64};
}

ExecutionPlan LowerNaively(const StageGraph& graph, const RankOrders& orders) {
  ExecutionPlan plan;
  plan.graph = graph;
  plan.programs.resize(graph.num_ranks());
  const auto crosses = [&](EdgeId e) {
    return graph.task(graph.edge(e).from).rank !=
           graph.task(graph.edge(e).to).rank;
  };
  for (const EdgeId e : graph.edge_ids()) {
    if (crosses(e)) {
      plan.programs[graph.task(graph.edge(e).to).rank].push_back(Recv{e});
    }
  }
  for (const RankId rank : graph.rank_ids()) {
    std::vector<Instruction>& program = plan.programs[rank];
    for (const TaskId task : orders[rank]) {
      for (const EdgeId e : graph.incoming(task)) {
        if (crosses(e)) program.push_back(WaitRecv{e});
      }
      program.push_back(Compute{task});
      for (const EdgeId e : graph.incoming(task)) {
        if (crosses(e)) program.push_back(Free{e});
      }
      for (const EdgeId e : graph.outgoing(task)) {
        if (crosses(e)) program.push_back(Send{e});
      }
    }
    if (graph.rank(rank).epilogue > kZero) {
      program.push_back(ReduceGradients{});
      program.push_back(OptimizerStep{});
    }
    for (const TaskId task : orders[rank]) {
      for (const EdgeId e : graph.outgoing(task)) {
        if (crosses(e)) program.push_back(WaitSend{e});
      }
    }
  }
  return plan;
}

RankOrders GPipeOrders(const StageGraph& graph) {
  RankOrders orders(graph.num_ranks());
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const TaskId t : graph.task_ids()) {
      if (graph.task(t).pass == pass) orders[graph.task(t).rank].push_back(t);
    }
  }
  for (std::vector<TaskId>& order : orders) {
    std::stable_sort(order.begin(), order.end(), [&](TaskId a, TaskId b) {
      const Task& x = graph.task(a);
      const Task& y = graph.task(b);
      return std::pair(x.pass, x.microbatch) < std::pair(y.pass, y.microbatch);
    });
  }
  return orders;
}

RankOrders OneFOneBOrders(const StageGraph& graph) {
  RankOrders orders = GPipeOrders(graph);
  for (const RankId rank : graph.rank_ids()) {
    const std::vector<TaskId> gpipe = orders[rank];
    const size_t m = gpipe.size() / 2;
    const size_t warm_up =
        std::min(m, static_cast<size_t>(graph.num_ranks() - 1 - rank.value()));
    std::vector<TaskId>& order = orders[rank];
    order.assign(gpipe.begin(), gpipe.begin() + static_cast<long>(warm_up));
    for (size_t b = 0; b < m; ++b) {
      if (warm_up + b < m) order.push_back(gpipe[warm_up + b]);
      order.push_back(gpipe[m + b]);
    }
  }
  return orders;
}

}  // namespace pipeloom::emulator
