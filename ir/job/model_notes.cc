#include "ir/job/model_notes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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

void AddWidths(const ModelSpec& model, std::vector<std::string>* notes) {
  for (const ModuleEdge& edge : model.edges) {
    if (edge.as_context) continue;
    const ModuleSpec& from = model.modules[edge.from];
    const ModuleSpec& to = model.modules[edge.to];
    const int64_t out = OutputWidth(from);
    const int64_t in = InputWidth(to);
    // A first product may take several tokens at once.
    if (out == 0 || in == 0 || in % out == 0) continue;
    notes->push_back(absl::StrFormat(
        "module \"%s\" hands on tokens of width %d, but \"%s\" takes %d: add a "
        "layer of kind LAYER_KIND_LINEARS from %d to %d, or make the edge "
        "as_context",
        from.name, out, to.name, in, out, in));
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
  }
}

// Adds a note on gated feed-forward parts of width 0; of equal layers in a row,
// on the first.
void AddEmptyParts(const ModelSpec& model, std::vector<std::string>* notes) {
  for (const ModuleSpec& module : model.modules) {
    const LayerSpec* before = nullptr;
    for (const LayerId l : module.layers.ids()) {
      const LayerSpec& layer = module.layers[l];
      const bool repeats = before != nullptr && *before == layer;
      before = &layer;
      if (repeats) continue;
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
  for (const std::string& part : model.missing) {
    notes.push_back(absl::StrCat(
        "the model is incomplete, so times, memory and parameters are not "
        "those of the whole one; missing: ",
        part, "; complete the layers and take it out of missing"));
  }
  AddLayerWidths(model, &notes);
  AddWidths(model, &notes);
  AddEmptyParts(model, &notes);
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
