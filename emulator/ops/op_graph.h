// The operators that one layer runs on one GPU for one WorkShape, under tensor
// parallelism with sequence parallelism, context parallelism and expert
// parallelism. emulator/ops has a file for each kind of layer.
//
// Sizes are those of one GPU: widths divided by tp, tokens by cp. A pass is a
// list of consecutive OpSteps; a step has a compute stream and a communication
// stream that run concurrently.
//
//   forward:     norm | all-gather | QKV | attention | projection |
//                reduce-scatter | norm | all-gather | up | activation | down |
//                reduce-scatter
//
// Counting rules and what is left out: docs/emulator_model.md.
#ifndef PIPELOOM_EMULATOR_OPS_OP_GRAPH_H_
#define PIPELOOM_EMULATOR_OPS_OP_GRAPH_H_

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "emulator/ops/layer_ops.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/operator_group.h"
#include "ir/plan/microbatches.h"
#include "ir/profile/op_query.h"

namespace pipeloom::emulator {

// Builds the operators of all passes. Passes that `needs` excludes are empty.
// O(1) operators.
LayerOps BuildLayerOps(const LayerSpec& layer, const WorkShape& shape,
                       const ParallelLayout& parallel,
                       const GradientNeeds& needs,
                       const OpOptions& options = {});

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_OP_GRAPH_H_
