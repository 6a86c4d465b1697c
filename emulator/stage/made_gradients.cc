#include "emulator/stage/made_gradients.h"

#include <algorithm>

#include "base/numeric.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {

bool HasBuckets(const JobSpec& job) {
  return job.setup.framework == Framework::kPyTorch &&
         DenseReplicas(job.parallel) > 1 &&
         job.training.optimizer_sharding == OptimizerSharding::kNone;
}

bool MakesGradients(const JobSpec& job) {
  return job.setup.framework == Framework::kPyTorch && job.parallel.pp == 1 &&
         (DenseReplicas(job.parallel) == 1 || HasBuckets(job));
}

MadeGradients GradientsMadeBy(const ModuleSpec& module, LayerId layer,
                              const ParallelLayout& parallel, int64_t bytes) {
  const LayerSpec& own = module.layers[layer];
  const ShardedParameters parameters = ParametersOnGpu(own, parallel);
  MadeGradients made{
      .held = Bytes((parameters.dense + parameters.experts) * bytes)};
  const LayerSpec& last = module.layers[LayerId(module.layers.size() - 1)];
  if (!last.tied) return made;
  const Bytes table(CeilDiv(last.vocab * last.hidden, int64_t{parallel.tp}) *
                    bytes);
  if (own.kind == LayerKind::kLossHead) {
    made.held += table;
  } else if (own.kind == LayerKind::kEmbedding) {
    made.held -= std::min(table, made.held);
    made.scratch = 2 * table;
  }
  return made;
}

}  // namespace pipeloom::emulator
