#include "runtime/torch/torch_work.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "base/fingerprint.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

LayerId LastLayer(const ModuleSpec& module) {
  return LayerId(module.layers.size() - 1);
}

int64_t Scaled(int64_t tokens, int64_t divisor) {
  return tokens == 0 ? 0 : std::max<int64_t>(1, tokens / divisor);
}

bool StartsWithEmbedding(const ModuleSpec& module) {
  return module.layers[LayerId(0)].kind == LayerKind::kEmbedding;
}

// Returns the sum of `rows` over the sample's sequences.
int64_t OutputOf(const std::vector<TorchSequence>& sequences, int32_t owner,
                 int64_t TorchSequence::*rows) {
  int64_t sum = 0;
  for (const TorchSequence& s : sequences) {
    if (s.owner == owner) sum += s.*rows;
  }
  return sum;
}

bool NeedsContext(const LayerSpec& layer) {
  return layer.kind == LayerKind::kTransformer &&
         layer.cross_attention.heads > 0;
}

}  // namespace

absl::StatusOr<TorchWork> MakeTorchWork(const ModelSpec& model,
                                        const StepInstances& instances,
                                        const Microbatches& microbatches,
                                        int64_t token_divisor, uint64_t seed) {
  if (token_divisor < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "token_divisor is %d; it must be at least 1", token_divisor));
  }
  if (instances.size() != microbatches.num_microbatches) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "instances of %d microbatches are given; the step has %d",
        instances.size(), microbatches.num_microbatches));
  }
  TorchWork work;
  work.loss_rows.resize(model.modules.size());
  for (const MicrobatchId mb : instances.ids()) {
    auto& parts = work.parts[work.parts.push_back({})];
    parts.resize(model.modules.size());
    IdVector<ModuleId, std::vector<TorchSequence>> all(model.modules.size());
    for (const ModuleId m : model.modules.ids()) {
      const std::vector<OwnedInstance>& given = instances[mb][m];
      for (size_t i = 0; i < given.size(); ++i) {
        const WorkShape& shape = given[i].shape;
        TorchSequence s{.owner = given[i].owner};
        FingerprintBuilder name;
        name.Add(seed).Add(mb.value()).Add(m.value()).Add(i);
        s.seed = name.Build().low;
        int64_t fed_before_scaling = 0;
        for (const ModuleEdge& edge : model.edges) {
          if (edge.to != m) continue;
          const int64_t rows =
              OutputOf(all[edge.from], s.owner, &TorchSequence::output);
          if (edge.as_context) {
            s.context += rows;
            continue;
          }
          s.fed += rows;
          for (const OwnedInstance& from : instances[mb][edge.from]) {
            if (from.owner != s.owner) continue;
            fed_before_scaling += from.shape.output_tokens;
          }
        }
        const int64_t own = std::max<int64_t>(
            0, shape.tokens - (s.fed > 0 ? fed_before_scaling : 0));
        s.own = Scaled(own, token_divisor);
        s.output = s.tokens();
        if (shape.output_tokens != shape.tokens && s.fed == 0 &&
            shape.output_tokens > 0) {
          s.output = Scaled(shape.output_tokens, token_divisor);
          s.own = shape.tokens % shape.output_tokens == 0
                      ? s.output * (shape.tokens / shape.output_tokens)
                      : s.own;
        }
        if (s.tokens() == 0) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "module \"%s\", microbatch %d: instance %d has no tokens",
              model.modules[m].name, mb.value(), i));
        }
        all[m].push_back(s);
        work.loss_rows[m] += s.tokens();
      }
      const auto cuts = static_cast<int64_t>(microbatches.Of(mb, m).size());
      const auto n = static_cast<int64_t>(given.size());
      if ((cuts == 0) != (n == 0) || cuts > n) {
        return absl::InvalidArgumentError(
            absl::StrFormat("module \"%s\", microbatch %d: %d instances for %d "
                            "sub-microbatches",
                            model.modules[m].name, mb.value(), n, cuts));
      }
      for (int64_t c = 0; c < cuts; ++c) {
        parts[m].emplace_back(all[m].begin() + n * c / cuts,
                              all[m].begin() + n * (c + 1) / cuts);
      }
    }
  }
  return work;
}

