#include "partition/placement.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/batch_split.h"
#include "partition/layer_chain.h"

namespace pipeloom::partition {
namespace {

constexpr double kEnoughEfficiency = 0.95;
constexpr double kNegligibleShare = 0.05;
constexpr int32_t kMostSegments = 4;
// Keeps sums of weights in range however absurd the layers are.
constexpr int64_t kMostWeight = int64_t{1} << 48;
constexpr int64_t kMostSlices = int64_t{1} << 12;

int64_t WeightOf(const LayerSpec& layer, LayerWeight weight) {
  if (layer.kind == LayerKind::kEmbedding) return 0;
  if (weight == LayerWeight::kCount) {
    return layer.kind == LayerKind::kTransformer ||
                   layer.kind == LayerKind::kFixedWork
               ? 1
               : 0;
  }
  const int64_t matrices = layer.kind == LayerKind::kFixedWork
                               ? Parameters(layer)
                               : MatrixParameters(layer);
  return std::clamp<int64_t>(matrices, 0, kMostWeight);
}

IdVector<LayerId, int64_t> WeightsOf(const ModuleSpec& module,
                                     LayerWeight weight) {
  IdVector<LayerId, int64_t> weights(module.layers.size());
  for (const LayerId id : weights.ids()) {
    weights[id] = WeightOf(module.layers[id], weight);
  }
  return weights;
}

// 1, 2, 3, 4, 6, 8, 12, 16, 24, ...
int64_t NextSize(int64_t size) {
  if (size < 4) return size + 1;
  const bool power_of_two = (size & (size - 1)) == 0;
  return power_of_two ? size / 2 * 3 : size / 3 * 4;
}

// What a module typically gets.
struct Typical {
  WorkShape total{};             // Of the whole sample.
  int64_t microbatches = 0;      // That have work for it.
  int64_t most_instances = 0;    // In one microbatch.
  int64_t instances = 0;         // In one microbatch on average, rounded up.
  int64_t sub_microbatch = 0;    // B_i; 0: the whole microbatch.
  int64_t sub_microbatches = 1;  // Of a typical microbatch.
  Duration forward{};            // T_i.
  bool present() const { return microbatches > 0; }
  // The mean shape of `count` instances.
  WorkShape Of(int64_t count) const {
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
  WorkShape shape() const {
    return Of(sub_microbatch > 0 ? std::min(sub_microbatch, instances)
                                 : instances);
  }
};

absl::StatusOr<IdVector<ModuleId, Typical>> MeasureSample(
    JobSpec job, const BatchMetadata& sample) {
  // All of the sample in one replica's step.
  job.parallel.dp = 1;
  job.training.microbatches = std::max(1, sample.samples.size());
  PIPELOOM_ASSIGN_OR_RETURN(const PackedStep step,
                            PackStep(job, sample, /*first_sample=*/0));
  Partition whole;
  whole.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  PIPELOOM_ASSIGN_OR_RETURN(const Microbatches microbatches,
                            SplitMicrobatches(job, step, /*replica=*/0, whole));
  IdVector<ModuleId, Typical> typical(job.model.modules.size());
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    Typical& t = typical[sub.module];
    t.total += sub.shape;
    ++t.microbatches;
    t.most_instances = std::max(t.most_instances, sub.shape.instances);
  }
  for (Typical& t : typical) {
    if (!t.present()) continue;
    t.instances = (t.total.instances + t.microbatches - 1) / t.microbatches;
  }
  return typical;
}

// Prices modules and layers on one rank.
class Pricing {
 public:
  Pricing(const JobSpec& job, const emulator::StageCostModel& costs)
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

  Duration Forward(ModuleId m, const WorkShape& shape) const {
    return Price(m, LayerId(0), job_.model.modules[m].layers.size(), shape)
        .forward;
  }
  Duration AllPasses(ModuleId m, LayerId layer, const WorkShape& shape) const {
    const emulator::StageCost cost = Price(m, layer, 1, shape);
    return cost.forward + cost.backward + cost.weight_grad;
  }

 private:
  emulator::StageCost Price(ModuleId m, LayerId first, int32_t count,
                            const WorkShape& shape) const {
    return costs_.Cost({.module = m,
                        .first_layer = first,
                        .num_layers = count,
                        .rank = RankId(0),
                        .segment = SegmentId(0)},
                       shape, trains_[m]);
  }

