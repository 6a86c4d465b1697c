// The typical work of each module in a step, measured on a sample of batches,
// and the cost of a module's layers at such a size. Partitions are chosen by
// them, once per job.
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

// The typical work of one module.
struct TypicalWork {
  WorkShape total{};           // Sum over the whole sample.
  int64_t microbatches = 0;    // Microbatches with work for the module.
  int64_t most_instances = 0;  // Most in one microbatch.
  int64_t instances = 0;       // Mean per microbatch, rounded up.
  bool present() const { return microbatches > 0; }
  // Returns the mean shape of `count` instances. REQUIRES: present().
  WorkShape Of(int64_t count) const;
  // Returns the shape of a sub-microbatch of at most `size` instances; 0: of a
  // microbatch.
  WorkShape OfSlice(int64_t size) const;
  // Returns the number of sub-microbatches of a typical microbatch.
  int64_t Slices(int64_t size) const;
};

// Measures the sample. InvalidArgument: it is empty or has no work for the
// model.
absl::StatusOr<IdVector<ModuleId, TypicalWork>> MeasureTypicalWork(
    const JobSpec& job, const BatchMetadata& sample);

// Returns the next of the sub-microbatch sizes that are tried: 1, 2, 3, 4, 6,
// 8, 12, 16, 24, ...
int64_t NextSize(int64_t size);

// Prices of modules and layers on one rank, by default the first. Keeps
// references.
class LayerPricing {
 public:
  LayerPricing(const JobSpec& job, const emulator::StageCostModel& costs);

  // Returns the time of the module's forward pass.
  Duration Forward(ModuleId module, const WorkShape& shape) const;
  // Returns the time of forward, backward and weight gradient.
  Duration AllPasses(ModuleId module, const WorkShape& shape) const;
  // Returns StageCost::least_load of all layers on rank 0.
  Duration LeastLoad(ModuleId module, const WorkShape& shape) const;
  Duration AllPasses(ModuleId module, const WorkShape& shape,
                     RankId rank) const;
  Duration AllPasses(ModuleId module, LayerId layer,
                     const WorkShape& shape) const;
  // Returns the bytes that the module keeps for its backward.
  Bytes Activations(ModuleId module, const WorkShape& shape) const;
  // Returns AllPasses of each layer for a typical microbatch in
  // sub-microbatches of `size`, in nanoseconds; for a module that the sample
  // does not use, the parameters of each layer.
  IdVector<LayerId, int64_t> SplitWeights(ModuleId module,
                                          const TypicalWork& work,
                                          int64_t size) const;

 private:
  emulator::StageCost Price(ModuleId m, LayerId first, int32_t count,
                            const WorkShape& shape,
                            RankId rank = RankId(0)) const;

  const JobSpec& job_;
  const emulator::StageCostModel& costs_;
  IdVector<ModuleId, bool> trains_{};  // The module itself or one before it.
};

// Returns the size of a sub-microbatch by DIP's rule: the smallest of NextSize
// whose forward pass handles at least 95 % of the best instances per second.
int64_t EfficientSize(const LayerPricing& pricing, ModuleId module,
                      const TypicalWork& work);

// Returns the work of a layer by its parameters in matrix products; 0 for a
// look-up.
int64_t ParameterWeight(const LayerSpec& layer);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_TYPICAL_WORK_H_