std::vector<RowRange> RowsFor(const TorchSequences& from,
                              const TorchSequences& to) {
  std::vector<RowRange> ranges;
  int64_t first = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool needed = std::any_of(
        to.begin(), to.end(),
        [&](const TorchSequence& s) { return s.owner == from[i].owner; });
    if (needed) {
      ranges.push_back({.sequence = static_cast<int32_t>(i),
                        .first = first,
                        .count = from[i].output});
    }
    first += from[i].output;
  }
  return ranges;
}

int64_t WidthAfter(const ModuleSpec& module, LayerId layer) {
  const LayerSpec& spec = module.layers[layer];
  if (spec.kind == LayerKind::kLinears && !spec.linears.empty()) {
    return spec.linears.back().out;
  }
  return spec.hidden;
}

bool MergedAfter(const ModuleSpec& module, LayerId layer) {
  if (layer == LastLayer(module)) return true;
  for (LayerId l(0); l <= layer; ++l) {
    if (module.layers[l].on_output_tokens) return true;
  }
  return false;
}

int64_t RowsAfter(const ModuleSpec& module, LayerId layer,
                  const TorchSequences& sequences) {
  const bool merged = MergedAfter(module, layer);
  int64_t rows = 0;
  for (const TorchSequence& s : sequences) {
    rows += merged ? s.output : s.tokens();
  }
  return rows;
}

int64_t ContextWidthAfter(const ModuleSpec& module, LayerId layer) {
  for (LayerId l(layer.value() + 1); l.value() < module.layers.size(); ++l) {
    if (NeedsContext(module.layers[l])) {
      return module.layers[l].cross_attention.context_width;
    }
  }
  return 0;
}

EdgeShape ShapeOfEdge(const ModelSpec& model, const Partition& partition,
                      const TorchWork& work, const StageGraph& graph,
                      EdgeId edge) {
  // A gradient has the shape of the tensor that it is the gradient of.
  const Dependency& d = graph.edge(edge);
  const Task* from = &graph.task(d.from);
  const Task* to = &graph.task(d.to);
  if (from->pass != to->pass || from->pass == Pass::kWeightGrad) return {};
  if (from->pass == Pass::kBackward) std::swap(from, to);
  const ModuleSpec& module = model.modules[from->module];
  if (from->module != to->module) {
    EdgeShape shape{.width = WidthAfter(module, LastLayer(module))};
    for (const RowRange& range : RowsFor(work.Of(*from), work.Of(*to))) {
      shape.rows += range.count;
    }
    return shape;
  }
  const Stage& stage = partition.stages[from->stage];
  const LayerId last(stage.first_layer.value() + stage.num_layers - 1);
  EdgeShape shape{.rows = RowsAfter(module, last, work.Of(*from)),
                  .width = WidthAfter(module, last),
                  .context_width = ContextWidthAfter(module, last)};
  if (shape.context_width > 0) {
    for (const TorchSequence& s : work.Of(*from)) {
      shape.context_rows += s.context;
    }
  }
  return shape;
}

