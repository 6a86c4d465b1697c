// Time and memory of one stage on one sub-microbatch, on one pipeline rank
// (a group of tp x cp GPUs acting as one), through the subgraph cache: equal
// layers and equal shapes are priced once.
#ifndef PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_
#define PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fingerprint.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/subgraph_cache.h"
#include "emulator/step/emulate_step.h"
#include "ir/job/job_spec.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::emulator {

// Per GPU, with tensor, sequence and context parallelism applied.
struct StageCost {
  Duration forward{};
  // The forward again in a backward that recomputes: gathered weights are there
  // already, and nothing is regrouped for other modules.
  Duration forward_again{};
  // The backward's two forms (op_graph.h). Split: the input gradient, complete
  // when it is handed on, and the weight gradient, 0 for a frozen module.
  Duration backward{};
  Duration weight_grad{};
  // Fused: both gradients in one pass. Without a weight gradient `backward`.
  Duration fused{};
  // How much compute finds room in `backward` and `fused` while the compute
  // stream waits for the pass's collectives: that of weight gradients of other
  // sub-microbatches.
  Duration backward_gap{};
  Duration fused_gap{};
  // Kept from forward until backward and weight gradient are done.
  Bytes activations{};
  // Part of `activations` that the input gradient is the last to read.
  Bytes freed_by_backward{};
  // The stage's input: all that is kept when the stage is recomputed.
  Bytes input{};
  // By operator group; of a stage the sums over its layers.
  GroupCosts groups{};
  // The stage's output tensor, which may cross to another rank.
  int64_t output_rows = 0;
  int64_t output_width = 0;
  Bytes output{};       // Of one GPU's share.
  Flops model_flops{};  // Forward and backward, of all GPUs of the rank.
  // Forward and backward, in the form that takes less of the rank's time.
  Duration all_passes() const {
    return forward + std::min(fused, backward + weight_grad);
  }
  // The least that they add to a rank's load: without the weight gradients that
  // the pass's gaps may take from others.
  Duration least_load() const {
    return all_passes() - std::max(backward_gap, fused_gap);
  }
  bool operator==(const StageCost&) const = default;
};

// What a stage's weights occupy on one GPU, all step long. With sharding, the
// layers that are whole for a moment are counted.
struct StageMemory {
  Bytes weights{};
  Bytes gradients{};
  Bytes optimizer{};
  bool operator==(const StageMemory&) const = default;
};

// What a GPU of a rank holds besides weights and activations.
struct RankOverhead {
  Bytes context{};    // Outside of the framework's allocator.
  Bytes libraries{};  // Workspaces of the product libraries.
  // A gradient of each different shape of weight in 16 bit, which fused layers
  // hand to the framework while the true one is added to the fp32 buffer.
  Bytes unused_gradients{};
  // The most that one layer's backward needs for a moment; of modules other
  // than the backbone only what does not depend on tokens.
  Bytes backward_scratch{};
  Bytes allocated() const {
    return libraries + unused_gradients + backward_scratch;
  }
  Bytes total() const { return context + allocated(); }
  bool operator==(const RankOverhead&) const = default;
};

// Measured over priced, by pass.
struct PassFactors {
  double forward = 1;
  double backward = 1;
  double weight_grad = 1;
  bool operator==(const PassFactors&) const = default;
};

struct CacheCounters {
  int64_t hits = 0;
  int64_t misses = 0;
};

// Stages of one module in data-flow order, to be priced together.
struct StageRow {
  StageRow() = default;
  explicit StageRow(std::vector<Stage> the_stages);
  std::vector<Stage> stages{};
  int32_t num_layers = 0;
  Fingerprint fingerprint{};
};

class StageCostModel {
 public:
  // Keeps a copy of the job. REQUIRES: ValidateJobSpec(job) is OK. With
  // `reuse` off every call prices every layer anew; results are the same.
  explicit StageCostModel(const JobSpec& job, bool reuse = true);
  // Prices operators by `costs`; null: by the roofline.
  StageCostModel(const JobSpec& job, std::unique_ptr<const OpCostModel> costs,
                 bool reuse = true);
  ~StageCostModel();
  StageCostModel(const StageCostModel&) = delete;
  StageCostModel& operator=(const StageCostModel&) = delete;

  // Multiplies what Cost() says of a module's passes: what was measured of
  // them. Before the model is used. REQUIRES: one for each module, all > 0.
  void SetCorrections(IdVector<ModuleId, PassFactors> factors);

  // The model of a replica's ranks, where devices or speeds differ by rank and
  // replica; this one is of replica 0. Lives as long as this.
  const StageCostModel& ForReplica(int32_t replica) const;

  // All const methods may be called from any number of threads.
  // A stage without a rank is priced on the cluster's own device.
  // `needs_input_grad`: something trainable feeds the stage, so the gradient
  // goes on below it. A frozen module has weight_grad 0, and backward 0 too
  // when it needs no input gradient.
  // `attention_density`: share of each layer's query-key pairs that this step's
  // sparse attention works on, besides the layers' own; in (0, 1].
  StageCost Cost(const Stage& stage, const WorkShape& shape,
                 bool needs_input_grad, double attention_density = 1) const;
  // Cost() of each stage of a row on one shape; `fed_by_trainable`: of the
  // module. Rows asked for before are shared, not made again.
  using CostRow = std::shared_ptr<const std::vector<StageCost>>;
  CostRow Costs(const StageRow& row, const WorkShape& shape,
                bool fed_by_trainable, double attention_density = 1) const;
  // What each rank holds all step long, its limit and its epilogue, as the
  // methods below say. Found once a partition.
  IdVector<RankId, RankSpec> Ranks(const Partition& partition) const;
  StageMemory Memory(const Stage& stage) const;
  // Data-parallel gradient reduction and parameter gathering that nothing
  // hides, and the optimizer step, for a rank that holds these stages.
  Duration Epilogue(const Partition& partition, RankId rank) const;
  // One tensor of `payload` bytes a GPU from rank to rank, and the part of it
  // that keeps the link busy.
  struct Transfer {
    Duration time{};
    Duration occupancy{};
  };
  Transfer TransferTime(RankId from, RankId to, Bytes payload) const;
  // Of one GPU of the rank, by its device.
  Bytes MemoryLimit(RankId rank) const;
  // Peaks in bf16 of all GPUs of the replica.
  double PeakFlopsPerSecond() const;
  // How links and network cards are shared; emulator/stage/cluster_view.h.
  EmulateOptions Network() const;
  // Of one GPU of a rank that holds these stages.
  RankOverhead Overhead(const Partition& partition, RankId rank) const;

  const JobSpec& job() const;
  CacheCounters cache() const;

 private:
  struct Common;
  struct State;
  explicit StageCostModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  // Larger than prices of layers, so fewer are kept.
  mutable FingerprintCache<CostRow, 512> rows_{};
  mutable FingerprintCache<std::shared_ptr<const IdVector<RankId, RankSpec>>,
                           64>
      ranks_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_
