// A load test that drives a service as many trainers would: jobs, replicas and
// ranks that submit and fetch concurrently. It checks every answer.
//
// Round trips are measured by a separate caller, which does nothing else, as a
// rank would: now and then it fetches a share of a ready plan, followed by an
// empty call (health check), whose time is the cost of gRPC and the machine at
// that moment. The checks are made by threads of low priority, since a trainer
// makes none, but they share the cores of the service. With `round_trips`,
// round trips are measured while nothing but searches runs.
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
  BatchMetadata batch{};  // Steps take their samples from it in turn.
  int32_t jobs = 1;
  int32_t steps = 10;
  // Time of the partition search in OpenJob; 0: partition by rule.
  Duration partition_time{};
  int32_t clients = 16;                        // Threads that fetch.
  std::chrono::milliseconds deadline{30'000};  // Deadline of a fetch.
  // Whether to fetch and check whole plans, too.
  bool verify = true;
  // Run only the caller that measures: it submits steps of one replica, 32 at a
  // time, and while they are planned it fetches shares of the first.
  bool round_trips = false;
  // Returns the service's resident memory in bytes; called after a tenth of the
  // plans and at the end. May be empty.
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
  // Plans (job, step, replica) of which all ranks got a share.
  int64_t plans = 0;
  int64_t best_so_far = 0;
  // Count of errors: shares of one plan or replicas of one step that do not
  // agree, a second answer that differs from the first, or a plan that the
  // check refuses.
  int64_t wrong = 0;
  int64_t lost = 0;              // Plans that not every rank got.
  int64_t tasks = 0;             // Number of tasks of the largest plan.
  int64_t share_bytes = 0;       // Size of the largest share.
  int32_t partitions_tried = 0;  // For the last job that was opened.
  bool partition_cut_short = false;
  int64_t memory_at_tenth = 0;  // Bytes; 0: not measured.
  int64_t memory_at_end = 0;
  double seconds = 0;
  Percentiles open{};
  Percentiles first{};  // The first rank's fetch, which waits for the plan.
  // Fetches of ready plans, and empty calls, while searches run.
  Percentiles ready{};
  Percentiles bare{};
  // The same two when all is planned.
  Percentiles quiet{};
  Percentiles quiet_bare{};
  std::map<std::string, int64_t> errors{};  // Counts, indexed by status name.
  std::vector<std::string> examples{};      // Messages of at most 10 errors.
};

// Runs the load test. Unavailable: the service cannot be reached. Cancelled:
// `stop` was requested.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options,
                                   const std::stop_token& stop);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_LOAD_GENERATOR_LOAD_TEST_H_
