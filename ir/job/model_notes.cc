#include "ir/job/model_notes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace pipeloom {
namespace {

constexpr double kPublishedTolerance = 0.05;

// Returns "module "language": layer 3 (block)".
std::string PlaceOf(const ModuleSpec& module, LayerId layer) {
  return absl::StrFormat("module \"%s\": layer %d (%s)", module.name,
                         layer.value(), module.layers[layer].name);
}

// Returns the width of the tokens that a module hands on.
int64_t OutputWidth(const ModuleSpec& module) {
  for (int32_t i = module.layers.size() - 1; i >= 0; --i) {
    const LayerSpec& layer = module.layers[LayerId(i)];
    if (layer.kind != LayerKind::kLossHead && layer.hidden > 0) {
      return layer.hidden;
    }
  }
  return 0;
}

// Returns the width of the tokens that a module's first layer takes, 0 if any.
int64_t InputWidth(const ModuleSpec& module) {
  const LayerSpec& first = module.layers[LayerId(0)];
  switch (first.kind) {
    case LayerKind::kLinears:
      return first.linears[0].in;
    case LayerKind::kConvolutions:
      return first.convolutions[0].in;
    case LayerKind::kFixedWork:
      return 0;
    case LayerKind::kTransformer:
    case LayerKind::kEmbedding:
    case LayerKind::kLossHead:
      return first.hidden;
  }
  return 0;
}

// Returns whether a module's first layer takes the tokens of another. Its first
// product may take several tokens at once; embedded text and blocks have one
// width only. The last convolution of an autoencoder gives a mean and a
// variance for each channel of the latents, so the next module takes half the
// width.
bool Takes(const ModuleSpec& module, const ModuleSpec& from) {
  const int64_t out = OutputWidth(from);
  const int64_t in = InputWidth(module);
  if (in == 0 || out == 0) return true;
  const LayerKind last = from.layers[LayerId(from.layers.size() - 1)].kind;
  if (last == LayerKind::kConvolutions && out == 2 * in) return true;
  const LayerKind first = module.layers[LayerId(0)].kind;
  const bool is_product =
      first == LayerKind::kLinears || first == LayerKind::kConvolutions;
  return is_product ? in % out == 0 : in == out;
}

void AddWidths(const ModelSpec& model, std::vector<std::string>* notes) {
  for (const ModuleEdge& edge : model.edges) {
    if (edge.as_context) continue;
    const ModuleSpec& from = model.modules[edge.from];
    const ModuleSpec& to = model.modules[edge.to];
    if (Takes(to, from)) continue;
    const int64_t out = OutputWidth(from);
    const int64_t in = InputWidth(to);
    notes->push_back(absl::StrFormat(
        "module \"%s\" hands on tokens of width %d, but \"%s\" takes %d: add a "
        "layer of kind LAYER_KIND_LINEARS from %d to %d, or make the edge "
        "as_context",
        from.name, out, to.name, in, out, in));
  }
}

// Adds a note on the first block or loss head of a module whose width is not
// that of the tokens that the layer before it gives. Products after one another
// may work side by side, and layers of other grids have widths of their own.
void AddChangedWidth(const ModuleSpec& module,
                     std::vector<std::string>* notes) {
  const LayerSpec* before = nullptr;
  for (const LayerId l : module.layers.ids()) {
    const LayerSpec& layer = module.layers[l];
    const bool keeps_width = layer.kind == LayerKind::kTransformer ||
                             layer.kind == LayerKind::kLossHead;
    if (keeps_width && before != nullptr && before->hidden != layer.hidden &&
        before->downsample == layer.downsample) {
      notes->push_back(absl::StrFormat(
          "%s has hidden %d, but the layer before it (%s) gives tokens of "
          "width %d: make them equal, or add a layer of kind "
          "LAYER_KIND_LINEARS from %d to %d",
          PlaceOf(module, l), layer.hidden, before->name, before->hidden,
          before->hidden, layer.hidden));
      return;
    }
    // A loss head gives no tokens, and fixed work may not say its width.
    if (layer.kind != LayerKind::kLossHead) {
      before = layer.hidden > 0 ? &layer : nullptr;
    }
  }
}

// Adds a note on the first products of a layer amid others that take tokens of
// another width than every layer before it and every feeding module gives.
void AddProjectorWidths(const ModelSpec& model, ModuleId m,
                        std::vector<std::string>* notes) {
  const ModuleSpec& module = model.modules[m];
  std::vector<int64_t> given;
  for (const ModuleEdge& edge : model.edges) {
    if (edge.to == m) given.push_back(OutputWidth(model.modules[edge.from]));
  }
  int64_t before = 0;
  for (const LayerId l : module.layers.ids()) {
    const LayerSpec& layer = module.layers[l];
    const int64_t in =
        layer.kind == LayerKind::kLinears ? layer.linears[0].in : 0;
    // It may take several tokens at once.
    if (in > 0 && before > 0 &&
        std::none_of(given.begin(), given.end(), [&](int64_t width) {
          return width == 0 || in % width == 0;
        })) {
      notes->push_back(absl::StrFormat(
          "%s begins with a product of width %d, but the layer before it gives "
          "tokens of width %d: make the first of linears take that, or a "
          "multiple if it joins tokens",
          PlaceOf(module, l), in, before));
    }
    before = layer.hidden;
    given.push_back(layer.hidden);
  }
}

// Adds a note on layers whose last product has another width than they say.
void AddLayerWidths(const ModelSpec& model, std::vector<std::string>* notes) {
  for (const ModuleId m : model.modules.ids()) {
    const ModuleSpec& module = model.modules[m];
    for (const LayerId l : module.layers.ids()) {
      const LayerSpec& layer = module.layers[l];
      if (layer.kind != LayerKind::kLinears || layer.linears.empty() ||
          layer.linears.back().out == layer.hidden) {
        continue;
      }
      notes->push_back(absl::StrFormat(
          "%s ends in a product of width %d, but its hidden is %d: make them "
          "equal",
          PlaceOf(module, l), layer.linears.back().out, layer.hidden));
    }
    AddChangedWidth(module, notes);
    AddProjectorWidths(model, m, notes);
  }
}

// Adds a note on loss heads that share a table which no embedding has.
void AddTiedHeads(const ModelSpec& model, std::vector<std::string>* notes) {
  std::vector<std::string> tables;
  const auto has_table = [&](const LayerSpec& head) {
    bool found = false;
    tables.clear();
    for (const ModuleSpec& module : model.modules) {
      for (const LayerSpec& layer : module.layers) {
        if (layer.kind != LayerKind::kEmbedding) continue;
        tables.push_back(absl::StrFormat("%d x %d", layer.vocab, layer.hidden));
        found |= layer.vocab == head.vocab && layer.hidden == head.hidden;
      }
    }
    return found;
  };
  for (const ModuleSpec& module : model.modules) {
    for (const LayerId l : module.layers.ids()) {
      const LayerSpec& layer = module.layers[l];
      if (layer.kind != LayerKind::kLossHead || !layer.tied ||
          has_table(layer)) {
        continue;
      }
      notes->push_back(absl::StrFormat(
          "%s is tied, so its table of %d x %d is that of an embedding, but "
          "%s: its parameters are counted nowhere; make vocab and hidden "
          "equal, or tied false",
          PlaceOf(module, l), layer.vocab, layer.hidden,
          tables.empty()
              ? std::string("the model has none")
              : absl::StrCat("the model has ", absl::StrJoin(tables, ", "))));
    }
  }
}

// Adds a note on modules whose cross-attention has nothing to attend to.
void AddMissingContext(const ModelSpec& model,
                       std::vector<std::string>* notes) {
  for (const ModuleId m : model.modules.ids()) {
    const ModuleSpec& module = model.modules[m];
    if (std::any_of(model.edges.begin(), model.edges.end(),
                    [&](const ModuleEdge& edge) {
                      return edge.to == m && edge.as_context;
                    })) {
      continue;
    }
    for (const LayerId l : module.layers.ids()) {
      const CrossAttentionSpec& c = module.layers[l].cross_attention;
      if (c.heads == 0 || c.context_tokens > 0) continue;
      notes->push_back(absl::StrFormat(
          "%s has cross_attention, but no edge into its module is as_context "
          "and cross_attention.context_tokens is 0, so it attends to nothing: "
          "add one of them",
          PlaceOf(module, l)));
      break;
    }
  }
}

// Returns the fields of a layer that are set and that its kind does not use.
std::vector<std::string> UnusedFields(const LayerSpec& layer) {
  const LayerKind kind = layer.kind;
  const bool is_block = kind == LayerKind::kTransformer;
  const bool has_vocab =
      kind == LayerKind::kEmbedding || kind == LayerKind::kLossHead;
  const bool has_fixed_work = layer.fixed_flops_per_token > 0 ||
                              layer.fixed_flops_per_instance > 0 ||
                              layer.fixed_activation_bytes_per_token > 0 ||
                              layer.fixed_activation_bytes_per_instance > 0;
  const struct {
    const char* field;
    bool unused;
  } fields[] = {
      {"attention", !is_block && layer.attention != AttentionSpec{}},
      {"cross_attention",
       !is_block && layer.cross_attention != CrossAttentionSpec{}},
      {"ffn", !is_block && layer.ffn != FfnSpec{}},
      {"modulation", !is_block && layer.modulation != ModulationSpec{}},
      {"vocab", !has_vocab && layer.vocab > 0},
      {"tied", kind != LayerKind::kLossHead && layer.tied},
      {"linears", kind != LayerKind::kLinears && !layer.linears.empty()},
      {"convolutions",
       kind != LayerKind::kConvolutions && !layer.convolutions.empty()},
      {"fixed_*", kind != LayerKind::kFixedWork && has_fixed_work},
  };
  std::vector<std::string> unused;
  for (const auto& f : fields) {
    if (f.unused) unused.emplace_back(f.field);
  }
  return unused;
}

// Adds a note on layers with fields of another kind, and on feed-forward parts
// with a width of 0. If equal layers follow one another, only the first has it.
void AddUnusedFields(const ModelSpec& model, std::vector<std::string>* notes) {
  for (const ModuleSpec& module : model.modules) {
    const LayerSpec* before = nullptr;
    for (const LayerId l : module.layers.ids()) {
      const LayerSpec& layer = module.layers[l];
      const bool repeats = before != nullptr && *before == layer;
      before = &layer;
      if (repeats) continue;
      if (const auto unused = UnusedFields(layer); !unused.empty()) {
        notes->push_back(absl::StrFormat(
            "%s has %s, which a layer of its kind does not use: give it a "
            "layer of the right kind, or leave it out",
            PlaceOf(module, l), absl::StrJoin(unused, " and ")));
      }
      if (layer.kind == LayerKind::kTransformer && layer.ffn.gated &&
          layer.ffn.hidden == 0 && layer.ffn.experts == 0) {
        notes->push_back(absl::StrFormat(
            "%s has ffn.gated, but ffn.hidden and ffn.experts are 0, so it has "
            "no feed-forward part: give it a width or experts, or leave ffn "
            "out",
            PlaceOf(module, l)));
      }
    }
  }
}

// Adds a note on encoders whose output nobody takes.
void AddUnusedEncoders(const ModelSpec& model,
                       std::vector<std::string>* notes) {
  for (const ModuleId m : model.modules.ids()) {
    const ModuleSpec& module = model.modules[m];
    const bool feeds =
        std::any_of(model.edges.begin(), model.edges.end(),
                    [&](const ModuleEdge& edge) { return edge.from == m; });
    if (module.role != ModuleRole::kEncoder || feeds ||
        model.modules.size() == 1) {
      continue;
    }
    notes->push_back(absl::StrFormat(
        "module \"%s\" is an encoder that feeds no other module: add its edge, "
        "such as {\"from\": \"%s\", \"to\": \"%s\"}",
        module.name, module.name,
        model.modules[ModuleId(model.modules.size() - 1)].name));
  }
}

}  // namespace

std::vector<std::string> ModelNotes(const ModelSpec& model) {
  std::vector<std::string> notes;
  if (!model.missing.empty()) {
    notes.push_back(absl::StrCat(
        "the model is incomplete, so times, memory and parameters are not "
        "those of the whole one: complete its layers and take these out of "
        "missing: ",
        absl::StrJoin(model.missing, "; ")));
  }
  AddLayerWidths(model, &notes);
  AddWidths(model, &notes);
  AddTiedHeads(model, &notes);
  AddMissingContext(model, &notes);
  AddUnusedFields(model, &notes);
  AddUnusedEncoders(model, &notes);
  const auto published = static_cast<double>(model.published_parameters);
  const auto ours = static_cast<double>(Parameters(model));
  if (published > 0 &&
      std::abs(ours - published) > kPublishedTolerance * published) {
    notes.push_back(absl::StrFormat(
        "the layers have %.4g parameters, but published_parameters is %.4g: "
        "compare widths, layers and experts",
        ours, published));
  }
  return notes;
}

}  // namespace pipeloom
