// What there is to choose about a partition, and making it from the choices.
//
// Each module has segments of its own over its ranks, and a sub-microbatch
// size; where layers are cut follows from their times, exactly, longer ones on
// ranks that are slow (rank_slowness.h). The rules of the job
// (JobSpec::partition) are kept by every partition made here.
//
//   looped, 2 segments: rank 0 1 2 3 0 1 2 3     vee: rank 0 1 2 3 3 2 1 0
#ifndef PIPELOOM_PARTITION_PLACEMENT_RECIPE_H_
#define PIPELOOM_PARTITION_PLACEMENT_RECIPE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/plan/partition.h"
#include "partition/batching/rank_slowness.h"
#include "partition/batching/typical_work.h"
#include "partition/placement/layer_chain.h"

namespace pipeloom::partition {

enum class RankMap { kLooped, kVee };

struct ModuleRecipe {
  int64_t sub_microbatch = 0;  // Instances; 0: the whole microbatch.
  int32_t segments = 1;
  RankMap map = RankMap::kLooped;
  // From the last rank to the first, where the others go from the first.
  bool reversed = false;
  // Ranks [first_rank, first_rank + num_ranks); 0: all of the job's.
  int32_t first_rank = 0;
  int32_t num_ranks = 0;
  bool operator==(const ModuleRecipe&) const = default;
};

struct PartitionRecipe {
  IdVector<ModuleId, ModuleRecipe> modules{};
  // All modules in one chain, as the first module's recipe says.
  bool one_chain = false;
  // After the cuts are made, moves them so that the busiest rank has the least
  // to do over all modules: an uneven cut here makes up for one there.
  bool level_ranks = false;
  bool operator==(const PartitionRecipe&) const = default;
  // "encoder 3 x 4 looped, backbone 1 x all looped": for progress and reports.
  std::string ToString(const ModelSpec& model) const;
};

class PartitionBuilder {
 public:
  // Measures the sample. Keeps references to the job, of which `costs` are, and
  // to `costs`. InvalidArgument: the sample is empty or has no work for the
  // model. Milliseconds.
  static absl::StatusOr<PartitionBuilder> Create(
      const JobSpec& job, const emulator::StageCostModel& costs,
      const BatchMetadata& sample);

  // DIP section 4.1 (partition/placement/placement.h), with the job's own
  // ranks.
  PartitionRecipe DipRule() const;
  // DipRule, or where it cannot keep the job's rules the first that does: a
  // module as a vee of two segments, all of them, one chain. Its Build is OK.
  absl::StatusOr<PartitionRecipe> FeasibleRule() const;

  // A module with fewer layers than ranks joins the chain of its consumer (or
  // producer) and is cut with it. InvalidArgument names the rule of the job
  // that no cut keeps. Cost: some dynamic programming, well under a
  // millisecond.
  absl::StatusOr<Partition> Build(const PartitionRecipe& recipe) const;

  // The partition with one unit of layers moved from the end of stage `stage`
  // to the beginning of the module's next stage, or, `back`, the other way;
  // nullopt where there is none to move, or a rule of the job forbids it.
  std::optional<Partition> MoveUnit(const Partition& partition, StageId stage,
                                    bool back) const;

  const TypicalWork& work(ModuleId module) const { return typical_[module]; }
  const LayerPricing& pricing() const { return *pricing_; }
  // Of a typical microbatch, all passes; 0 where the sample has none.
  Duration TimeOf(ModuleId module) const;
  // Weighty units of layers: at most so many stages make sense.
  int32_t NumUnits(ModuleId module) const;
  // Whether the job's file fixes it.
  bool SizeIsFixed(ModuleId module) const;
  bool RanksAreFixed(ModuleId module) const;
  const JobSpec& job() const { return *job_; }

 private:
  explicit PartitionBuilder(const JobSpec& job) : job_(&job) {}
  // A chain of modules cut as one; its host says how. Run i is units
  // [begins[i], begins[i + 1]).
  struct Chain {
    std::vector<LayerUnit> units{};
    ModuleRecipe recipe{};
    bool by_time = true;  // Else weights are parameters.
    std::vector<int32_t> begins{};
    std::vector<std::vector<bool>> allowed{};  // As of SplitLayers.
    std::vector<double> slow{};  // By rank; empty where all are alike.
    int32_t RankOf(int32_t run) const;
    int64_t WeightOf(int32_t run) const;
    std::vector<double> SlowOfRuns(int32_t runs) const;
    bool May(int32_t unit, int32_t run) const;
  };
  std::vector<Chain> Chains(const PartitionRecipe& recipe) const;
  std::vector<LayerUnit> UnitsOf(ModuleId module, int64_t size) const;
  ModuleId HostOf(ModuleId module, const IdVector<ModuleId, bool>& hosts) const;
  // Cuts the chains; rank_of_rule[i] is the rank of rule together[i], -1: any.
  // False if some chain has no such cut.
  bool Cut(const std::vector<int32_t>& rank_of_rule, bool level_ranks,
           std::vector<Chain>* chains) const;
  std::vector<int64_t> Loads(const std::vector<Chain>& chains) const;
  void LevelRanks(std::vector<Chain>* chains) const;
  Partition ToPartition(const std::vector<Chain>& chains,
                        const PartitionRecipe& recipe) const;

  const JobSpec* job_;
  std::unique_ptr<LayerPricing> pricing_{};
  IdVector<ModuleId, TypicalWork> typical_{};
  RankSlowness slowness_{};
};

// InvalidArgument names the first rule of the job that the partition breaks.
absl::Status CheckPartitionRules(const JobSpec& job,
                                 const Partition& partition);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_RECIPE_H_