  const JobSpec& job_;
  const emulator::StageCostModel& costs_;
  IdVector<ModuleId, bool> trains_{};  // Itself or something before it.
};

int64_t FixedSize(const JobSpec& job, ModuleId m) {
  for (const TrainingSpec::SubMicrobatchSize& size :
       job.training.sub_microbatch_sizes) {
    if (size.module == job.model.modules[m].name) return size.instances;
  }
  return 0;
}

// The smallest size with nearly the best instances per second.
int64_t EfficientSize(const Pricing& pricing, ModuleId m, const Typical& t) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < t.most_instances; size = NextSize(size)) {
    sizes.push_back(size);
  }
  sizes.push_back(t.most_instances);
  std::vector<double> rates;
  double best = 0;
  for (const int64_t size : sizes) {
    const double seconds = ToSeconds(pricing.Forward(m, t.Of(size)));
    rates.push_back(seconds > 0 ? static_cast<double>(size) / seconds
                                : INFINITY);
    best = std::max(best, rates.back());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (rates[i] >= kEnoughEfficiency * best) return sizes[i];
  }
  return t.most_instances;
}

void ChooseSizes(const JobSpec& job, const Pricing& pricing,
                 IdVector<ModuleId, Typical>* typical) {
  for (const ModuleId m : typical->ids()) {
    Typical& t = (*typical)[m];
    t.sub_microbatch = FixedSize(job, m);
    if (!t.present()) continue;
    if (t.sub_microbatch == 0 &&
        job.model.modules[m].role != ModuleRole::kBackbone) {
      t.sub_microbatch = EfficientSize(pricing, m, t);
    }
    if (t.sub_microbatch > 0) {
      t.sub_microbatches =
          (t.instances + t.sub_microbatch - 1) / t.sub_microbatch;
    }
    t.forward = pricing.Forward(m, t.shape());
  }
}

// Weights for splitting: nanoseconds of a microbatch; of a module that the
// sample does not use, its parameters.
IdVector<LayerId, int64_t> SplitWeights(const JobSpec& job,
                                        const Pricing& pricing, ModuleId m,
                                        const Typical& t) {
  const ModuleSpec& module = job.model.modules[m];
  if (!t.present()) return WeightsOf(module, LayerWeight::kParameters);
  IdVector<LayerId, int64_t> weights(module.layers.size());
  for (const LayerId layer : weights.ids()) {
    const int64_t of_slice =
        std::min(kMostWeight, pricing.AllPasses(m, layer, t.shape()).count());
    const int64_t slices = std::min(kMostSlices, t.sub_microbatches);
    weights[layer] = std::min(kMostWeight, of_slice * slices);
  }
  return weights;
}

// The module whose chain a module with too few layers joins: its consumer's,
// else its producer's, else its own.
ModuleId HostOf(const ModelSpec& model, ModuleId module,
                const IdVector<ModuleId, bool>& hosts) {
  for (ModuleId m = module;;) {  // Towards larger ids.
    if (hosts[m]) return m;
    ModuleId next;
    for (const ModuleEdge& edge : model.edges) {
      if (edge.from == m && (next.is_none() || edge.to < next)) next = edge.to;
    }
    if (next.is_none()) break;
    m = next;
  }
  for (ModuleId m = module;;) {  // Towards smaller ids.
    if (hosts[m]) return m;
    ModuleId next;
    for (const ModuleEdge& edge : model.edges) {
      if (edge.to == m && (next.is_none() || edge.from > next)) {
        next = edge.from;
      }
    }
    if (next.is_none()) break;
    m = next;
  }
  return module;
}

