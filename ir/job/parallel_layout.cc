#include "ir/job/parallel_layout.h"

#include "absl/strings/str_format.h"

namespace pipeloom {

absl::Status ValidateParallelLayout(const ParallelLayout& layout,
                                    const ClusterSpec& cluster) {
  const struct {
    const char* field;
    int32_t value;
  } sizes[] = {{"tp", layout.tp},
               {"cp", layout.cp},
               {"ep", layout.ep},
               {"pp", layout.pp},
               {"dp", layout.dp}};
  for (const auto& size : sizes) {
    if (size.value < 1 || size.value > 65536) {
      return absl::InvalidArgumentError(
          absl::StrFormat("parallel.%s is %d; it must be in [1, 65536]",
                          size.field, size.value));
    }
  }
  if (layout.expert_tp != 0 && layout.expert_tp != 1 &&
      layout.expert_tp != layout.tp) {
    return absl::InvalidArgumentError(
        absl::StrFormat("parallel.expert_tp is %d; it must be 1 or tp, which "
                        "is %d",
                        layout.expert_tp, layout.tp));
  }
  // As a double, since four sizes of 65536 pass int64_t.
  const double gpus = static_cast<double>(int64_t{layout.tp} * layout.cp) *
                      static_cast<double>(int64_t{layout.pp} * layout.dp);
  if (gpus > static_cast<double>(cluster.num_gpus())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel: tp %d x cp %d x pp %d x dp %d needs %.0f GPUs; cluster "
        "\"%s\" "
        "has %d (%d nodes of %d)",
        layout.tp, layout.cp, layout.pp, layout.dp, gpus, cluster.name,
        cluster.num_gpus(), cluster.num_nodes, cluster.gpus_per_node));
  }
  if (layout.most_ep() % layout.ep != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.ep is %d; it must divide dp %d x cp %d x tp %d / expert_tp "
        "%d = %d: experts lie on the GPUs of a rank in all replicas",
        layout.ep, layout.dp, layout.cp, layout.tp,
        layout.expert_tp > 0 ? layout.expert_tp : layout.tp, layout.most_ep()));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
