// A chain of layers of one or more modules, in units that no stage boundary may
// cut, and its cut into stages.
//
//   embedding block block ... block head | patches block ... block projector
//   [--------------][---]     [---][---]   [-------------]  [--------------]
//
// Layers with little work (look-ups, projectors) form a unit with the
// neighbouring block, as a stage of their own would be a pipeline step with
// nothing to do.
#ifndef PIPELOOM_PARTITION_PLACEMENT_LAYER_CHAIN_H_
#define PIPELOOM_PARTITION_PLACEMENT_LAYER_CHAIN_H_

#include <cstdint>
#include <vector>

#include "ir/job/model_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::partition {

// Consecutive layers of a module that stay together.
struct LayerUnit {
  ModuleId module{};
  LayerId first_layer{};
  int32_t num_layers = 0;
  int64_t weight = 0;
  bool operator==(const LayerUnit&) const = default;
};

// Appends the units of a module whose layers weigh `weights`. An embedding
// joins the layer after it; other layers that are neither transformer blocks
// nor fixed work and weigh less than 1/8 of the module's heaviest join the unit
// before them, or, at the front, the one after them. With `glue_loss_head` a
// loss head does so at any weight. REQUIRES: weights < 2^59.
void AppendUnits(ModuleId module, const ModuleSpec& spec,
                 const IdVector<LayerId, int64_t>& weights, bool glue_loss_head,
                 std::vector<LayerUnit>* units);

// Returns the number of units with a weight; at least 1.
int32_t CountWeighty(const std::vector<LayerUnit>& units);

// Cuts the chain into `runs` runs, or as many as there are units with a weight,
// so that the heaviest is as light as possible, and appends them as stages: run
// i on rank i % num_ranks and in segment partition->num_segments + i /
// num_ranks. A run over a module boundary becomes one stage per module.
// REQUIRES: the chain is not empty; partition->num_ranks >= 1.
void AppendStages(const std::vector<LayerUnit>& units, int32_t runs,
                  Partition* partition);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_LAYER_CHAIN_H_
