// Time and memory of one stage on one sub-microbatch, on one pipeline rank (a
// group of tp x cp GPUs acting as one), through the subgraph cache: equal
// layers with equal shapes are priced once.
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

// The cost of a stage per GPU, with tensor, sequence and context parallelism
// applied.
struct StageCost {
  Duration forward{};
  // The forward inside a backward that recomputes: gathered weights are
  // available already, and nothing is regrouped for other modules.
  Duration forward_again{};
  // The two forms of the backward (op_graph.h). Split: the input gradient,
  // which is complete when it is handed on, and the weight gradient, 0 for a
  // frozen module.
  Duration backward{};
  Duration weight_grad{};
  // Fused: both gradients in one pass. Equal to `backward` without a weight
  // gradient.
  Duration fused{};
  // How much compute, from weight gradients of other sub-microbatches, fits
  // into `backward` and `fused` while the compute stream waits for the pass's
  // collectives.
  Duration backward_gap{};
  Duration fused_gap{};
  // Kept from forward until backward and weight gradient are done.
  Bytes activations{};
  // Part of `activations` that the input gradient is the last to read.
  Bytes freed_by_backward{};
  // The temporary memory of its passes. A backward of kept activations goes
  // from the last layer to the first and frees those that it is through with,
  // so that a layer's scratch counts only where it is more than was freed.
  PassScratch scratch{};
  // The stage's input, which is all that a recomputed stage keeps.
  Bytes input{};
  // Indexed by operator group; sums over the layers of the stage.
  GroupCosts groups{};
  // The stage's output tensor, which may cross to another rank.
  int64_t output_rows = 0;
  int64_t output_width = 0;
  Bytes output{};       // One GPU's share.
  Flops model_flops{};  // Forward and backward, on all GPUs of the rank.
  // Returns the time of forward and backward in the form that takes less of the
  // rank's time.
  Duration all_passes() const {
    return forward + std::min(fused, backward + weight_grad);
  }
  // Returns the least that they add to a rank's load: without the weight
  // gradients of others that the gaps of the pass may take.
  Duration least_load() const {
    return all_passes() - std::max(backward_gap, fused_gap);
  }
  bool operator==(const StageCost&) const = default;
};

// Memory of a stage's weights on one GPU throughout the step. With sharding, it
// includes the layers that are temporarily whole.
struct StageMemory {
  Bytes weights{};
  Bytes gradients{};
  Bytes optimizer{};
  bool operator==(const StageMemory&) const = default;
};

// Memory of a rank's GPU other than weights and activations.
struct RankOverhead {
  Bytes context{};    // Memory outside of the framework's allocator.
  Bytes libraries{};  // Workspaces of the product libraries.
  // A gradient of each different shape of weight in 16 bits, which fused layers
  // hand to the framework while the true one is added to the fp32 buffer.
  Bytes unused_gradients{};
  Bytes allocated() const { return libraries + unused_gradients; }
  Bytes total() const { return context + allocated(); }
  bool operator==(const RankOverhead&) const = default;
};

// Ratios of measured to priced time, by pass.
struct PassFactors {
  double forward = 1;
  double backward = 1;
  double weight_grad = 1;
  bool operator==(const PassFactors&) const = default;
};

// Counts of cache look-ups.
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

// A cost model of a job: the stages on its sub-microbatches, and the memory and
// updates of its ranks. Const methods are thread-safe.
class StageCostModel {
 public:
  // Keeps a copy of the job. REQUIRES: ValidateJobSpec(job) is OK. With `reuse`
  // off every call prices every layer again; results are the same.
  explicit StageCostModel(const JobSpec& job, bool reuse = true);
  // Prices operators with `costs`; null: with the roofline.
  StageCostModel(const JobSpec& job, std::unique_ptr<const OpCostModel> costs,
                 bool reuse = true);
  ~StageCostModel();
  StageCostModel(const StageCostModel&) = delete;
  StageCostModel& operator=(const StageCostModel&) = delete;

  // Sets the factors that Cost() applies to the passes of each module, as
  // measured. To be called before the model is used. REQUIRES: one for each
  // module, all > 0.
  void SetCorrections(IdVector<ModuleId, PassFactors> factors);

  // Returns the model of a replica's ranks, for jobs whose devices or speeds
  // differ by rank and replica; this model is that of replica 0. Lives as long
  // as this.
  const StageCostModel& ForReplica(int32_t replica) const;

  // Returns the cost of a stage on one shape. A stage without a rank is priced
  // on the cluster's own device. `needs_input_grad`: something trainable feeds
  // the stage, so the gradient is passed on to the stages before it. A frozen
  // module has weight_grad 0, and backward 0 too if it needs no input gradient.
  // `attention_density`: share of each layer's query-key pairs that this step's
  // sparse attention works on, in addition to the layers' own density; in (0,
  // 1].
  StageCost Cost(const Stage& stage, const WorkShape& shape,
                 bool needs_input_grad, double attention_density = 1) const;
  // Returns Cost() of each stage of a row on one shape. `fed_by_trainable` is
  // that of the module. Equal rows share one result.
  using CostRow = std::shared_ptr<const std::vector<StageCost>>;
  CostRow Costs(const StageRow& row, const WorkShape& shape,
                bool fed_by_trainable, double attention_density = 1) const;
  // Returns what each rank holds throughout the step, its limit and its
  // epilogue, as the methods below return them. Computed once per partition.
  IdVector<RankId, RankSpec> Ranks(const Partition& partition) const;
  // Returns the memory of a stage's weights on one GPU.
  StageMemory Memory(const Stage& stage) const;
  // Returns the time of the data-parallel gradient reduction and parameter
  // gathering that nothing hides, and of the optimizer step, for a rank with
  // its stages in `partition`.
  Duration Epilogue(const Partition& partition, RankId rank) const;
  // Time of a tensor from rank to rank, and the part of it that keeps the link
  // busy.
  struct Transfer {
    Duration time{};
    Duration occupancy{};
  };
  // Returns the times of a tensor of `payload` bytes per GPU.
  Transfer TransferTime(RankId from, RankId to, Bytes payload) const;
  // Returns the memory limit of one GPU of the rank, by its device.
  Bytes MemoryLimit(RankId rank) const;
  // Returns the sum of the bf16 peaks of all GPUs of the replica.
  double PeakFlopsPerSecond() const;
  // Returns how links and network cards are shared;
  // emulator/stage/cluster_view.h.
  EmulateOptions Network() const;
  // Returns the overhead of one GPU of a rank with its stages in `partition`.
  RankOverhead Overhead(const Partition& partition, RankId rank) const;

  const JobSpec& job() const;
  CacheCounters cache() const;

 private:
  struct Common;
  struct State;
  explicit StageCostModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  // Rows are larger than prices of layers, so fewer are kept.
  mutable FingerprintCache<CostRow, 512> rows_{};
  mutable FingerprintCache<std::shared_ptr<const IdVector<RankId, RankSpec>>,
                           64>
      ranks_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_
