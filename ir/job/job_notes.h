// Remarks on a job that can be planned, but that a trainer may refuse or that
// is probably not meant.
#ifndef PIPELOOM_IR_JOB_JOB_NOTES_H_
#define PIPELOOM_IR_JOB_JOB_NOTES_H_

#include <string>
#include <vector>

#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_notes.h"

namespace pipeloom {

// Returns remarks on rates and sizes of a cluster that are so small that they
// were probably given in another unit, such as gigabytes for bytes.
std::vector<std::string> ClusterNotes(const ClusterSpec& cluster);

// Returns the remarks on a job's model and cluster; precisions that a device
// does not have, and memory limits above its memory; settings of fp8 products
// where there are none; and, in the order of the modules: heads that tp does
// not divide (with all-to-all context parallelism tp x cp), key and value heads
// that it does not divide, experts that ep does not divide; ep where no module
// has experts; ranks without a layer; then tokens of a microbatch that cp does
// not divide, groups of GPUs that lie over two nodes, and that nothing is
// trained.
// REQUIRES: ValidateJobSpec(job) is OK.
std::vector<std::string> JobNotes(const JobSpec& job);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_JOB_NOTES_H_
