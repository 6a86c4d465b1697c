#include "emulator/stage/stage_cost.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/numeric.h"
#include "emulator/cost/copies_cost.h"
#include "emulator/cost/framework_price.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/ops/layer_fingerprint.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/stage/cluster_view.h"
#include "emulator/stage/layer_memory.h"
#include "emulator/stage/layer_price.h"
#include "emulator/stage/layer_weights.h"
#include "emulator/stage/subgraph_cache.h"

namespace pipeloom::emulator {
namespace {

// Memory outside of the framework's allocator: context, loaded kernels,
// communication buffers. From experience with H800 training processes, not
// measured.
constexpr Bytes kContext{int64_t{1} << 30};
// Workspaces of the product libraries: 32 MiB each for the framework and for
// its fused layers, from Hopper on (PyTorch and TransformerEngine sources).
constexpr Bytes kLibraries{int64_t{64} << 20};

}  // namespace

// The part that the models of all replicas share.
struct StageCostModel::Common {
  Common(const JobSpec& a_job, std::unique_ptr<const OpCostModel> a_costs,
         bool a_reuse)
      : job(a_job), reuse(a_reuse), costs(std::move(a_costs)) {
    if (costs == nullptr) {
      costs = MakeOpCosts(job.cluster, job.parallel, nullptr);
    }
    for (const ModuleId m : job.model.modules.ids()) {
      auto& prints = fingerprints[fingerprints.push_back({})];
      for (const LayerSpec& layer : job.model.modules[m].layers) {
        prints.push_back(FingerprintOf(layer));
      }
      ModuleLayout own{.parallel = job.LayoutOf(m), .copies = job.CopiesOf(m)};
      own.tensor_copies = job.parallel.tp / own.parallel.tp;
      std::set<ModuleId> met;
      for (const ModuleEdge& edge : job.model.edges) {
        if (edge.from == m && own.copies * job.CopiesOf(edge.to) > 1) {
          met.insert(edge.to);
        }
      }
      own.regroups = static_cast<int32_t>(met.size());
      layouts.push_back(own);
    }
    ClusterViews made = ViewsOf(job);
    views = std::move(made.views);
    view_of_replica = std::move(made.of_replica);
  }

  struct ModuleLayout {
    ParallelLayout parallel{};
    int32_t copies = 1;  // Copies of a stage in a rank.
    // Copies of a weight in a tensor-parallel group.
    int32_t tensor_copies = 1;
    int32_t regroups = 0;  // Number of modules that take its output regrouped.
  };

  const JobSpec job;
  const bool reuse;
  std::unique_ptr<const OpCostModel> costs;
  IdVector<ModuleId, ModuleLayout> layouts{};
  IdVector<ModuleId, IdVector<LayerId, Fingerprint>> fingerprints{};
  IdVector<ModuleId, PassFactors> corrections{};  // Empty: no corrections.
  mutable SubgraphCache cache{};
  mutable FingerprintCache<StageCost> stages{};
  std::vector<ReplicaView> views{};
  std::vector<int32_t> view_of_replica{};
};

struct StageCostModel::State {
  State(std::shared_ptr<Common> a_common, const ReplicaView& a_view)
      : common(std::move(a_common)),
        job(common->job),
        view(a_view),
        cache(common->cache) {}

  Precision PrecisionOn(const ModuleSpec& module, RankId rank) const {
    const int32_t group = view.PlaceOf(rank).group;
    if (group < 0) return module.precision;
    return job.cluster.node_groups[static_cast<size_t>(group)]
        .precision.value_or(module.precision);
  }
  const OpCostModel& CostsOn(RankId rank) const {
    return common->costs->OnGroup(view.PlaceOf(rank).group);
  }
  const DeviceSpec& DeviceOn(RankId rank) const {
    return job.cluster.DeviceOf(view.PlaceOf(rank).group);
  }

  const ModuleSpec& ModuleOf(const Stage& stage) const {
    return job.model.modules[stage.module];
  }

  const Common::ModuleLayout& LayoutOf(const Stage& stage) const {
    return common->layouts[stage.module];
  }

