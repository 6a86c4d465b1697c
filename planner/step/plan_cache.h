// Plans that were made, by what they were made for. An equal step (the same
// shapes in the same microbatches, job and costs) gets its plan again; a
// similar one (as many sub-microbatches of each module in each microbatch)
// lends its order, which often is better than what a short search finds.
//
// Keeps the plans used last, up to a number of bytes. All methods may be
// called from any thread; plans are shared, not copied.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_CACHE_H_
#define PIPELOOM_PLANNER_STEP_PLAN_CACHE_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "base/fingerprint.h"
#include "base/units.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/microbatches.h"
#include "planner/step/plan_step.h"

namespace pipeloom::planner {

// What a plan is made for, apart from the step and replica.
struct PlanCacheKey {
  Fingerprint exact{};
  Fingerprint similar{};
};
// `job`: of everything that similar plans have in common: job, partition,
// costs, seed; `exactly`: of what else the plan depends on.
// O(sub-microbatches).
PlanCacheKey MakePlanCacheKey(const Fingerprint& job,
                              const Fingerprint& exactly,
                              const Microbatches& microbatches);

struct PlanCacheCounters {
  int64_t hits = 0;
  int64_t similar_hits = 0;
  int64_t misses = 0;  // Neither.
  int64_t evictions = 0;
  int64_t plans = 0;
  Bytes size{};
};

class PlanCache {
 public:
  explicit PlanCache(Bytes capacity) : capacity_(capacity) {}

  struct Found {
    std::shared_ptr<const PlanResult> equal{};    // Or null.
    std::shared_ptr<const PlanResult> similar{};  // Or null; if not `equal`.
  };
  // `similar` is the one of the latest plans with this structure whose shapes
  // are nearest. O(log plans + sub-microbatches).
  Found Find(const PlanCacheKey& key, const Microbatches& microbatches);

  // Replaces a plan of equal key. One that is larger than the capacity is not
  // kept.
  void Insert(const PlanCacheKey& key, std::shared_ptr<const PlanResult> plan);

  PlanCacheCounters counters() const;

 private:
  struct Entry {
    PlanCacheKey key{};
    std::shared_ptr<const PlanResult> plan{};
    Bytes size{};
  };
  using Entries = std::list<Entry>;  // The one used last in front.

  void Drop(Entries::iterator entry);

  mutable std::mutex mutex_{};
  Bytes capacity_{};
  Entries entries_{};
  std::map<Fingerprint, Entries::iterator> exact_{};
  std::multimap<Fingerprint, Entries::iterator> similar_{};
  PlanCacheCounters counters_{};
};

// What a plan takes in memory, roughly.
Bytes SizeOf(const PlanResult& result);

// The orders of `similar` on the tasks of `plan`, which has the same structure,
// if that is a legal plan that fits and ends earlier: then `plan` is replaced
// and true returned. O(tasks + edges log edges).
// `network`: how the job's transfers share links (StageCostModel::Network of
// the replica), so that both are judged alike.
bool ImproveFromSimilar(const PlanResult& similar, PlanResult* plan,
                        const emulator::EmulateOptions& network = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_CACHE_H_
