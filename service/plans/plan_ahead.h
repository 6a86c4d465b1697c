// A queue of coming steps of several jobs that decides which plan is made next,
// worked off by as many threads as the caller lends it. It has no threads and
// no clock of its own.
//
//   Submit ──> queue by job ──> RunNext, on each lent thread ──> work(stop)
//                  Hurry: to the front, with `stop` requested
//
// Jobs get fair shares: the next job is the one that has been given the least
// search time so far (ties by name), however long its queue is. A job that
// comes back from idling starts level with the others. Within a job, plans that
// somebody waits for go first, so that the plans of steps that are over do not
// delay a trainer that has gone on without them. Otherwise the earliest step
// goes first, then the smallest replica.
//
// Work of a job that is like running work of the job waits for it, so that what
// comes of one search serves all (Work::like).
//
// All methods may be called from any thread; `work` is called without a lock.
#ifndef PIPELOOM_SERVICE_PLANS_PLAN_AHEAD_H_
#define PIPELOOM_SERVICE_PLANS_PLAN_AHEAD_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "base/units.h"

namespace pipeloom::service {

// Names one plan; sorted by job, step, replica and attempt of the training.
struct PlanKey {
  std::string job{};
  int64_t step = 0;
  int32_t replica = 0;
  int64_t attempt = 0;
  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

// Numbers of plans since the queue was made.
struct PlanAheadCounters {
  int64_t submitted = 0;
  int64_t finished = 0;
  int64_t hurried = 0;
  int64_t cancelled = 0;  // Dropped before their work had begun.
};

// The queue of coming plans. Thread-safe.
class PlanAhead {
 public:
  // One plan to make.
  struct Work {
    // Makes the plan and hands it on. A request of `stop` asks for the best so
    // far. Must not throw.
    std::function<void(std::stop_token stop)> run{};
    // Called instead of `run` when the work is cancelled; may be empty.
    std::function<void()> cancelled{};
    // Search time that the job is charged with; at least 1 ns.
    Duration cost{1};
    // Fingerprint of the search. Works of a job with an equal one run one after
    // another, unless they are set free (SetFree). Zeros: unlike any.
    Fingerprint like{};
  };

  // Kind of work that a lent thread takes.
  enum class Lane {
    kAll,
    kHurried,  // Hurried work only, so that it never waits behind a search.
  };

  // Queues the work; after what runs, if work of the key does. Returns false
  // and does nothing if the key is queued already, or if the queue is closed.
  bool Submit(const PlanKey& key, Work work);

  // Asks for the best plan as soon as possible; if the key waits for work that
  // is like it, of that work. Without effect on a key that is neither queued
  // nor running.
  void Hurry(const PlanKey& key);

  // Which of the works that wait for a running one may go on.
  enum class Waiters {
    kAll,
    kHurried,
  };
  // Lets works that wait for the running work of `key`, as they are like it,
  // run from now on: its result is known to them, so that they need no search.
  void SetFree(const PlanKey& key, Waiters which);

  // Notes that somebody waits for the plan, or (Leave) has stopped waiting:
  // calls come in pairs. The key need not be queued.
  void Await(const PlanKey& key);
  void Leave(const PlanKey& key);

  // Charges the job with `cost` for the running work of `key`, instead of
  // Work::cost: as it needs less search, or none.
  void Charge(const PlanKey& key, Duration cost);

  // Asks a search of another job to stop, if the key is queued and nothing of
  // its job runs: that of the job with the most running work, then the one that
  // was begun first. The next thread takes work of the key's job.
  void MakeRoomFor(const PlanKey& key);

  // Returns how many works of the key's job have begun so far, if the key is
  // queued; it may begin at 0 again after the job was idle.
  std::optional<int64_t> BegunBefore(const PlanKey& key) const;

  // Drops the queued work of a job and asks its running work to stop.
  void Cancel(const std::string& job);

  // Waits for work and does one piece. Returns false if a stop was requested,
  // or if the queue is closed and nothing is left for this lane.
  bool RunNext(Lane lane, const std::stop_token& stop);

  // Takes no more work; work that is already queued is still done.
  void Close();

  // Numbers of queued plans of all jobs, of queued plans of one job, and of
  // running plans.
  int32_t queued() const;
  int32_t queued(const std::string& job) const;
  int32_t running() const;
  // Returns how many plans run, or could if there were threads enough: those
  // that wait for a like one do not count.
  int32_t ready() const;
  PlanAheadCounters counters() const;

 private:
  struct Job {
    std::map<PlanKey, Work> queue{};
    int64_t charged = 0;  // Search time given so far, in ns.
    int32_t running = 0;
    int64_t begun = 0;  // Works that have begun.
  };
  // Work that waits for running work that is like it.
  struct Waiting {
    Work work{};
    bool hurried = false;
  };
  struct Running {
    std::stop_source stop{};
    int64_t begun = 0;           // Its number in the order of beginnings.
    bool hurried = false;        // Whether it was stopped from the beginning.
    std::optional<Work> next{};  // Queued when this ends; not in queued().
    bool next_hurried = false;
    Fingerprint like{};
    Duration cost{};
    std::map<PlanKey, Waiting> waiting{};  // Queued when this ends.
  };
  struct Taken {
    PlanKey key{};
    Work work{};
  };

  bool HasWork(Lane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues the work, or lets it wait for running work that is like it.
  void Place(const PlanKey& key, Waiting placed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns running work of the job that is like it, or null.
  Running* RunningLike(const std::string& job, const Fingerprint& like)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the running work for which the key waits, or null.
  Running* AwaitedBy(const PlanKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the work of a key: lets what is like it wait.
  Running& Begin(const PlanKey& key, const Work& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Taken Take(Lane lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Taken TakeOut(const PlanKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finished(const PlanKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const PlanKey& NextOf(const std::string& name, const Job& job) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_{};
  CondVar changed_{};  // Work was queued or hurried, or all is to stop.
  std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_){};
  std::set<PlanKey> hurried_
      ABSL_GUARDED_BY(mutex_){};  // Hurried keys that are still queued.
  // Number of callers that wait for each key.
  std::map<PlanKey, int32_t> awaited_ ABSL_GUARDED_BY(mutex_){};
  std::map<PlanKey, Running> running_ ABSL_GUARDED_BY(mutex_){};
  int64_t next_begun_ ABSL_GUARDED_BY(mutex_) = 0;
  // The job for which a search was asked to stop; empty: none.
  std::string room_for_ ABSL_GUARDED_BY(mutex_){};
  // The largest charge, in ns, that a job had when it was served.
  int64_t floor_ ABSL_GUARDED_BY(mutex_) = 0;
  // Numbers of works in the jobs' queues, and of those that wait for like ones.
  int32_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  PlanAheadCounters counters_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_PLANS_PLAN_AHEAD_H_
