// Drives a service as many trainers would: jobs, replicas and ranks that submit
// and fetch at a time, and checks every answer.
//
// Round trips are measured by a caller of its own that does nothing else, as a
// rank would: now and then a share of a plan that is ready, and beside each an
// empty call (health check), which is what gRPC and the machine cost at that
// moment. The checks are made by threads of low priority, since a trainer has
// none. In the ranks' place they share the service's cores; what a round trip
// takes beside searches alone, `round_trips` measures.
#ifndef PIPELOOM_SERVICE_LOAD_GENERATOR_LOAD_TEST_H_
#define PIPELOOM_SERVICE_LOAD_GENERATOR_LOAD_TEST_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::service {

struct LoadOptions {
  std::string target = "127.0.0.1:50551";
  std::string tls_roots{};  // PEM; empty: no TLS.
  std::string token{};
  JobSpec job{};          // Its parallel.dp is the number of replicas.
  BatchMetadata batch{};  // Steps take their samples from it, round and round.
  int32_t jobs = 1;
  int32_t steps = 10;
  Duration partition_time{};  // For OpenJob to search in; 0: by rule.
  int32_t clients = 16;       // Threads that fetch.
  std::chrono::milliseconds deadline{30'000};  // Of a fetch.
  // Fetches whole plans too and checks them.
  bool verify = true;
  // Only the caller that measures: steps of one replica are submitted, 32 at a
  // time, and while they are searched for it fetches shares of the first.
  bool round_trips = false;
  // The service's resident memory, bytes; asked after a tenth of the plans and
  // at the end. May be empty.
  std::function<int64_t()> server_memory{};
};

struct Percentiles {
  int64_t count = 0;
  double p50_us = 0;
  double p90_us = 0;
  double p99_us = 0;
  double max_us = 0;
};

struct LoadResult {
  int64_t plans = 0;  // (job, step, replica) of which all ranks got a share.
  int64_t best_so_far = 0;
  // Shares of one plan, or replicas of one step, that do not agree, a second
  // answer that differs from the first, or a plan that the check refuses.
  int64_t wrong = 0;
  int64_t lost = 0;              // Plans that not every rank got.
  int64_t tasks = 0;             // Of the largest plan.
  int64_t share_bytes = 0;       // The largest share.
  int32_t partitions_tried = 0;  // Of the last job that was opened.
  bool partition_cut_short = false;
  int64_t memory_at_tenth = 0;  // Bytes; 0: not asked for.
  int64_t memory_at_end = 0;
  double seconds = 0;
  Percentiles open{};
  Percentiles first{};  // The first rank's fetch: waits for the plan.
  Percentiles ready{};  // Fetches of plans that are ready, beside searches ...
  Percentiles bare{};   // ... and empty calls between them.
  Percentiles quiet{};  // The same two when all is planned.
  Percentiles quiet_bare{};
  std::map<std::string, int64_t> errors{};  // By status.
  std::vector<std::string> examples{};      // Of what was wrong; at most 10.
};

// Unavailable: the service cannot be reached. Cancelled: `stop`.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options,
                                   const std::stop_token& stop);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_LOAD_GENERATOR_LOAD_TEST_H_
