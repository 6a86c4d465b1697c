#include "partition/placement/layer_chain.h"

#include <algorithm>

#include "base/check.h"
#include "partition/placement/layer_partition.h"

namespace pipeloom::partition {
namespace {

// A layer with less than 1/8 of the weight of its module's heaviest is little
// work.
constexpr int64_t kLittle = 8;

bool MayBeLittle(LayerKind kind) {
  return kind != LayerKind::kTransformer && kind != LayerKind::kFixedWork;
}

}  // namespace

void AppendUnits(ModuleId module, const ModuleSpec& spec,
                 const IdVector<LayerId, int64_t>& weights, bool glue_loss_head,
                 std::vector<LayerUnit>* units) {
  PIPELOOM_CHECK(weights.size() == spec.layers.size());
  const size_t begin = units->size();
  const int64_t heaviest = *std::max_element(weights.begin(), weights.end());
  LayerUnit waiting{.module = module, .first_layer = LayerId(0)};
  for (const LayerId id : spec.layers.ids()) {
    const LayerKind kind = spec.layers[id].kind;
    const bool little = kind == LayerKind::kEmbedding ||
                        (kind == LayerKind::kLossHead && glue_loss_head) ||
                        (MayBeLittle(kind) && weights[id] * kLittle < heaviest);
    const bool joins_last = little && kind != LayerKind::kEmbedding &&
                            units->size() > begin && waiting.num_layers == 0;
    if (joins_last) {
      ++units->back().num_layers;
      units->back().weight += weights[id];
      continue;
    }
    if (waiting.num_layers == 0) waiting.first_layer = id;
    ++waiting.num_layers;
    waiting.weight += weights[id];
    if (little) continue;
    units->push_back(waiting);
    waiting = {.module = module};
  }
  if (waiting.num_layers == 0) return;
  if (units->size() == begin) {
    units->push_back(waiting);
  } else {
    units->back().num_layers += waiting.num_layers;
    units->back().weight += waiting.weight;
  }
}

int32_t CountWeighty(const std::vector<LayerUnit>& units) {
  const auto count =
      std::count_if(units.begin(), units.end(),
                    [](const LayerUnit& unit) { return unit.weight > 0; });
  return std::max(1, static_cast<int32_t>(count));
}

void AppendStages(const std::vector<LayerUnit>& units, int32_t runs,
                  Partition* partition) {
  PIPELOOM_CHECK(!units.empty() && runs >= 1 && partition->num_ranks >= 1);
  runs = std::min(runs, CountWeighty(units));
  std::vector<int64_t> weights;
  for (const LayerUnit& unit : units) weights.push_back(unit.weight);
  std::vector<int32_t> begins = SplitLayers(weights, runs);
  begins.push_back(static_cast<int32_t>(units.size()));
  const int32_t first_segment = partition->num_segments;
  for (int32_t run = 0; run < runs; ++run) {
    const SegmentId segment(first_segment + run / partition->num_ranks);
    bool open = false;
    for (int32_t u = begins[static_cast<size_t>(run)];
         u < begins[static_cast<size_t>(run) + 1]; ++u) {
      const LayerUnit& unit = units[static_cast<size_t>(u)];
      if (open) {
        Stage& last = partition->stages[StageId(partition->stages.size() - 1)];
        if (last.module == unit.module) {
          last.num_layers += unit.num_layers;
          continue;
        }
      }
      partition->stages.push_back({.module = unit.module,
                                   .first_layer = unit.first_layer,
                                   .num_layers = unit.num_layers,
                                   .rank = RankId(run % partition->num_ranks),
                                   .segment = segment});
      open = true;
    }
    partition->num_segments = segment.value() + 1;
  }
}

}  // namespace pipeloom::partition