absl::StatusOr<ExecutionPlan> ResizePlan(const ExecutionPlan& plan,
                                         const ModelSpec& model,
                                         const Partition& partition,
                                         const TorchWork& work,
                                         int64_t bytes_per_element) {
  const StageGraph& graph = plan.graph;
  for (const TaskId id : graph.task_ids()) {
    const Task& task = graph.task(id);
    const bool fits = task.stage.value() >= 0 &&
                      task.stage.value() < partition.stages.size() &&
                      partition.stages[task.stage].module == task.module &&
                      partition.stages[task.stage].rank == task.rank &&
                      task.microbatch.value() < work.parts.size() &&
                      static_cast<size_t>(task.sub_microbatch) <
                          work.parts[task.microbatch][task.module].size();
    if (!fits) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the plan is not one of this job and batch: %s on rank %d",
          DescribeTask(graph, id), task.rank.value()));
    }
  }
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) rank.memory = {};
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (Task& task : tasks) task.alloc = task.free = Bytes(0);
  IdVector<EdgeId, Dependency> edges = graph.edges();
  for (const EdgeId id : edges.ids()) {
    Dependency& edge = edges[id];
    edge.delay = edge.occupancy = kZero;
    edge.payload = Bytes(0);
    edge.rows = edge.width = 0;
    if (tasks[edge.from].rank == tasks[edge.to].rank) continue;
    const EdgeShape shape = ShapeOfEdge(model, partition, work, graph, id);
    edge.payload = Bytes(shape.elements() * bytes_per_element);
    edge.rows = shape.rows;
    edge.width = shape.width;
  }
  ExecutionPlan resized = plan;
  // Its transfers take no time, so the plan's prediction is not for it.
  resized.predicted_step_time = resized.lower_bound = kZero;
  // A copy counts one byte, as the plan's sizes are not the device's.
  constexpr Bytes kMark(1);
  for (std::vector<Instruction>& program : resized.programs) {
    for (Instruction& i : program) {
      if (auto* fetch = std::get_if<Fetch>(&i)) fetch->payload = kMark;
      auto* offload = std::get_if<Offload>(&i);
      if (offload == nullptr) continue;
      offload->payload = kMark;
      Task& forward = tasks[offload->task];
      forward.alloc = kMark;
      for (const EdgeId e : graph.outgoing(offload->task)) {
        Task& to = tasks[graph.edge(e).to];
        if (to.pass == Pass::kBackward && to.stage == forward.stage) {
          to.free = kMark;
        }
      }
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      resized.graph,
      StageGraph::Create(graph.name(), std::move(ranks), graph.module_names(),
                         std::move(tasks), std::move(edges)));
  return resized;
}

ModelSpec ScaleModel(const ModelSpec& model, int64_t width_divisor,
                     int64_t depth_divisor) {
  const auto width = [&](int64_t w) {
    if (w == 0 || width_divisor == 1) return w;
    return std::max<int64_t>(8, (w / width_divisor + 7) / 8 * 8);
  };
  const auto heads = [&](int64_t n) {
    return n == 0 ? 0 : std::max<int64_t>(1, n / width_divisor);
  };
  ModelSpec scaled = model;
  for (ModuleSpec& module : scaled.modules) {
    // Runs of equal layers become shorter.
    IdVector<LayerId, LayerSpec> layers;
    for (int32_t i = 0; i < module.layers.size();) {
      int32_t end = i;
      while (end < module.layers.size() &&
             module.layers[LayerId(end)] == module.layers[LayerId(i)]) {
        ++end;
      }
      const int64_t count = std::max<int64_t>(1, (end - i) / depth_divisor);
      for (int64_t k = 0; k < count; ++k) {
        layers.push_back(module.layers[LayerId(i)]);
      }
      i = end;
    }
    module.layers = std::move(layers);
    int64_t before = 0;  // Unscaled width of the layer's input.
    for (LayerSpec& layer : module.layers) {
      for (LinearSpec& linear : layer.linears) {
        const bool merges =
            before > 0 && linear.in > before && linear.in % before == 0;
        linear.in =
            merges ? linear.in / before * width(before) : width(linear.in);
        before = linear.out;
        linear.out = width(linear.out);
      }
      if (layer.linears.empty()) before = layer.hidden;
      layer.hidden = width(layer.hidden);
      AttentionSpec& a = layer.attention;
      if (a.kind != AttentionKind::kNone && width_divisor > 1) {
        const int64_t group =
            std::max<int64_t>(1, a.heads / std::max<int64_t>(1, a.kv_heads));
        a.kv_heads = heads(a.kv_heads);
        a.heads = a.kv_heads * (a.heads > 1 ? std::min<int64_t>(group, 4) : 1);
        a.head_dim = width(a.head_dim);
      }
      CrossAttentionSpec& c = layer.cross_attention;
      if (c.heads > 0 && width_divisor > 1) {
        c.heads = heads(c.heads);
        c.head_dim = width(c.head_dim);
        c.context_width = width(c.context_width);
      }
      layer.ffn.hidden = width(layer.ffn.hidden);
      layer.vocab = width(layer.vocab);
      layer.modulation.condition_width =
          width(layer.modulation.condition_width);
      if (width_divisor > 1) layer.vector_parameters = 0;
    }
  }
  return scaled;
}

