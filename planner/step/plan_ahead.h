// Which plan is made next: a queue of coming steps of several jobs, worked off
// by as many threads as the caller lends it. It has no threads and no clock of
// its own.
//
//   Submit ──> queue by job ──> RunNext, on each lent thread ──> work(stop)
//                  Hurry: to the front, with `stop` requested
//
// Jobs are fair to each other: the next job is the one that has been given the
// least search time so far (ties by name), whatever the length of its queue. A
// job that comes back from idling starts level with the others. Within a job
// plans that somebody waits for go first, so that a trainer that has gone on
// without plans is not kept from new ones by those of steps that are over; of
// those and of the others the earliest step, then the smallest replica.
//
// All methods may be called from any thread; `work` is called without a lock.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_AHEAD_H_
#define PIPELOOM_PLANNER_STEP_PLAN_AHEAD_H_

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>

#include "base/units.h"

namespace pipeloom::planner {

struct PlanKey {
  std::string job{};
  int64_t step = 0;
  int32_t replica = 0;
  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

struct PlanAheadCounters {
  int64_t submitted = 0;
  int64_t finished = 0;
  int64_t hurried = 0;
  int64_t cancelled = 0;  // Before their work had begun.
};

class PlanAhead {
 public:
  struct Work {
    // Makes the plan and hands it on. A request of `stop` asks for the best so
    // far. Must not throw.
    std::function<void(std::stop_token stop)> run{};
    // Called instead of `run` when the work is cancelled; may be empty.
    std::function<void()> cancelled{};
    // Search time that the job is charged with; at least 1 ns.
    Duration cost{1};
  };

  // How a thread is lent.
  enum class Lane {
    kAll,
    kHurried,  // For hurried work only, so that it never waits for a search.
  };

  // False, and nothing happens: the key is queued or running already, or the
  // queue is closed.
  bool Submit(const PlanKey& key, Work work);

  // Asks for the best plan as soon as possible. Without effect on a key that
  // is neither queued nor running.
  void Hurry(const PlanKey& key);

  // Somebody waits for the plan, and does no longer: calls come in pairs. The
  // key need not be queued.
  void Await(const PlanKey& key);
  void Leave(const PlanKey& key);

  // Drops what is queued of a job and asks what runs to stop.
  void Cancel(const std::string& job);

  // Waits for work and does one piece. False: a stop was requested, or the
  // queue is closed and nothing is left for this lane.
  bool RunNext(Lane lane, const std::stop_token& stop);

  // Takes no more work; what is queued is still done.
  void Close();

  int32_t queued() const;
  int32_t queued(const std::string& job) const;
  int32_t running() const;
  PlanAheadCounters counters() const;

 private:
  struct Job {
    std::map<PlanKey, Work> queue{};
    int64_t charged = 0;  // ns.
    int32_t running = 0;
  };
  struct Taken {
    PlanKey key{};
    Work work{};
  };

  bool HasWork(Lane lane) const;
  Taken Take(Lane lane);
  Taken TakeOut(const PlanKey& key);
  const PlanKey& NextOf(const std::string& name, const Job& job) const;

  mutable std::mutex mutex_{};
  std::condition_variable_any changed_{};
  std::map<std::string, Job> jobs_{};
  std::set<PlanKey> hurried_{};           // Queued ones.
  std::map<PlanKey, int32_t> awaited_{};  // By how many.
  std::map<PlanKey, std::stop_source> running_{};
  int64_t floor_ = 0;  // The charge of the job that was last served.
  int32_t queued_ = 0;
  bool closed_ = false;
  PlanAheadCounters counters_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_AHEAD_H_
