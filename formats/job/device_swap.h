// Notes on a change of the GPU alone: --set
// cluster.device=b200-sxm takes the device of the shipped cluster b200-sxm, and
// neither its links nor its nodes.
#ifndef PIPELOOM_FORMATS_JOB_DEVICE_SWAP_H_
#define PIPELOOM_FORMATS_JOB_DEVICE_SWAP_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "formats/job/job_overrides.h"
#include "formats/job/spec_loader.h"
#include "ir/job/cluster_spec.h"

namespace pipeloom::formats {

// Returns, for each change of cluster.device to that of another cluster, how
// else the other cluster differs from `cluster`, the job's with all changes
// made. Names that are not known are left to the reader of the job.
std::vector<std::string> DeviceSwapNotes(const ClusterSpec& cluster,
                                         absl::Span<const JobOverride> changes,
                                         const std::string& data_dir,
                                         const FileReader& read);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_DEVICE_SWAP_H_
