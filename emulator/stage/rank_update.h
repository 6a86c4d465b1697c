// The update of a rank after its last backward, in parts: the reduce-scatter of
// its gradients, the optimizer step and the all-gather of its weights, with the
// share of each stage in the gradients. StageCostModel::Epilogue is their sum.
#ifndef PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_
#define PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_

#include <vector>

#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::emulator {

// The times of an update.
struct RankUpdate {
  // Time to reduce all its gradients while other work runs. 0 with ZeRO-2 and
  // -3, whose passes reduce them.
  Duration reduce{};
  // The part of `reduce` that a plan's epilogue shows: all of it if the setup
  // overlaps nothing.
  Duration shown_reduce{};
  Duration optimizer{};
  // Time of the gather that the next step's first forward does not hide. 0 with
  // ZeRO-3. Without sharding it gathers gradients.
  Duration gather{};
  // Time of the whole gather; 0 where `gather` is.
  Duration whole_gather{};
  struct Part {
    StageId stage{};
    int64_t parameters = 0;  // Parameters on one GPU; > 0.
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts{};  // Trained stages of the rank.
  Duration total() const { return shown_reduce + optimizer + gather; }
  bool operator==(const RankUpdate&) const = default;
};

// Returns the time by which each reduction and gather of a rank grows when it
// is done bucket by bucket, as Megatron-Core's distributed optimizer does: each
// bucket of at least 40 million parameters, and of a million for each replica,
// is a collective of its own, which has to start.
Duration BucketStarts(const JobSpec& job, const RankUpdate& update,
                      const OpCostModel& costs);

// Returns the updates, indexed by rank; if replicas differ, each part is that
// of the slowest. REQUIRES: ValidateJobSpec(job) and ValidatePartition are OK.
IdVector<RankId, RankUpdate> UpdatesOf(const JobSpec& job,
                                       const Partition& partition,
                                       const OpCostModel& costs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_RANK_UPDATE_H_
