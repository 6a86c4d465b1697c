// Slowness of ranks: how many times longer than the fastest rank they take for
// modules, if devices, precisions or speeds differ by rank. Layers are cut by
// it.
#ifndef PIPELOOM_PARTITION_BATCHING_RANK_SLOWNESS_H_
#define PIPELOOM_PARTITION_BATCHING_RANK_SLOWNESS_H_

#include <vector>

#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "partition/batching/typical_work.h"

namespace pipeloom::partition {

// Slowness of the ranks of a job.
class RankSlowness {
 public:
  RankSlowness() = default;  // All ranks are alike.
  // Prices each module's typical microbatch on every rank of every replica if
  // the cluster is mixed; else all ranks are alike.
  RankSlowness(const emulator::StageCostModel& costs,
               const IdVector<ModuleId, TypicalWork>& typical);

  // Returns the slowness for a chain of these modules, indexed by rank: at
  // least 1, at most 64. One partition serves all replicas, so a rank is as
  // slow as in its slowest one. Empty: all ranks are alike.
  std::vector<double> Of(const std::vector<ModuleId>& modules) const;

 private:
  // Indexed by rank; may be empty.
  IdVector<ModuleId, std::vector<Duration>> times_{};
};

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_RANK_SLOWNESS_H_