  // Returns the time to gather a tensor of `bytes` in all on every GPU of the
  // rank; what a GPU needs of it is then a part of what it has.
  Duration RegroupTime(double bytes, RankId rank) const {
    const ParallelLayout& parallel = job.parallel;
    const auto gather = [&](GroupKind group, int32_t size, double gathered) {
      return size == 1 ? kZero
                       : CostsOn(rank).Cost(
                             CollectiveOp{.kind = Collective::kAllGather,
                                          .group = group,
                                          .size = size,
                                          .bytes = gathered});
    };
    return gather(GroupKind::kTensor, parallel.tp, bytes / parallel.cp) +
           gather(GroupKind::kContext, parallel.cp, bytes);
  }

  // Calls visit(layer) for each layer. A tied loss head on another stage than
  // its embedding holds a copy of the table.
  template <typename Visit>
  void ForEachLayer(const Stage& stage, const Visit& visit) const {
    bool has_table = false;
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const LayerSpec& layer =
          ModuleOf(stage).layers[LayerId(stage.first_layer.value() + i)];
      has_table |= layer.kind == LayerKind::kEmbedding;
      if (layer.tied && !has_table) {
        LayerSpec copy = layer;
        copy.tied = false;
        visit(copy);
      } else {
        visit(layer);
      }
    }
  }

  // Returns the parameters of the stage's weights on one GPU, and those of its
  // largest layer.
  ShardedParameters StageParameters(const Stage& stage,
                                    int64_t* largest = nullptr) const {
    ShardedParameters sum;
    ForEachLayer(stage, [&](const LayerSpec& layer) {
      const ShardedParameters own =
          ParametersOnGpu(layer, LayoutOf(stage).parallel);
      sum.dense += own.dense;
      sum.experts += own.experts;
      if (largest != nullptr) {
        *largest = std::max(*largest, own.dense + own.experts);
      }
    });
    return sum;
  }

  // Returns the bytes of parameters of `bytes` each, divided over the replicas
  // if the job shards at least `from`.
  Bytes Stored(const ShardedParameters& own, int64_t bytes,
               OptimizerSharding from, const ParallelLayout& parallel) const {
    if (job.training.optimizer_sharding < from) {
      return Bytes((own.dense + own.experts) * bytes);
    }
    return Bytes(CeilDiv(own.dense * bytes, DenseReplicas(parallel)) +
                 CeilDiv(own.experts * bytes, ExpertReplicas(parallel)));
  }

  // Returns the time of reduce-scatter of gradients, optimizer step and
  // all-gather of weights, without the part that the passes do or hide.
  Duration UpdateTime(int64_t parameters, Precision precision, GroupKind group,
                      int64_t replicas, int32_t tensor_copies,
                      RankId rank) const {
    if (parameters == 0) return kZero;
    const OpCostModel& costs = CostsOn(rank);
    const OptimizerSharding sharding = job.training.optimizer_sharding;
    const ParameterBytes bytes = BytesOf(precision);
    const double count = Real(parameters);
    const double gradients = Real(GradientBytes(precision, job.setup));
    const auto collective = [&](Collective kind, double size) {
      return ShownOverReplicas(
          OverReplicas(
              costs,
              {.kind = kind, .group = group, .size = replicas, .bytes = size},
              tensor_copies),
          job.setup);
    };
    Duration time = kZero;
    if (sharding < OptimizerSharding::kZero2) {
      time += collective(Collective::kReduceScatter, count * gradients);
    }
    // Without sharding the second half is a gather of the gradients.
    if (sharding < OptimizerSharding::kZero3) {
      time +=
          collective(Collective::kAllGather,
                     count * (sharding == OptimizerSharding::kNone ? gradients
                              : precision == Precision::kFp32      ? 4
                                                                   : 2));
    }
    const int64_t shards = sharding == OptimizerSharding::kNone ? 1 : replicas;
    // Read: gradient, fp32 weight, moments. Written: the last two of them and
    // the weight that products read.
    const double traffic = Real(bytes.gradients) + 12 + 12 +
                           (precision == Precision::kFp32 ? 0 : 2) +
                           kNormAndClearBytes;
    return time +
           Slowed(costs.Cost(MemoryOp{.bytes = count / Real(shards) * traffic,
                                      .kind = MemoryKind::kOptimizer,
                                      .rows = count / Real(shards),
                                      .width = 1}),
                  view.PlaceOf(rank).slow);
  }

