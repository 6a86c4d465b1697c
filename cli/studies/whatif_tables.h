// Tables of `whatif` that need no plan of their own: node faults by the kind of
// high-bandwidth domain, and compressed gradients.
#ifndef PIPELOOM_CLI_STUDIES_WHATIF_TABLES_H_
#define PIPELOOM_CLI_STUDIES_WHATIF_TABLES_H_

#include "absl/status/statusor.h"
#include "cli/console/table.h"
#include "ir/job/job_spec.h"

namespace pipeloom::cli {

// Returns the number of GPUs that faults leave without a whole tensor-parallel
// group, by kind of domain and share of faulty nodes, on a cluster of `nodes`
// of the job's nodes. The MFU is `mfu` of the job times the usable share. This
// is the question of InfinitePOD (arXiv 2502.03885);
// emulator/network/network_domain.h has the model.
absl::StatusOr<Table> DomainTable(const JobSpec& job, double mfu,
                                  int64_t nodes);

// Returns the cost and gain of compressing gradients before their reduction
// (the question of ByteComp, arXiv 2205.14465), for one GPU with `parameters`
// parameters in `replicas` replicas:
//
//   exact       reduce-scatter and all-gather of 4 bytes per parameter
//   compressed  both with `ratio` times as many bytes, and encoding and
//               decoding: twice 4 (1 + ratio) bytes per parameter through the
//               GPU's memory
//
// The last column is the link bandwidth below which compression pays, by the
// same formula without latency. The effect on convergence is not modelled.
Table CompressionTable(const JobSpec& job, int64_t parameters,
                       int64_t replicas);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_WHATIF_TABLES_H_
