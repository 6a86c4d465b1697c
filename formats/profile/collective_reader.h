// Reader and printer of the member "collectives" of a device profile:
//
//   {"nic_bytes_per_second": 45e9, "gpus_per_node": 8,
//    "node_bytes_per_second": 0, "node_latency_us": 2, "nic_latency_us": 10,
//    "compute_slowdown": 1.18,
//    "communication_slowdown": 1, "source": "...",
//    "curves": [{"op": "all_gather", "span": "node", "ranks": 8,
//                "bytes": [1024, ...], "us": [8.8, ...],
//                "estimated": [4096]}, ...]}
#ifndef PIPELOOM_FORMATS_PROFILE_COLLECTIVE_READER_H_
#define PIPELOOM_FORMATS_PROFILE_COLLECTIVE_READER_H_

#include <string>

#include "formats/text/object_reader.h"
#include "ir/profile/collective_profile.h"

namespace pipeloom::formats {

// Reads the object; mistakes become the reader's error. Curves are sorted; the
// result has passed ValidateCollectiveProfile.
void ReadCollectives(ObjectReader& reader, CollectiveProfile* out);

// Prints JSON that reads back equal, one curve per line; lines after the first
// are indented by `indent`.
std::string PrintCollectives(const CollectiveProfile& profile, int indent);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_COLLECTIVE_READER_H_
