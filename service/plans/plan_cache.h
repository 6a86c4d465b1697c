// A cache of finished plans, keyed by what they were made for. An equal step
// (the same shapes in the same microbatches, job and costs) gets its plan
// again. A similar step (as many sub-microbatches of each module in each
// microbatch) reuses the order, which is often better than one that a short
// search finds.
//
// Any other step of the same job goes on from what its latest plans taught
// (planner/step/carried_step.h).
//
// Keeps the most recently used plans, up to a number of bytes. All methods may
// be called from any thread; plans are shared, not copied.
#ifndef PIPELOOM_SERVICE_PLANS_PLAN_CACHE_H_
#define PIPELOOM_SERVICE_PLANS_PLAN_CACHE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "base/units.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/carried_step.h"
#include "ir/plan/microbatches.h"
#include "planner/step/plan_step.h"

namespace pipeloom::service {

// The fingerprints of the step that a plan is made for, apart from its number
// and replica.
struct PlanCacheKey {
  Fingerprint job{};
  Fingerprint exact{};
  Fingerprint similar{};
};
// Makes a key. `job` is the fingerprint of everything that similar plans have
// in common (job, partition, costs, seed); `exactly` is that of everything else
// the plan depends on. O(sub-microbatches).
PlanCacheKey MakePlanCacheKey(const Fingerprint& job,
                              const Fingerprint& exactly,
                              const Microbatches& microbatches);

// Counts of look-ups and evictions, and the present size.
struct PlanCacheCounters {
  int64_t hits = 0;
  int64_t similar_hits = 0;
  int64_t misses = 0;  // Neither an equal nor a similar plan.
  int64_t evictions = 0;
  int64_t plans = 0;
  Bytes size{};
};

// How far the search of a plan went.
enum class SearchEnd {
  kFull,
  kCutShort,  // A stop was requested before it had used up its budget.
};

// The cache. Thread-safe.
class PlanCache {
 public:
  // Makes an empty cache. `capacity` is the most bytes that the kept plans take
  // together.
  explicit PlanCache(Bytes capacity) : capacity_(capacity) {}

  // The result of a look-up.
  struct Found {
    std::shared_ptr<const planner::PlanResult>
        equal{};  // Null if there is none.
    // The plan of a search for an equal step that was cut short: the answer for
    // whoever has no time to search. Null if there is none, or if `equal` is
    // set.
    std::shared_ptr<const planner::PlanResult> cut_short{};
    // Null if there is none, or if `equal` is set.
    std::shared_ptr<const planner::PlanResult> similar{};
    // PlanResult::carried of the job's latest plans; empty if `equal` is set.
    std::vector<std::shared_ptr<const CarriedStep>> carried{};
  };
  // Looks up a plan. `similar` is, among the latest plans with this structure,
  // the one whose shapes are nearest; plans of searches that were cut short are
  // neither similar nor carried. O(log plans + sub-microbatches).
  Found Find(const PlanCacheKey& key, const Microbatches& microbatches);

  // Adds a plan. Of two plans of equal key, that of a full search stays, and if
  // both are or neither is, the one with the shorter step. A plan that is
  // larger than the capacity is not kept.
  void Insert(const PlanCacheKey& key,
              std::shared_ptr<const planner::PlanResult> plan,
              SearchEnd end = SearchEnd::kFull);

  PlanCacheCounters counters() const;

 private:
  struct Entry {
    PlanCacheKey key{};
    std::shared_ptr<const planner::PlanResult> plan{};
    Bytes size{};
    SearchEnd end = SearchEnd::kFull;
  };
  using Entries = std::list<Entry>;  // The most recently used one is first.

  void Drop(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Bytes capacity_;
  mutable Mutex mutex_{};
  Entries entries_ ABSL_GUARDED_BY(mutex_){};
  std::map<Fingerprint, Entries::iterator> exact_ ABSL_GUARDED_BY(mutex_){};
  std::multimap<Fingerprint, Entries::iterator> similar_
      ABSL_GUARDED_BY(mutex_){};
  PlanCacheCounters counters_ ABSL_GUARDED_BY(mutex_){};
};

// Returns roughly how many bytes a plan takes in memory.
Bytes SizeOf(const planner::PlanResult& result);

// Tries the orders of `similar`, whose plan must have the same structure, on
// the tasks of `plan`. If the result is a legal plan that fits in memory and
// ends earlier, by the links of `plan`, replaces `plan` and returns true.
// O(tasks + edges log edges).
bool ImproveFromSimilar(const planner::PlanResult& similar,
                        planner::PlanResult* plan);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_PLANS_PLAN_CACHE_H_
