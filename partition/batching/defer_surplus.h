// Entrain's deferral (arXiv 2605.27918): what a microbatch has too much of goes
// to a later one of the same step, and the others stay where they are.
#ifndef PIPELOOM_PARTITION_BATCHING_DEFER_SURPLUS_H_
#define PIPELOOM_PARTITION_BATCHING_DEFER_SURPLUS_H_

#include "ir/job/job_spec.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {

// The same samples on the same replicas in as many microbatches, each within
// the job's limits. From the first microbatch to the last, one that costs more
// than the replica's mean hands samples on, those that bring it nearest to the
// mean, and one that costs less takes waiting samples, as they fit; none is
// left empty. So no sample goes to an earlier microbatch, but for those that
// wait in the end: they go where least is to do and there is room. A replica
// where there is none, or whose costliest microbatch would be costlier, stays
// as it was. The gradient is that of the step as it was: the same samples,
// divided by the same totals (LossShare). O(samples x samples of a microbatch).
PackedStep DeferSurplus(const JobSpec& job, const SampleCosts& costs,
                        const PackedStep& step);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_DEFER_SURPLUS_H_
