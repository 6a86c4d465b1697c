#include "formats/job/device_swap.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"

namespace pipeloom::formats {
namespace {

void CompareLinks(absl::string_view where, const LinkSpec& other,
                  const LinkSpec& own, std::vector<std::string>* differences) {
  if (other.bandwidth.bytes_per_second != own.bandwidth.bytes_per_second) {
    differences->push_back(absl::StrFormat(
        "%.4g GB/s %s (here %.4g)", other.bandwidth.bytes_per_second / 1e9,
        where, own.bandwidth.bytes_per_second / 1e9));
  }
  if (other.latency != own.latency) {
    differences->push_back(absl::StrFormat("a latency of %s %s (here %s)",
                                           FormatDuration(other.latency), where,
                                           FormatDuration(own.latency)));
  }
}

}  // namespace

std::vector<std::string> DeviceSwapNotes(const ClusterSpec& cluster,
                                         absl::Span<const JobOverride> changes,
                                         const std::string& data_dir,
                                         const FileReader& read) {
  std::vector<std::string> notes;
  for (const JobOverride& change : changes) {
    if (change.path != "cluster.device") continue;
    const auto other = LoadCluster(change.value, data_dir, read);
    if (!other.ok()) continue;
    std::vector<std::string> differences;
    if (other->gpus_per_node != cluster.gpus_per_node) {
      differences.push_back(absl::StrFormat("%d GPUs a node (here %d)",
                                            other->gpus_per_node,
                                            cluster.gpus_per_node));
    }
    CompareLinks("inside nodes", other->intra_node, cluster.intra_node,
                 &differences);
    CompareLinks("between nodes", other->inter_node, cluster.inter_node,
                 &differences);
    notes.push_back(absl::StrCat(
        "cluster.device=", change.value, " changes the GPU alone",
        differences.empty()
            ? ""
            : absl::StrCat("; the cluster ", change.value, " also has ",
                           absl::StrJoin(differences, ", "), ": --set cluster=",
                           change.value, " takes all of it")));
  }
  return notes;
}

}  // namespace pipeloom::formats
