// How much longer ranks take for modules than the fastest does, where devices,
// precisions or speeds differ by rank: what layers are cut by.
#ifndef PIPELOOM_PARTITION_BATCHING_RANK_SLOWNESS_H_
#define PIPELOOM_PARTITION_BATCHING_RANK_SLOWNESS_H_

#include <vector>

#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "partition/batching/typical_work.h"

namespace pipeloom::partition {

class RankSlowness {
 public:
  RankSlowness() = default;  // All ranks are alike.
  // Prices each module's typical microbatch on every rank of every replica,
  // where the cluster is mixed; else as RankSlowness().
  RankSlowness(const emulator::StageCostModel& costs,
               const IdVector<ModuleId, TypicalWork>& typical);

  // By rank, for a chain of these modules: at least 1, at most 64. One
  // partition serves all replicas, so a rank is as slow as in its slowest one.
  // Empty: all ranks are alike.
  std::vector<double> Of(const std::vector<ModuleId>& modules) const;

 private:
  IdVector<ModuleId, std::vector<Duration>> times_{};  // By rank, or empty.
};

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_RANK_SLOWNESS_H_
