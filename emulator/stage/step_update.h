// The updates of a step's ranks, and the part of them that the step's passes do
// not hide: each rank's epilogue.
//
// How much passes hide depends on their order. The reduction of a stage's
// gradients begins when the last pass that adds to them begins; one that is put
// off hides less:
//
//   gradients at once    F B F B|        |     put off    F B F B W W|
//                              [b0][b1]                            [b0][b1]
#ifndef PIPELOOM_EMULATOR_STAGE_STEP_UPDATE_H_
#define PIPELOOM_EMULATOR_STAGE_STEP_UPDATE_H_

#include <cstdint>

#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/stage/rank_update.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::emulator {

// The times of a stage's passes on the sub-microbatches of a step. All 0: it
// has no work.
struct PassTimes {
  Duration forward{};   // The mean.
  Duration backward{};  // The mean, of both gradients.
  // No pass that adds to gradients takes longer, whatever its form.
  Duration longest{};
};

// The time that each rank's update adds to a step. Reductions, optimizer and
// waits of all ranks end together, as the optimizer needs the norm of all
// gradients and a wait delays the whole pipeline. An epilogue is 0 for a rank
// that trains nothing.
struct StepUpdate {
  IdVector<RankId, RankUpdate> ranks{};
  // Whether reductions run during backwards, and the share of their time that
  // the passes then lose.
  bool overlaps = false;
  double contention = 0;
  // How long a rank's first forwards wait for its weights: they start as early
  // as data flows.
  IdVector<RankId, Duration> waits{};

  // Before an order is known: the last backwards of a rank's stages follow one
  // another, the deepest stage first.
  IdVector<RankId, Duration> expected{};
  // No order leaves less.
  IdVector<RankId, Duration> least{};

  // Whether all of a rank's stages that have work are trained, and the longest
  // pass of each stage; for `least`.
  IdVector<RankId, bool> trained{};
  IdVector<StageId, Duration> longest{};
};

// `updates` are indexed by rank, `passes` by stage.
StepUpdate MakeStepUpdate(const JobSpec& job, const Partition& partition,
                          IdVector<RankId, RankUpdate> updates,
                          const IdVector<StageId, PassTimes>& passes);

// Returns the update where the passes of stage s are part of those of now[s],
// another stage of the same rank.
StepUpdate OnStages(StepUpdate update, const IdVector<StageId, StageId>& now);

// The passes of a rank in a step: the last ones that add to the gradients of
// its parts, and when it has computed everything, in ns.
struct RankPasses {
  PartSpans last{};
  int64_t end = 0;
};

// Returns each rank's epilogue after these passes, indexed by rank. REQUIRES: a
// span for each part.
IdVector<RankId, Duration> EpiloguesOf(
    const StepUpdate& update, const IdVector<RankId, RankPasses>& passes);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_STEP_UPDATE_H_