  // Returns the cost of the stage's layers one after another, before
  // corrections.
  StageCost Sum(const Stage& stage, const WorkShape& shape,
                const Fingerprint& shape_print, bool needs_input_grad,
                Precision precision, double attention_density) const {
    const ModuleSpec& module = ModuleOf(stage);
    const int32_t group = view.PlaceOf(stage.rank).group;
    const Common::ModuleLayout& layout = LayoutOf(stage);
    const WorkShape own = LargestShare(shape, layout.copies);
    const LayerSetting setting{
        .parallel = layout.parallel,
        .copies = layout.copies,
        .tensor_copies = layout.tensor_copies,
        .costs = CostsOn(stage.rank),
        .sharding = job.training.optimizer_sharding,
        .options = {.precision = precision,
                    .attention_density = attention_density},
        .setup = job.setup,
        .cluster = job.cluster,
        .device = DeviceOn(stage.rank)};
    const ParallelLayout& parallel = layout.parallel;
    const bool trained = !job.IsFrozen(stage.module);
    StageCost total;
    Fingerprint last_key{};
    LayerCost cost{};
    int64_t repeated = 0;
    Flops forward_flops{};
    ScratchOfLayers scratch;
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const LayerId id(stage.first_layer.value() + i);
      // Before a later layer of a trained module there is always one to train.
      const GradientNeeds needs{
          .weights = trained, .input = needs_input_grad || (trained && i > 0)};
      const auto price = [&] {
        return PriceLayer(module.layers[id], shape, own, needs, setting);
      };
      if (common->reuse) {
        const Fingerprint key = FingerprintBuilder()
                                    .Add(common->fingerprints[stage.module][id])
                                    .Add(shape_print)
                                    .Add(needs.weights)
                                    .Add(needs.input)
                                    .Add(precision)
                                    .Add(group)
                                    .Add(attention_density)
                                    .Add(parallel.tp)
                                    .Add(parallel.cp)
                                    .Build();
        if (i > 0 && key == last_key) {
          ++repeated;
        } else {
          cost = cache.Get(key, price);
        }
        last_key = key;
      } else {
        cost = price();
      }
      total.forward += cost.forward;
      total.forward_again += cost.forward_again;
      total.backward += cost.backward;
      total.weight_grad += cost.weight_grad;
      total.fused += cost.fused;
      total.backward_gap += cost.backward_gap;
      total.fused_gap += cost.fused_gap;
      total.activations += cost.activations;
      total.freed_by_backward += cost.freed_by_backward;
      scratch.Add(cost.activations, cost.freed_by_backward, cost.scratch);
      for (size_t g = 0; g < total.groups.size(); ++g) {
        total.groups[g].again += cost.groups[g].again;
        total.groups[g].bytes += cost.groups[g].bytes;
      }
      forward_flops += cost.forward_flops;
    }
    total.scratch = scratch.Get();
    cache.CountHits(repeated);
    if (!common->reuse) cache.CountMisses(stage.num_layers);

    const double passes = trained ? 3 : needs_input_grad ? 2 : 1;
    total.model_flops = forward_flops * passes;

    const LayerId first = stage.first_layer;
    const LayerId last(first.value() + stage.num_layers - 1);
    const int64_t width_before =
        first.value() > 0 ? module.layers[LayerId(first.value() - 1)].hidden
                          : 0;
    total.input = std::min(InputBytes(module.layers[first], own, width_before,
                                      parallel, precision),
                           total.activations);
    // Without sequence parallelism every GPU has all of the input.
    if (!job.setup.sequence_parallel) {
      total.input =
          std::min(Bytes(total.input.count() * parallel.tp), total.activations);
    }

