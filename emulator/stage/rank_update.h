// What follows a rank's last backward, in parts: the reduce-scatter of its
// gradients, the optimizer step and the all-gather of its weights, with how
// much of the gradients each stage has. Together they are what
// StageCostModel::Epilogue gives as one time.
#ifndef PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_
#define PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_

#include <vector>

#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::emulator {

struct RankUpdate {
  // Of all its gradients, beside whatever runs meanwhile. 0 with ZeRO-2 and -3,
  // whose passes reduce them.
  Duration reduce{};
  // Of it, what a plan's epilogue shows: all, if the setup overlaps nothing.
  Duration shown_reduce{};
  Duration optimizer{};
  // What the next step's first forward does not hide. 0 with ZeRO-3. Without
  // sharding, of gradients.
  Duration gather{};
  struct Part {
    StageId stage{};
    int64_t parameters = 0;  // On one GPU; > 0.
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts{};  // Trained stages of the rank.
  Duration total() const { return shown_reduce + optimizer + gather; }
  bool operator==(const RankUpdate&) const = default;
};

// By rank; where replicas differ, each part of the slowest. REQUIRES:
// ValidateJobSpec(job) and ValidatePartition are OK.
IdVector<RankId, RankUpdate> UpdatesOf(const JobSpec& job,
                                       const Partition& partition,
                                       const OpCostModel& costs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_