absl::Status CheckTorchLayers(const ModelSpec& model) {
  for (const ModuleSpec& module : model.modules) {
    for (const LayerId l : module.layers.ids()) {
      const LayerSpec& layer = module.layers[l];
      const AttentionSpec& a = layer.attention;
      absl::string_view lacks;
      if (layer.kind == LayerKind::kFixedWork) lacks = "fixed work";
      if (layer.kind == LayerKind::kConvolutions) lacks = "convolutions";
      if (layer.ffn.experts > 0) lacks = "experts";
      if (a.query_rank > 0 || a.kv_rank > 0) lacks = "low-rank attention";
      if (a.output_gate) lacks = "output gates of attention";
      if (layer.state_space.heads > 0) lacks = "state spaces";
      if (layer.delta_net.value_heads > 0) lacks = "delta nets";
      if (a.kind == AttentionKind::kCausal && a.window > 0) {
        lacks = "sliding windows";
      }
      if (layer.kind == LayerKind::kEmbedding && l != LayerId(0)) {
        lacks = "an embedding behind other layers";
      }
      if (!lacks.empty()) {
        return absl::UnimplementedError(absl::StrFormat(
            "the torch device has no %s yet: module \"%s\", layer %d (%s)",
            std::string(lacks), module.name, l.value(), layer.name));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTorchModel(const ModelSpec& model) {
  PIPELOOM_RETURN_IF_ERROR(CheckTorchLayers(model));
  PIPELOOM_RETURN_IF_ERROR(ValidateModelSpec(model));
  for (const ModuleSpec& module : model.modules) {
    int64_t width = 0;
    for (const LayerId l : module.layers.ids()) {
      const LayerSpec& layer = module.layers[l];
      const int64_t in =
          layer.kind == LayerKind::kLinears
              ? (layer.linears.empty() ? layer.hidden : layer.linears[0].in)
              : layer.hidden;
      if (width > 0 && layer.kind != LayerKind::kEmbedding && in != width &&
          !(layer.on_output_tokens && in % width == 0)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "module \"%s\", layer %d (%s): it takes tokens of width %d; the "
            "layer before it gives %d",
            module.name, l.value(), layer.name, in, width));
      }
      width = WidthAfter(module, l);
    }
  }
  for (const ModuleEdge& edge : model.edges) {
    const ModuleSpec& from = model.modules[edge.from];
    const ModuleSpec& to = model.modules[edge.to];
    const int64_t width = WidthAfter(from, LastLayer(from));
    int64_t wanted = to.layers[LayerId(0)].hidden;
    if (edge.as_context) {
      wanted = NeedsContext(to.layers[LayerId(0)])
                   ? to.layers[LayerId(0)].cross_attention.context_width
                   : ContextWidthAfter(to, LayerId(0));
      if (wanted == 0) wanted = width;  // Nobody looks at it.
    } else if (!StartsWithEmbedding(to) || !to.token_rules.empty()) {
      return absl::UnimplementedError(absl::StrFormat(
          "the torch device hands tokens only to modules that begin with an "
          "embedding: \"%s\" feeds \"%s\"",
          from.name, to.name));
    }
    if (width != wanted) {
      return absl::InvalidArgumentError(
          absl::StrFormat("\"%s\" feeds \"%s\" with tokens of width %d; it "
                          "takes %d",
                          from.name, to.name, width, wanted));
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::runtime
