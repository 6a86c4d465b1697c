// Dense typed ids that name the parts of a job and of a step; see
// base/strong_id.h.
#ifndef PIPELOOM_IR_IDS_H_
#define PIPELOOM_IR_IDS_H_

#include "base/strong_id.h"

namespace pipeloom {

using RankId = Id<struct RankTag>;      // A pipeline rank of a replica.
using ModuleId = Id<struct ModuleTag>;  // The network of one modality.
using LayerId = Id<struct LayerTag>;    // A layer, counted within its module.
using StageId = Id<struct StageTag>;    // Consecutive layers on one rank.
// P consecutive stages, one on each rank.
using SegmentId = Id<struct SegmentTag>;
using SampleId = Id<struct SampleTag>;  // A sample of one step's batch.
using MicrobatchId = Id<struct MicrobatchTag>;
using SubMicrobatchId = Id<struct SubMicrobatchTag>;
using TaskId = Id<struct TaskTag>;  // One pass of a stage on a sub-microbatch.
using EdgeId = Id<struct EdgeTag>;  // One dependency between two tasks.

}  // namespace pipeloom

#endif  // PIPELOOM_IR_IDS_H_
