// Questions about a job's cluster that need no plan of their own: node faults
// by the kind of high-bandwidth domain, and compressed gradients.
#ifndef PIPELOOM_STUDIES_WHATIF_INFRASTRUCTURE_H_
#define PIPELOOM_STUDIES_WHATIF_INFRASTRUCTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "emulator/network/network_domain.h"
#include "ir/job/job_spec.h"

namespace pipeloom::studies {

struct DomainWaste {
  std::string domain{};
  absl::Status status{};  // An error says why the job cannot have this domain.
  std::vector<emulator::WasteSample> samples{};  // Indexed by share.
};

// Returns the GPUs that faults leave without a whole tensor-parallel group, by
// kind of domain and share of faulty nodes, on a cluster of `nodes` of the
// job's nodes. This is the question of InfinitePOD (arXiv 2502.03885);
// emulator/network/network_domain.h has the model.
std::vector<DomainWaste> CompareDomains(const JobSpec& job, int64_t nodes);

struct GradientReduction {
  std::string gradients{};  // "8 bit"
  Duration reduction{};
  Duration coding{};  // Encoding and decoding; 0 for exact gradients.
  // The link bandwidth below which compression pays, bytes per second, by the
  // same formula without latency; 0 for exact gradients.
  double pays_below = 0;
  Duration total() const { return reduction + coding; }
};

// Returns the cost and gain of compressing gradients before their reduction
// (the question of ByteComp, arXiv 2205.14465), for one GPU with `parameters`
// parameters in `replicas` replicas, exact gradients first:
//
//   exact       reduce-scatter and all-gather of 4 bytes per parameter
//   compressed  both with `ratio` times as many bytes, and encoding and
//               decoding: twice 4 (1 + ratio) bytes per parameter through the
//               GPU's memory
//
// The effect on convergence is not modelled.
std::vector<GradientReduction> CompareCompression(const JobSpec& job,
                                                  int64_t parameters,
                                                  int64_t replicas);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_WHATIF_INFRASTRUCTURE_H_
