// The service's counters, with their Prometheus text. Threads: any. Adding
// costs an atomic addition or two.
#ifndef PIPELOOM_SERVICE_OS_METRICS_H_
#define PIPELOOM_SERVICE_OS_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace pipeloom::service {

// A histogram with buckets from 10 us to 100 s, three per decade.
class LatencyHistogram {
 public:
  void Add(int64_t nanoseconds);
  // Appends the lines of a Prometheus histogram in seconds.
  void AppendText(absl::string_view name, absl::string_view help,
                  std::string* out) const;
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr int kBuckets = 22;
  static int64_t Bound(int bucket);  // Inclusive upper bound in ns.
  std::array<std::atomic<int64_t>, kBuckets + 1> buckets_{};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> sum_{0};  // ns.
};

struct Metrics {
  std::atomic<int64_t> plans{0};
  std::atomic<int64_t> plans_best_so_far{0};
  // Searches that got less time than the job asks for.
  std::atomic<int64_t> searches_shortened{0};
  std::atomic<int64_t> plans_failed{0};
  std::atomic<int64_t> plans_refused{0};  // Refused by the checker: bugs.
  std::atomic<int64_t> plans_restored{0};
  std::atomic<int64_t> from_similar{0};
  std::atomic<int64_t> evaluations{0};
  std::atomic<int64_t> state_errors{0};
  std::atomic<int64_t> waits_timed_out{0};
  // Sum over plans of the gap to the lower bound, in millionths.
  std::atomic<int64_t> gap_ppm_sum{0};
  LatencyHistogram queued{};  // From submission to begin.
  LatencyHistogram search{};
  LatencyHistogram latency{};  // From submission to the plan being ready.
  LatencyHistogram share{};    // GetRankPlan, with the wait for the plan.

  // Counts a call by method and status name.
  void CountCall(absl::string_view method, absl::string_view status);

  // Values that are read when the text is asked for.
  struct Gauges {
    int64_t jobs = 0;
    int64_t queued = 0;
    int64_t running = 0;
    int64_t waiting = 0;
    int64_t plan_bytes = 0;
    int64_t cache_hits = 0;
    int64_t cache_similar_hits = 0;
    int64_t cache_misses = 0;
    int64_t cache_bytes = 0;
    int64_t hurried = 0;
  };
  std::string Text(const Gauges& gauges) const;

 private:
  mutable Mutex mutex_{};
  std::map<std::string, int64_t> calls_
      ABSL_GUARDED_BY(mutex_){};  // Indexed by the labels as text.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_METRICS_H_