    const LayerSpec& end = module.layers[last];
    const bool hands_on = last.value() + 1 == module.layers.size();
    const auto rows_of = [&](const WorkShape& work) {
      return hands_on && module.role == ModuleRole::kEncoder &&
                     work.output_tokens > 0
                 ? work.output_tokens
                 : LayerTokens(end, work);
    };
    total.output_rows = rows_of(shape);
    total.output_width = end.hidden;
    const int64_t row_bytes =
        total.output_width * (precision == Precision::kFp32 ? 4 : 2);
    // Between stages of a module each copy hands on its own output; what other
    // modules take is spread evenly over all GPUs of the rank.
    total.output = hands_on ? Bytes(CeilDiv(total.output_rows * row_bytes,
                                            job.parallel.gpus_per_rank()))
                            : Bytes(CeilDiv(rows_of(own) * row_bytes,
                                            parallel.gpus_per_rank()));
    if (hands_on && layout.regroups > 0) {
      const Duration time =
          layout.regroups *
          RegroupTime(Real(total.output_rows * row_bytes), stage.rank);
      total.forward += time;
      if (trained || needs_input_grad) {
        for (Duration* pass : {&total.backward, &total.backward_gap,
                               &total.fused, &total.fused_gap}) {
          *pass += time;
        }
      }
    }
    return total;
  }

  static Duration Slowed(Duration time, double factor) {
    if (factor == 1) return time;
    return Nanoseconds(std::llround(Real(time.count()) * factor));
  }

  const std::shared_ptr<Common> common;
  const JobSpec& job;
  const ReplicaView& view;
  SubgraphCache& cache;
  // Models of the other views; only the first model has them.
  std::vector<std::unique_ptr<StageCostModel>> others{};
};

StageCostModel::StageCostModel(const JobSpec& job, bool reuse)
    : StageCostModel(job, nullptr, reuse) {}

StageCostModel::StageCostModel(const JobSpec& job,
                               std::unique_ptr<const OpCostModel> costs,
                               bool reuse) {
  const auto common = std::make_shared<Common>(job, std::move(costs), reuse);
  state_ = std::make_unique<State>(common, common->views[0]);
  for (size_t v = 1; v < common->views.size(); ++v) {
    state_->others.push_back(std::unique_ptr<StageCostModel>(
        new StageCostModel(std::make_unique<State>(common, common->views[v]))));
  }
}

StageCostModel::StageCostModel(std::unique_ptr<State> state)
    : state_(std::move(state)) {}

StageCostModel::~StageCostModel() = default;

const StageCostModel& StageCostModel::ForReplica(int32_t replica) const {
  const int32_t view =
      state_->common->view_of_replica[static_cast<size_t>(replica)];
  return view == 0 ? *this : *state_->others[static_cast<size_t>(view - 1)];
}

StageCost StageCostModel::Cost(const Stage& stage, const WorkShape& given,
                               bool needs_input_grad,
                               double attention_density) const {
  const State& state = *state_;
  if (stage.num_layers == 0) return {};
  const WorkShape shape =
      state.job.training.batching == SequenceBatching::kPadded ? given.Padded()
                                                               : given;
  const RankPlace place = state.view.PlaceOf(stage.rank);
  const Precision precision =
      state.PrecisionOn(state.ModuleOf(stage), stage.rank);
  StageCost total;
  if (state.common->reuse) {
    const Fingerprint shape_print = shape.fingerprint();
    const Fingerprint key = FingerprintBuilder()
                                .Add(stage.module.value())
                                .Add(stage.first_layer.value())
                                .Add(stage.num_layers)
                                .Add(shape_print)
                                .Add(needs_input_grad)
                                .Add(precision)
                                .Add(place.group)
                                .Add(attention_density)
                                .Build();
    bool known = true;
    total = state.common->stages.Get(key, [&] {
      known = false;
      return state.Sum(stage, shape, shape_print, needs_input_grad, precision,
                       attention_density);
    });
    if (known) state.cache.CountHits(stage.num_layers);
  } else {
    total = state.Sum(stage, shape, {}, needs_input_grad, precision,
                      attention_density);
  }
  PassFactors factors;
  if (!state.common->corrections.empty()) {
    factors = state.common->corrections[stage.module];
  }
  // The factor of a fused pass is the mean of those of both gradients, weighted
  // by their times.
  const double split_time = ToSeconds(total.backward + total.weight_grad);
  const double fused_factor =
      split_time > 0 ? (factors.backward * ToSeconds(total.backward) +
                        factors.weight_grad * ToSeconds(total.weight_grad)) /
                           split_time
                     : 1;
  const auto slow = [&](double factor, Duration* time) {
    *time = State::Slowed(*time, factor * place.slow * state.job.setup.stretch);
  };
  slow(factors.forward, &total.forward);
  slow(factors.forward, &total.forward_again);
  slow(factors.backward, &total.backward);
  slow(factors.backward, &total.backward_gap);
  slow(factors.weight_grad, &total.weight_grad);
  slow(fused_factor, &total.fused);
  slow(fused_factor, &total.fused_gap);
  for (GroupCost& group : total.groups) slow(factors.forward, &group.again);
  return total;
}

