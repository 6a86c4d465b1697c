// Entrain's deferral (arXiv 2605.27918): the surplus of a microbatch goes to a
// later one of the same step, and the other samples stay in place.
#ifndef PIPELOOM_PARTITION_BATCHING_DEFER_SURPLUS_H_
#define PIPELOOM_PARTITION_BATCHING_DEFER_SURPLUS_H_

#include "ir/job/job_spec.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {

// Returns the same samples on the same replicas in as many microbatches, each
// within the job's limits. From the first microbatch to the last, one that
// costs more than the replica's mean hands on the samples that bring it nearest
// to the mean, and one that costs less takes waiting samples, as they fit; none
// is left empty. So no sample goes to an earlier microbatch, except those that
// wait in the end: they go to the cheapest microbatch that has room. A replica
// without room for them, or whose costliest microbatch would become costlier,
// is not changed. The gradient does not change: the same samples, divided by
// the same totals (LossShare). O(samples x samples of a microbatch).
PackedStep DeferSurplus(const JobSpec& job, const SampleCosts& costs,
                        const PackedStep& step);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_DEFER_SURPLUS_H_