IdVector<ModuleId, int32_t> SegmentCounts(
    const IdVector<ModuleId, Typical>& typical,
    const IdVector<ModuleId, bool>& hosts,
    const IdVector<ModuleId, std::vector<LayerUnit>>& units, int32_t pp) {
  IdVector<ModuleId, int32_t> counts(typical.size(), 1);
  if (pp == 1) return counts;
  double total = 0;
  const auto of_microbatch = [](const Typical& t) {
    return ToSeconds(t.forward) * static_cast<double>(t.sub_microbatches);
  };
  for (const Typical& t : typical) {
    if (t.present()) total += of_microbatch(t);
  }
  const auto counts_in = [&](ModuleId m) {
    const Typical& t = typical[m];
    return hosts[m] && t.present() && t.forward > kZero &&
           of_microbatch(t) >= kNegligibleShare * total;
  };
  std::optional<Duration> least;
  for (const ModuleId m : typical.ids()) {
    if (!counts_in(m)) continue;
    if (!least.has_value() || typical[m].forward < *least) {
      least = typical[m].forward;
    }
  }
  for (const ModuleId m : typical.ids()) {
    if (!counts_in(m)) continue;
    const int64_t ratio = typical[m].forward / *least;
    const int32_t layers = CountWeighty(units[m]) / pp;
    counts[m] = static_cast<int32_t>(std::clamp<int64_t>(
        ratio, 1, std::max(1, std::min(kMostSegments, layers))));
  }
  return counts;
}

}  // namespace

absl::StatusOr<Partition> ConcatenatedPartition(const JobSpec& job,
                                                int32_t chunks,
                                                LayerWeight weight) {
  // More chunks than any model has layers.
  constexpr int32_t kMostChunks = 10'000;
  if (chunks < 1 || chunks > kMostChunks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "chunks is %d; it must be in [1, %d]", chunks, kMostChunks));
  }
  const auto units_of = [&](bool glue_loss_head) {
    std::vector<LayerUnit> units;
    for (const ModuleId m : job.model.modules.ids()) {
      const ModuleSpec& module = job.model.modules[m];
      AppendUnits(m, module, WeightsOf(module, weight), glue_loss_head, &units);
    }
    return units;
  };
  const int64_t runs = int64_t{job.parallel.pp} * chunks;
  std::vector<LayerUnit> units = units_of(/*glue_loss_head=*/false);
  if (static_cast<int64_t>(units.size()) < runs) {
    units = units_of(/*glue_loss_head=*/true);
  }
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  AppendStages(
      units,
      static_cast<int32_t>(std::min(runs, static_cast<int64_t>(units.size()))),
      &partition);
  return partition;
}

absl::StatusOr<Partition> SeparatedPartition(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& sample) {
  const ModelSpec& model = job.model;
  const int32_t pp = job.parallel.pp;
  const auto measured = MeasureSample(job, sample);
  if (!measured.ok()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the sample of batches that a partition is chosen by: %s",
        measured.status().message()));
  }
  IdVector<ModuleId, Typical> typical = *measured;
  const Pricing pricing(job, costs);
  ChooseSizes(job, pricing, &typical);

  IdVector<ModuleId, std::vector<LayerUnit>> units(model.modules.size());
  IdVector<ModuleId, bool> hosts(model.modules.size());
  for (const ModuleId m : model.modules.ids()) {
    AppendUnits(m, model.modules[m], SplitWeights(job, pricing, m, typical[m]),
                /*glue_loss_head=*/false, &units[m]);
    hosts[m] = CountWeighty(units[m]) >= pp;
  }
  const IdVector<ModuleId, int32_t> segments =
      SegmentCounts(typical, hosts, units, pp);

  // Chains in the order of their hosts; if no module has enough layers, all
  // are one chain.
  IdVector<ModuleId, std::vector<LayerUnit>> chains(model.modules.size());
  const bool any_host =
      std::find(hosts.begin(), hosts.end(), true) != hosts.end();
  for (const ModuleId m : model.modules.ids()) {
    const ModuleId host = any_host ? HostOf(model, m, hosts) : ModuleId(0);
    for (LayerUnit unit : units[m]) {
      // Nanoseconds and parameters do not mix.
      if (host != m && typical[host].present() != typical[m].present()) {
        unit.weight = 0;
      }
      chains[host].push_back(unit);
    }
  }
  Partition partition;
  partition.num_ranks = pp;
  partition.sub_microbatch_instances.resize(model.modules.size());
  for (const ModuleId m : model.modules.ids()) {
    partition.sub_microbatch_instances[m] = typical[m].sub_microbatch;
    if (!chains[m].empty()) {
      AppendStages(chains[m], pp * segments[m], &partition);
    }
  }
  return partition;
}

}  // namespace pipeloom::partition
