// Time and memory of one stage on one sub-microbatch, on one pipeline rank (a
// group of tp x cp GPUs acting as one), through the subgraph cache: equal
// layers with equal shapes are priced once.
#ifndef PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_
#define PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/fingerprint.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/rank_update.h"
#include "emulator/stage/stage_cost_types.h"
#include "emulator/stage/step_update.h"
#include "emulator/stage/subgraph_cache.h"
#include "emulator/step/emulate_step.h"
#include "ir/job/job_spec.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::emulator {

struct StageCostState;  // stage_cost_state.h

// Whether layers that are alike are priced once, or each in each call; results
// are the same.
enum class PriceReuse { kOn, kOff };

// A cost model of a job: the stages on its sub-microbatches, and the memory and
// updates of its ranks. Const methods are thread-safe.
class StageCostModel {
 public:
  // Keeps a copy of the job, and prices operators with the roofline. REQUIRES:
  // ValidateJobSpec(job) is OK.
  explicit StageCostModel(const JobSpec& job,
                          PriceReuse reuse = PriceReuse::kOn);
  // Prices operators with `costs`; null: with the roofline.
  StageCostModel(const JobSpec& job, std::unique_ptr<const OpCostModel> costs,
                 PriceReuse reuse = PriceReuse::kOn);
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
  // Returns the row of stages of one module, in data-flow order.
  StageRow Row(absl::Span<const Stage> stages) const;
  // Returns Cost() of each slot of a row on one shape. `fed_by_trainable`: the
  // first stage needs an input gradient.
  std::vector<StageCost> PriceSlots(const StageRow& row, const WorkShape& shape,
                                    bool fed_by_trainable,
                                    double attention_density = 1) const;
  // Returns the same, one result for all equal rows.
  using CostRow = std::shared_ptr<const std::vector<StageCost>>;
  CostRow Costs(const StageRow& row, const WorkShape& shape,
                bool fed_by_trainable, double attention_density = 1) const;
  // Returns make()'s value as shared_ptr<const T>; if it was called for the
  // same key before, the value of then. The model keeps values as long as its
  // rows of costs. REQUIRES: equal keys mean the same T and the same value.
  // `layers`: how many layer prices a kept value saves; counted as cache hits.
  template <typename T, typename Make>
  std::shared_ptr<const T> Derived(const Fingerprint& key, int64_t layers,
                                   const Make& make) const {
    if (!reuses()) return std::make_shared<const T>(make());
    bool known = true;
    std::shared_ptr<const void> value =
        derived_.Get(key, [&]() -> std::shared_ptr<const void> {
          known = false;
          return std::make_shared<const T>(make());
        });
    if (known) CountReused(layers);
    return std::static_pointer_cast<const T>(std::move(value));
  }
  // Returns what each rank holds throughout the step, its limit and its
  // epilogue before an order is known, by the times of passes, indexed by
  // stage. Everything else is computed once per partition.
  struct StepRanks {
    IdVector<RankId, RankSpec> ranks{};
    StepUpdate update{};
  };
  StepRanks Ranks(const Partition& partition,
                  const IdVector<StageId, PassTimes>& passes) const;
  // Returns the memory of a stage's weights on one GPU.
  StageMemory Memory(const Stage& stage) const;
  // Returns the update of each rank of this replica.
  IdVector<RankId, RankUpdate> Updates(const Partition& partition) const;
  // Returns the same with each time that of the slowest replica. To be called
  // on the model of replica 0.
  IdVector<RankId, RankUpdate> SlowestUpdates(const Partition& partition) const;
  // Time of a tensor from rank to rank, and the part of it that keeps the link
  // busy.
  struct Transfer {
    Duration time{};
    Duration occupancy{};
  };
  // Returns the times of a tensor of `payload` bytes per GPU, with its gather
  // where GPUs send parts of it (TrainingSetup::scattered_sends).
  Transfer TransferTime(RankId from, RankId to, Bytes payload) const;
  // Returns the memory limit of one GPU of the rank, by its device.
  Bytes MemoryLimit(RankId rank) const;
  // Returns the sum of the bf16 peaks of all GPUs of the replica.
  double PeakFlopsPerSecond() const;
  // Returns the links of the replica's ranks; emulator/stage/cluster_view.h.
  SharedLinks Links() const;
  // Returns the overhead of one GPU of a rank with its stages in `partition`.
  RankOverhead Overhead(const Partition& partition, RankId rank) const;

  const JobSpec& job() const;
  CacheCounters cache() const;

 private:
  explicit StageCostModel(std::unique_ptr<StageCostState> state);
  bool reuses() const;
  void CountReused(int64_t layers) const;

  std::unique_ptr<StageCostState> state_;
  // The models of other replicas, which share the state's common part.
  std::vector<std::unique_ptr<StageCostModel>> others_{};
  // Rows are larger than prices of layers, so fewer are kept.
  mutable FingerprintCache<CostRow, 512> rows_{};
  mutable FingerprintCache<std::shared_ptr<const void>, 3584> derived_{};
  // Memory and updates of the ranks of one partition.
  struct RankCosts {
    IdVector<RankId, RankSpec> ranks{};  // Without epilogues.
    IdVector<RankId, RankUpdate> updates{};
  };
  mutable FingerprintCache<std::shared_ptr<const RankCosts>, 64> ranks_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_STAGE_COST_H_
