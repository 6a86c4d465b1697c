// Notes on devices whose power limit a cluster does not state.
#ifndef PIPELOOM_FORMATS_JOB_DEVICE_SHARE_NOTES_H_
#define PIPELOOM_FORMATS_JOB_DEVICE_SHARE_NOTES_H_

#include <string>
#include <vector>

#include "formats/job/spec_loader.h"
#include "ir/job/cluster_spec.h"

namespace pipeloom::formats {

// Returns a note for each share (`sustained_bf16`, `sustained_fp8`,
// `sustained_attention`) that a device of the cluster does not state, or states
// as 1, and that the shipped device of that name has below 1: the power limit
// then lengthens no step, and steps are predicted too short. Devices that do
// not ship get none.
std::vector<std::string> DeviceShareNotes(const ClusterSpec& cluster,
                                          const std::string& data_dir,
                                          const FileReader& read);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_DEVICE_SHARE_NOTES_H_
