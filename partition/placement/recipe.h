// Recipes of partitions: the choices about a partition, and the partition made
// from them.
//
// Each module has its own segments over its ranks, and a sub-microbatch size;
// the cuts between layers follow from their times, exactly, with fewer layers
// on ranks that are slow (rank_slowness.h). Every partition made here keeps the
// rules of the job (JobSpec::partition).
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

// The order in which a module's segments use the ranks.
enum class RankMap { kLooped, kVee };

// The choices for one module.
struct ModuleRecipe {
  int64_t sub_microbatch = 0;  // Instances; 0: the whole microbatch.
  int32_t segments = 1;
  RankMap map = RankMap::kLooped;
  // Whether ranks are used from the last to the first instead of from the
  // first.
  bool reversed = false;
  // Ranks [first_rank, first_rank + num_ranks); 0: all ranks of the job.
  int32_t first_rank = 0;
  int32_t num_ranks = 0;
  bool operator==(const ModuleRecipe&) const = default;
};

// The choices for all modules.
struct PartitionRecipe {
  IdVector<ModuleId, ModuleRecipe> modules{};
  // Whether all modules form one chain, with the first module's recipe.
  bool one_chain = false;
  // Whether the cuts are moved afterwards so that the busiest rank has the
  // least work over all modules: an uneven cut of one module compensates that
  // of another.
  bool level_ranks = false;
  bool operator==(const PartitionRecipe&) const = default;
  // Describes the recipe for progress and reports: "encoder 3 x 4 looped,
  // backbone 1 x all looped".
  std::string ToString(const ModelSpec& model) const;
};

// A maker of the partitions of a job from recipes.
class PartitionBuilder {
 public:
  // Measures the sample. Keeps references to the job, whose costs `costs` are,
  // and to `costs`. InvalidArgument: the sample is empty or has no work for the
  // model. Milliseconds.
  static absl::StatusOr<PartitionBuilder> Create(
      const JobSpec& job, const emulator::StageCostModel& costs,
      const BatchMetadata& sample);

  // Returns the recipe of DIP section 4.1 (partition/placement/placement.h),
  // with the job's own ranks.
  PartitionRecipe DipRule() const;
  // Returns DipRule, or if it cannot keep the job's rules the first recipe that
  // does: one module as a vee of two segments, all of them so, one chain, one
  // chain as a vee. Its Build is OK.
  absl::StatusOr<PartitionRecipe> FeasibleRule() const;

  // Makes the partition of a recipe. A module with fewer layers than ranks
  // joins the chain of its consumer (or producer) and is cut with it.
  // InvalidArgument names the rule of the job that no cut keeps. Cost: some
  // dynamic programming, well under a millisecond.
  absl::StatusOr<Partition> Build(const PartitionRecipe& recipe) const;

  // Returns the partition with one unit of layers moved from the end of stage
  // `stage` to the beginning of the module's next stage, or, with `back`, the
  // other way; nullopt if there is none to move, or a rule of the job forbids
  // it.
  std::optional<Partition> MoveUnit(const Partition& partition, StageId stage,
                                    bool back) const;

  const TypicalWork& work(ModuleId module) const { return typical_[module]; }
  const LayerPricing& pricing() const { return *pricing_; }
  // Returns the time of all passes of a typical microbatch; 0 if the sample has
  // none.
  Duration TimeOf(ModuleId module) const;
  // Returns the number of units of layers with a weight: more stages make no
  // sense.
  int32_t NumUnits(ModuleId module) const;
  // Return whether the job's file fixes the module's sub-microbatch size or
  // ranks.
  bool SizeIsFixed(ModuleId module) const;
  bool RanksAreFixed(ModuleId module) const;
  const JobSpec& job() const { return *job_; }

 private:
  explicit PartitionBuilder(const JobSpec& job) : job_(&job) {}
  // A chain of modules cut as one, by the recipe of its host. Run i is units
  // [begins[i], begins[i + 1]).
  struct Chain {
    std::vector<LayerUnit> units{};
    ModuleRecipe recipe{};
    bool by_time = true;  // Else weights are parameters.
    std::vector<int32_t> begins{};
    std::vector<std::vector<bool>> allowed{};  // As in SplitLayers.
    std::vector<double> slow{};  // Indexed by rank; empty if all are alike.
    int32_t RankOf(int32_t run) const;
    int64_t WeightOf(int32_t run) const;
    std::vector<double> SlowOfRuns(int32_t runs) const;
    bool May(int32_t unit, int32_t run) const;
  };
  std::vector<Chain> Chains(const PartitionRecipe& recipe) const;
  std::vector<LayerUnit> UnitsOf(ModuleId module, int64_t size) const;
  ModuleId HostOf(ModuleId module, const IdVector<ModuleId, bool>& hosts) const;
  // Cuts the chains; rank_of_rule[i] is the rank of rule together[i], -1: any.
  // Returns false if some chain has no such cut.
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

// Returns InvalidArgument that names the first rule of the job that the
// partition breaks; OK if there is none.
absl::Status CheckPartitionRules(const JobSpec& job,
                                 const Partition& partition);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_RECIPE_H_
