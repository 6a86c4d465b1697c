// What a step is made of for the torch device: sequences with lengths and
// seeds, by microbatch, module and sub-microbatch, and which rows of one
// module's output another module needs. No torch in here.
//
// A sequence belongs to a sample (`owner`, counted within its microbatch). A
// module that is fed takes, for each of its sequences, all output rows of the
// same sample: as the first tokens of the sequence, or as the context of its
// cross-attention. So the rows that cross from one sub-microbatch to another
// follow from owners, and both ends know them without asking.
#ifndef PIPELOOM_RUNTIME_TORCH_TORCH_WORK_H_
#define PIPELOOM_RUNTIME_TORCH_TORCH_WORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/ids.h"
#include "ir/job/model_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/owned_instance.h"
#include "ir/plan/partition.h"

namespace pipeloom::runtime {

// A sequence as it runs. All lengths are rows.
struct TorchSequence {
  int32_t owner = 0;
  int64_t own = 0;      // Made from `seed`: token ids, patches, latents.
  int64_t fed = 0;      // From other modules; they come first.
  int64_t context = 0;  // For cross-attention.
  int64_t output = 0;
  uint64_t seed = 0;
  int64_t tokens() const { return own + fed; }
  bool operator==(const TorchSequence&) const = default;
};
using TorchSequences = std::vector<TorchSequence>;  // Of a sub-microbatch.

struct TorchWork {
  // By microbatch, then module: the sub-microbatches.
  IdVector<MicrobatchId, IdVector<ModuleId, std::vector<TorchSequences>>>
      parts{};
  // Rows of each module in the whole step: what its loss is divided by.
  IdVector<ModuleId, int64_t> loss_rows{};

  const TorchSequences& Of(const Task& task) const {
    return parts[task.microbatch][task.module]
                [static_cast<size_t>(task.sub_microbatch)];
  }
};

// `instances` are those of each microbatch, in the order in which they were cut
// to sub-microbatches: n of them in k even slices [n i / k, n (i + 1) / k).
// Token counts are divided by `token_divisor`, to at least 1 where there was
// one; how many tokens are merged into one output token stays as it is. Seeds
// depend on `seed`, the microbatch, the module and the instance only, so not
// on how the batch is cut. InvalidArgument: instances and microbatches do not
// fit together. Unimplemented: a way of feeding that the device lacks.
absl::StatusOr<TorchWork> MakeTorchWork(const ModelSpec& model,
                                        const StepInstances& instances,
                                        const Microbatches& microbatches,
                                        int64_t token_divisor, uint64_t seed);

// Rows [first, first + count) of a sub-microbatch's output.
struct RowRange {
  int32_t sequence = 0;
  int64_t first = 0;
  int64_t count = 0;
};
// What `from` hands to `to`: the output rows of the sequences whose sample has
// one in `to`, in order.
std::vector<RowRange> RowsFor(const TorchSequences& from,
                              const TorchSequences& to);

// The width of a module's tokens after layer `layer`, and how many rows there
// are: merged to output tokens from the first layer that works on those, or
// after the last.
int64_t WidthAfter(const ModuleSpec& module, LayerId layer);
bool MergedAfter(const ModuleSpec& module, LayerId layer);
int64_t RowsAfter(const ModuleSpec& module, LayerId layer,
                  const TorchSequences& sequences);
// Of the context that goes along with the tokens to the layers after `layer`;
// 0: none of them needs it.
int64_t ContextWidthAfter(const ModuleSpec& module, LayerId layer);

// What crosses along an edge. Zeros: order only.
struct EdgeShape {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t context_rows = 0;
  int64_t context_width = 0;
  int64_t elements() const {
    return rows * width + context_rows * context_width;
  }
};
EdgeShape ShapeOfEdge(const ModelSpec& model, const Partition& partition,
                      const TorchWork& work, const StageGraph& graph,
                      EdgeId edge);

// The plan with the device's own tensor sizes: the same tasks, orders and
// programs; edges with the bytes of ShapeOfEdge and without delays; no memory
// but that of received tensors. A plan's sizes are those of the job's GPUs,
// each with its share of a tensor; the device has whole tensors of its own
// element size.
absl::StatusOr<ExecutionPlan> ResizePlan(const ExecutionPlan& plan,
                                         const ModelSpec& model,
                                         const Partition& partition,
                                         const TorchWork& work,
                                         int64_t bytes_per_element);

// The model made small: widths over `width_divisor` (to multiples of 8), layers
// of a run of equal ones over `depth_divisor` (at least 1).
ModelSpec ScaleModel(const ModelSpec& model, int64_t width_divisor,
                     int64_t depth_divisor);

// Unimplemented names the first layer or edge that the device cannot carry out;
// InvalidArgument: widths that do not fit together.
absl::Status CheckTorchModel(const ModelSpec& model);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_WORK_H_