StageRow::StageRow(std::vector<Stage> the_stages)
    : stages(std::move(the_stages)) {
  FingerprintBuilder builder;
  for (const Stage& stage : stages) {
    builder.Add(stage.module.value())
        .Add(stage.first_layer.value())
        .Add(stage.num_layers)
        .Add(stage.rank.value());
    num_layers += stage.num_layers;
  }
  fingerprint = builder.Build();
}

StageCostModel::CostRow StageCostModel::Costs(const StageRow& row,
                                              const WorkShape& shape,
                                              bool fed_by_trainable,
                                              double attention_density) const {
  const State& state = *state_;
  const auto price = [&] {
    std::vector<StageCost> costs;
    costs.reserve(row.stages.size());
    for (const Stage& stage : row.stages) {
      const bool above_trained =
          !costs.empty() && !state.job.IsFrozen(stage.module);
      costs.push_back(Cost(stage, shape, fed_by_trainable || above_trained,
                           attention_density));
    }
    return std::make_shared<const std::vector<StageCost>>(std::move(costs));
  };
  if (!state.common->reuse) return price();
  bool known = true;
  CostRow result = rows_.Get(FingerprintBuilder()
                                 .Add(row.fingerprint)
                                 .Add(shape.fingerprint())
                                 .Add(fed_by_trainable)
                                 .Add(attention_density)
                                 .Build(),
                             [&]() -> CostRow {
                               known = false;
                               return price();
                             });
  if (known) state.cache.CountHits(row.num_layers);
  return result;
}

void StageCostModel::SetCorrections(IdVector<ModuleId, PassFactors> factors) {
  state_->common->corrections = std::move(factors);
}

StageMemory StageCostModel::Memory(const Stage& stage) const {
  const State& state = *state_;
  const ParameterBytes bytes =
      BytesOf(state.PrecisionOn(state.ModuleOf(stage), stage.rank));
  int64_t largest = 0;
  const ShardedParameters own = state.StageParameters(stage, &largest);
  const OptimizerSharding sharding = state.job.training.optimizer_sharding;
  const ParallelLayout& parallel = state.LayoutOf(stage).parallel;
  StageMemory memory;
  memory.weights =
      state.Stored(own, bytes.weights, OptimizerSharding::kZero3, parallel);
  // One layer is gathered while the next one is being gathered.
  if (sharding == OptimizerSharding::kZero3) {
    memory.weights += Bytes(2 * largest * bytes.weights);
  }
  if (state.job.IsFrozen(stage.module)) return memory;
  memory.gradients =
      state.Stored(own, bytes.gradients, OptimizerSharding::kZero2, parallel);
  // The gradients of one layer are whole until they are reduced.
  if (sharding >= OptimizerSharding::kZero2) {
    memory.gradients += Bytes(largest * bytes.gradients);
  }
  memory.optimizer =
      state.Stored(own, bytes.optimizer, OptimizerSharding::kZero1, parallel);
  return memory;
}

RankOverhead StageCostModel::Overhead(const Partition& partition,
                                      RankId rank) const {
  const State& state = *state_;
  RankOverhead overhead{.context = kContext, .libraries = kLibraries};
  std::set<MatrixShape> shapes;
  for (const Stage& stage : partition.stages) {
    if (stage.rank != rank || state.job.IsFrozen(stage.module)) continue;
    const ParallelLayout& parallel = state.LayoutOf(stage).parallel;
    std::optional<LayerSpec> last;
    state.ForEachLayer(stage, [&](const LayerSpec& layer) {
      // An equal layer needs nothing more.
      if (last == layer) return;
      last = layer;
      for (const MatrixShape& shape : MatricesOnGpu(layer, parallel)) {
        shapes.insert(shape);
      }
    });
  }
  for (const MatrixShape& shape : shapes) {
    overhead.unused_gradients += Bytes(2 * shape.outputs * shape.inputs);
  }
  return overhead;
}

