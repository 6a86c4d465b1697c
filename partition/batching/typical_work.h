// What a step typically brings each module, measured on a sample of batches,
// and what a module's layers cost at such a size: what partitions are chosen
// by, once a job.
#ifndef PIPELOOM_PARTITION_BATCHING_TYPICAL_WORK_H_
#define PIPELOOM_PARTITION_BATCHING_TYPICAL_WORK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::partition {

// Of one module.
struct TypicalWork {
  WorkShape total{};           // Of the whole sample.
  int64_t microbatches = 0;    // That have work for it.
  int64_t most_instances = 0;  // In one microbatch.
  int64_t instances = 0;       // In one microbatch on average, rounded up.
  bool present() const { return microbatches > 0; }
  // The mean shape of `count` instances. REQUIRES: present().
  WorkShape Of(int64_t count) const;
  // Of a sub-microbatch of at most `size` instances; 0: of a microbatch.
  WorkShape OfSlice(int64_t size) const;
  // Sub-microbatches of a typical microbatch.
  int64_t Slices(int64_t size) const;
};

// InvalidArgument: the sample is empty or has no work for the model.
absl::StatusOr<IdVector<ModuleId, TypicalWork>> MeasureTypicalWork(
    const JobSpec& job, const BatchMetadata& sample);

// 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: the sub-microbatch sizes that are tried.
int64_t NextSize(int64_t size);

// Prices modules and layers on one rank, the first if none is said. Keeps
// references.
class LayerPricing {
 public:
  LayerPricing(const JobSpec& job, const emulator::StageCostModel& costs);

  // Of the module's forward pass.
  Duration Forward(ModuleId module, const WorkShape& shape) const;
  // Forward, backward and weight gradient.
  Duration AllPasses(ModuleId module, const WorkShape& shape) const;
  // StageCost::least_load of all layers on rank 0.
  Duration LeastLoad(ModuleId module, const WorkShape& shape) const;
  Duration AllPasses(ModuleId module, const WorkShape& shape,
                     RankId rank) const;
  Duration AllPasses(ModuleId module, LayerId layer,
                     const WorkShape& shape) const;
  // What the module keeps for its backward.
  Bytes Activations(ModuleId module, const WorkShape& shape) const;
  // By layer, AllPasses of a typical microbatch in sub-microbatches of `size`,
  // in nanoseconds; of a module that the sample does not use, its parameters.
  IdVector<LayerId, int64_t> SplitWeights(ModuleId module,
                                          const TypicalWork& work,
                                          int64_t size) const;

 private:
  emulator::StageCost Price(ModuleId m, LayerId first, int32_t count,
                            const WorkShape& shape,
                            RankId rank = RankId(0)) const;

  const JobSpec& job_;
  const emulator::StageCostModel& costs_;
  IdVector<ModuleId, bool> trains_{};  // Itself or something before it.
};

// DIP's rule for the size of a sub-microbatch: the smallest of NextSize whose
// forward pass handles at least 95 % of the best instances per second.
int64_t EfficientSize(const LayerPricing& pricing, ModuleId module,
                      const TypicalWork& work);

// Work of a layer by its parameters in matrix products; look-ups are none.
int64_t ParameterWeight(const LayerSpec& layer);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_TYPICAL_WORK_H_
