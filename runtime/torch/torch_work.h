// The work of a step for the torch device: sequences with lengths and seeds, by
// microbatch, module and sub-microbatch, and the rows of one module's output
// that another module needs. This header needs no libtorch.
//
// A sequence belongs to a sample (`owner`, counted within its microbatch). A
// module that is fed takes, for each of its sequences, all output rows of the
// same sample: as the first tokens of the sequence, or as the context of its
// cross-attention. So the rows that cross from one sub-microbatch to another
// follow from the owners, and both ends know them without communication.
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

// A sequence as it runs. All lengths are in rows.
struct TorchSequence {
  int32_t owner = 0;
  int64_t own = 0;      // Made from `seed`: token ids, patches, latents.
  int64_t fed = 0;      // From other modules; they precede the own rows.
  int64_t context = 0;  // For cross-attention.
  int64_t output = 0;
  uint64_t seed = 0;
  int64_t tokens() const { return own + fed; }
  bool operator==(const TorchSequence&) const = default;
};
// The sequences of one sub-microbatch.
using TorchSequences = std::vector<TorchSequence>;

// The work of one step.
struct TorchWork {
  // The sub-microbatches, indexed by microbatch, then module.
  IdVector<MicrobatchId, IdVector<ModuleId, std::vector<TorchSequences>>>
      parts{};
  // The rows of each module in the whole step, by which its loss is divided.
  IdVector<ModuleId, int64_t> loss_rows{};

  // Returns the sequences of a task.
  const TorchSequences& Of(const Task& task) const {
    return parts[task.microbatch][task.module]
                [static_cast<size_t>(task.sub_microbatch)];
  }
};

// Makes the work of a step. `instances` are those of each microbatch, in the
// order in which they were cut into sub-microbatches: n instances in k even
// slices [n i / k, n (i + 1) / k). Token counts are divided by `token_divisor`,
// to at least 1 where there was one; the number of tokens that are merged into
// one output token stays unchanged. Seeds depend on `seed`, the microbatch, the
// module and the instance only, so not on how the batch is cut.
// InvalidArgument: instances and microbatches do not fit together, or an
// instance has no tokens.
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
// Returns the rows that `from` hands to `to`: the output rows of the sequences
// whose sample has one in `to`, in order.
std::vector<RowRange> RowsFor(const TorchSequences& from,
                              const TorchSequences& to);

// Return the width of a module's tokens after layer `layer`, whether they are
// merged to output tokens, and their number. They are merged from the first
// layer that works on output tokens, or after the last layer.
int64_t WidthAfter(const ModuleSpec& module, LayerId layer);
bool MergedAfter(const ModuleSpec& module, LayerId layer);
int64_t RowsAfter(const ModuleSpec& module, LayerId layer,
                  const TorchSequences& sequences);
// Returns the width of the context that goes along with the tokens to the
// layers after `layer`; 0 if none of them needs it.
int64_t ContextWidthAfter(const ModuleSpec& module, LayerId layer);

// The tensors that cross along an edge. All zero: the edge only orders tasks.
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

// Returns the plan with the device's own tensor sizes: the same tasks, orders
// and programs; edges with the bytes of ShapeOfEdge and without delays; no
// memory except that of received tensors. (A plan's sizes are those of the
// job's GPUs, each with its share of a tensor; the device has whole tensors of
// its own element size.)
absl::StatusOr<ExecutionPlan> ResizePlan(const ExecutionPlan& plan,
                                         const ModelSpec& model,
                                         const Partition& partition,
                                         const TorchWork& work,
                                         int64_t bytes_per_element);

// Returns a smaller model: widths are divided by `width_divisor` (to multiples
// of 8), the layers in a run of equal ones by `depth_divisor` (at least 1).
ModelSpec ScaleModel(const ModelSpec& model, int64_t width_divisor,
                     int64_t depth_divisor);

// Checks that the device has all kinds of layers of the model, before or after
// ScaleModel(). Unimplemented names the first layer that it cannot carry out.
absl::Status CheckTorchLayers(const ModelSpec& model);

// Checks that the device can run the model. Unimplemented names the first layer
// or edge that it cannot carry out; InvalidArgument: widths do not fit
// together.
absl::Status CheckTorchModel(const ModelSpec& model);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_WORK_H_