Duration StageCostModel::Epilogue(const Partition& partition,
                                  RankId rank) const {
  const State& state = *state_;
  // Once for each precision and number of GPUs that hold the same, as
  // parameters that are alike in both share a bucket.
  std::set<int32_t> copies;
  for (const Stage& stage : partition.stages) {
    copies.insert(state.LayoutOf(stage).tensor_copies);
  }
  constexpr Precision kPrecisions[] = {Precision::kBf16, Precision::kFp8,
                                       Precision::kFp32};
  const auto update = [&](Precision precision, int32_t tensor_copies) {
    ShardedParameters sum;
    ParallelLayout parallel = state.job.parallel;
    parallel.dp *= tensor_copies;
    for (const Stage& stage : partition.stages) {
      if (stage.rank != rank || state.job.IsFrozen(stage.module) ||
          state.LayoutOf(stage).tensor_copies != tensor_copies ||
          state.PrecisionOn(state.ModuleOf(stage), rank) != precision) {
        continue;
      }
      const ShardedParameters own = state.StageParameters(stage);
      sum.dense += own.dense;
      sum.experts += own.experts;
    }
    return state.UpdateTime(sum.dense, precision, GroupKind::kData,
                            DenseReplicas(parallel), tensor_copies, rank) +
           state.UpdateTime(sum.experts, precision, GroupKind::kExpertData,
                            ExpertReplicas(parallel), tensor_copies, rank);
  };
  Duration time = kZero;
  for (const Precision precision : kPrecisions) {
    for (const int32_t c : copies) time += update(precision, c);
  }
  return State::Slowed(time, state.job.setup.stretch);
}

IdVector<RankId, RankSpec> StageCostModel::Ranks(
    const Partition& partition) const {
  const auto find = [&]() -> std::shared_ptr<const IdVector<RankId, RankSpec>> {
    IdVector<RankId, RankSpec> ranks(partition.num_ranks);
    for (const RankId r : ranks.ids()) {
      ranks[r].memory.limit = MemoryLimit(r);
      ranks[r].memory.overhead = Overhead(partition, r).total();
      ranks[r].epilogue = Epilogue(partition, r);
    }
    for (const Stage& stage : partition.stages) {
      const StageMemory memory = Memory(stage);
      RankMemory& rank = ranks[stage.rank].memory;
      rank.weights += memory.weights;
      rank.gradients += memory.gradients;
      rank.optimizer += memory.optimizer;
    }
    return std::make_shared<const IdVector<RankId, RankSpec>>(std::move(ranks));
  };
  if (!state_->common->reuse) return *find();
  const StageRow all(partition.stages.items());
  return *ranks_.Get(FingerprintBuilder()
                         .Add(all.fingerprint)
                         .Add(partition.num_ranks)
                         .Build(),
                     find);
}

StageCostModel::Transfer StageCostModel::TransferTime(RankId from, RankId to,
                                                      Bytes payload) const {
  const LinkTimes link =
      TransferBetween(state_->job, state_->view, from, to, payload);
  const double stretch = state_->job.setup.stretch;
  return {.time = State::Slowed(link.time, stretch),
          .occupancy = State::Slowed(link.occupancy, stretch)};
}

Bytes StageCostModel::MemoryLimit(RankId rank) const {
  return state_->job.MemoryLimit(state_->DeviceOn(rank));
}

double StageCostModel::PeakFlopsPerSecond() const {
  double sum = 0;
  for (const RankId rank : state_->view.ranks.ids()) {
    sum += state_->DeviceOn(rank).bf16.flops_per_second;
  }
  return sum * state_->job.parallel.gpus_per_rank();
}

EmulateOptions StageCostModel::Network() const {
  return NetworkOptions(state_->job, state_->view.replica);
}

const JobSpec& StageCostModel::job() const { return state_->job; }

CacheCounters StageCostModel::cache() const {
  return {.hits = state_->cache.hits(), .misses = state_->cache.misses()};
}

}  // namespace pipeloom::emulator
