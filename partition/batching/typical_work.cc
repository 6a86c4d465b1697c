#include "partition/batching/typical_work.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {
namespace {

constexpr double kEnoughEfficiency = 0.95;
// Keeps sums of weights in range even for absurd layers.
constexpr int64_t kMaxWeight = int64_t{1} << 48;
constexpr int64_t kMaxSlices = int64_t{1} << 12;

}  // namespace

WorkShape TypicalWork::Of(int64_t count) const {
  const double share =
      static_cast<double>(count) / static_cast<double>(total.instances);
  const auto scaled = [&](int64_t value) {
    return static_cast<int64_t>(
        std::llround(static_cast<double>(value) * share));
  };
  return {.instances = count,
          .tokens = std::max<int64_t>(scaled(total.tokens), 1),
          .output_tokens = scaled(total.output_tokens),
          .squared_tokens = total.squared_tokens * share,
          .context_tokens = scaled(total.context_tokens),
          .context_pairs = total.context_pairs * share,
          .sequences = total.sequences * share,
          .longest = total.longest};
}

WorkShape TypicalWork::OfSlice(int64_t size) const {
  return Of(size > 0 ? std::min(size, instances) : instances);
}

int64_t TypicalWork::Slices(int64_t size) const {
  return size > 0 && instances > 0 ? (instances + size - 1) / size : 1;
}

absl::StatusOr<IdVector<ModuleId, TypicalWork>> MeasureTypicalWork(
    const JobSpec& job, const BatchMetadata& sample) {
  // All of the sample in one replica's step.
  JobSpec whole_job = job;
  whole_job.parallel.dp = 1;
  whole_job.training.microbatches = std::max(1, sample.samples.size());
  PIPELOOM_ASSIGN_OR_RETURN(const PackedStep step,
                            PackStep(whole_job, sample, /*first_sample=*/0));
  Partition whole;
  whole.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  PIPELOOM_ASSIGN_OR_RETURN(
      const Microbatches microbatches,
      SplitUnpadded(whole_job, step, /*replica=*/0, whole));
  IdVector<ModuleId, TypicalWork> typical(job.model.modules.size());
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    TypicalWork& t = typical[sub.module];
    t.total += sub.shape;
    ++t.microbatches;
    t.most_instances = std::max(t.most_instances, sub.shape.instances);
  }
  for (TypicalWork& t : typical) {
    if (!t.present()) continue;
    t.instances = (t.total.instances + t.microbatches - 1) / t.microbatches;
  }
  return typical;
}

int64_t NextSize(int64_t size) {
  if (size < 4) return size + 1;
  const bool power_of_two = (size & (size - 1)) == 0;
  return power_of_two ? size / 2 * 3 : size / 3 * 4;
}

LayerPricing::LayerPricing(const JobSpec& job,
                           const emulator::StageCostModel& costs)
    : job_(job), costs_(costs) {
  trains_.resize(job.model.modules.size());
  for (const ModuleId m : job.model.modules.ids()) {
    bool below = !job.IsFrozen(m);
    for (const ModuleEdge& edge : job.model.edges) {
      if (edge.to == m && trains_[edge.from]) below = true;
    }
    trains_[m] = below;
  }
}

emulator::StageCost LayerPricing::Price(ModuleId m, LayerId first,
                                        int32_t count, const WorkShape& shape,
                                        RankId rank) const {
  return costs_.Cost({.module = m,
                      .first_layer = first,
                      .num_layers = count,
                      .rank = rank,
                      .segment = SegmentId(0)},
                     shape, trains_[m]);
}

Duration LayerPricing::Forward(ModuleId module, const WorkShape& shape) const {
  return Price(module, LayerId(0), job_.model.modules[module].layers.size(),
               shape)
      .forward;
}

Duration LayerPricing::LeastLoad(ModuleId module,
                                 const WorkShape& shape) const {
  return Price(module, LayerId(0), job_.model.modules[module].layers.size(),
               shape, RankId(0))
      .least_load();
}

Duration LayerPricing::AllPasses(ModuleId module,
                                 const WorkShape& shape) const {
  return AllPasses(module, shape, RankId(0));
}

Duration LayerPricing::AllPasses(ModuleId module, const WorkShape& shape,
                                 RankId rank) const {
  const emulator::StageCost cost =
      Price(module, LayerId(0), job_.model.modules[module].layers.size(), shape,
            rank);
  return cost.all_passes();
}

Duration LayerPricing::AllPasses(ModuleId module, LayerId layer,
                                 const WorkShape& shape) const {
  const emulator::StageCost cost = Price(module, layer, 1, shape);
  return cost.all_passes();
}

Bytes LayerPricing::Activations(ModuleId module, const WorkShape& shape) const {
  return Price(module, LayerId(0), job_.model.modules[module].layers.size(),
               shape)
      .activations;
}

IdVector<LayerId, int64_t> LayerPricing::SplitWeights(ModuleId module,
                                                      const TypicalWork& work,
                                                      int64_t size) const {
  const ModuleSpec& spec = job_.model.modules[module];
  IdVector<LayerId, int64_t> weights(spec.layers.size());
  for (const LayerId layer : weights.ids()) {
    if (!work.present()) {
      weights[layer] = ParameterWeight(spec.layers[layer]);
      continue;
    }
    const int64_t of_slice = std::min(
        kMaxWeight, AllPasses(module, layer, work.OfSlice(size)).count());
    const int64_t slices = std::min(kMaxSlices, work.Slices(size));
    weights[layer] = std::min(kMaxWeight, of_slice * slices);
  }
  return weights;
}

int64_t EfficientSize(const LayerPricing& pricing, ModuleId module,
                      const TypicalWork& work) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < work.most_instances; size = NextSize(size)) {
    sizes.push_back(size);
  }
  sizes.push_back(work.most_instances);
  std::vector<double> rates;
  double best = 0;
  for (const int64_t size : sizes) {
    const double seconds = ToSeconds(pricing.Forward(module, work.Of(size)));
    rates.push_back(seconds > 0 ? static_cast<double>(size) / seconds
                                : INFINITY);
    best = std::max(best, rates.back());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (rates[i] >= kEnoughEfficiency * best) return sizes[i];
  }
  return work.most_instances;
}

int64_t ParameterWeight(const LayerSpec& layer) {
  if (layer.kind == LayerKind::kEmbedding) return 0;
  const int64_t matrices = layer.kind == LayerKind::kFixedWork
                               ? Parameters(layer)
                               : MatrixParameters(layer);
  return std::clamp<int64_t>(matrices, 0, kMaxWeight);
}

}  // namespace pipeloom::partition
