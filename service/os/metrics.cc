#include "service/os/metrics.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/numeric.h"

namespace pipeloom::service {
namespace {

void AppendHead(absl::string_view name, absl::string_view type,
                absl::string_view help, std::string* out) {
  absl::StrAppend(out, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type,
                  "\n");
}

}  // namespace

int64_t LatencyHistogram::Bound(int bucket) {
  static constexpr int64_t kSteps[] = {10, 22, 46};
  int64_t bound = kSteps[bucket % 3];
  for (int decade = 0; decade < bucket / 3; ++decade) bound *= 10;
  return bound * 1000;
}

void LatencyHistogram::Add(int64_t nanoseconds) {
  int bucket = 0;
  while (bucket < kBuckets && nanoseconds > Bound(bucket)) ++bucket;
  buckets_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  count_.fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(nanoseconds, std::memory_order_relaxed);
}

void LatencyHistogram::AppendText(absl::string_view name,
                                  absl::string_view help,
                                  std::string* out) const {
  AppendHead(name, "histogram", help, out);
  int64_t sum = 0;
  for (int b = 0; b < kBuckets; ++b) {
    sum += buckets_[static_cast<size_t>(b)].load(std::memory_order_relaxed);
    absl::StrAppendFormat(out, "%s_bucket{le=\"%g\"} %d\n", name,
                          Real(Bound(b)) / 1e9, sum);
  }
  sum += buckets_[kBuckets].load(std::memory_order_relaxed);
  absl::StrAppendFormat(out, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %.9f\n", name,
                        sum, name, Real(sum_.load()) / 1e9);
  absl::StrAppendFormat(out, "%s_count %d\n", name, sum);
}

void Metrics::CountCall(absl::string_view method, absl::string_view status) {
  const std::string labels =
      absl::StrCat("{method=\"", method, "\",status=\"", status, "\"}");
  const MutexLock lock(&mutex_);
  ++calls_[labels];
}

std::string Metrics::Text(const Gauges& gauges) const {
  std::string out;
  const struct {
    const char* name;
    const char* type;
    const char* help;
    int64_t value;
  } rows[] = {
      {"plans_total", "counter", "Plans made.", plans},
      {"plans_best_so_far_total", "counter",
       "Plans whose search was cut short.", plans_best_so_far},
      {"searches_shortened_total", "counter",
       "Searches that got less time than their job asks for, as its plans came "
       "too late.",
       searches_shortened},
      {"plans_failed_total", "counter", "Batches without a plan.",
       plans_failed},
      {"plans_refused_total", "counter",
       "Plans that the independent check refused.", plans_refused},
      {"plans_restored_total", "counter", "Plans read from the state folder.",
       plans_restored},
      {"evaluations_total", "counter", "Schedules tried.", evaluations},
      {"cache_hits_total", "counter", "Equal steps met again.",
       gauges.cache_hits},
      {"cache_similar_total", "counter", "Similar steps met.",
       gauges.cache_similar_hits},
      {"cache_misses_total", "counter", "Steps unlike any before.",
       gauges.cache_misses},
      {"from_similar_total", "counter",
       "Plans whose order came from a similar step.", from_similar},
      {"fallbacks_total", "counter",
       "Waits that ended at their deadline without a plan.", waits_timed_out},
      {"hurried_total", "counter", "Plans asked for before they were ready.",
       gauges.hurried},
      {"state_errors_total", "counter",
       "Writes to the state folder that failed.", state_errors},
      {"jobs", "gauge", "Jobs open.", gauges.jobs},
      {"queued", "gauge", "Plans that wait.", gauges.queued},
      {"running", "gauge", "Plans being made.", gauges.running},
      {"waiting_calls", "gauge", "Calls that wait for a plan.", gauges.waiting},
      {"plan_bytes", "gauge", "Memory of the plans that are kept.",
       gauges.plan_bytes},
      {"cache_bytes", "gauge", "Memory of the plan cache.", gauges.cache_bytes},
  };
  for (const auto& row : rows) {
    const std::string name = absl::StrCat("pipeloom_", row.name);
    AppendHead(name, row.type, row.help, &out);
    absl::StrAppend(&out, name, " ", row.value, "\n");
  }
  AppendHead("pipeloom_gap_ratio_sum", "counter",
             "Gap to the lower bound, added up over plans.", &out);
  absl::StrAppendFormat(&out, "pipeloom_gap_ratio_sum %g\n",
                        Real(gap_ppm_sum) / 1e6);
  queued.AppendText("pipeloom_queued_seconds",
                    "From submission to the begin of planning.", &out);
  search.AppendText("pipeloom_search_seconds", "Time of the search.", &out);
  latency.AppendText("pipeloom_plan_latency_seconds",
                     "From submission to the plan being ready.", &out);
  share.AppendText("pipeloom_share_seconds",
                   "From GetRankPlan to its share, with the wait for the plan.",
                   &out);
  AppendHead("pipeloom_calls_total", "counter", "Calls by method and status.",
             &out);
  const MutexLock lock(&mutex_);
  for (const auto& [labels, count] : calls_) {
    absl::StrAppend(&out, "pipeloom_calls_total", labels, " ", count, "\n");
  }
  return out;
}

}  // namespace pipeloom::service
