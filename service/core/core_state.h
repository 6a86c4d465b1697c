// The state folder: jobs, batches and plans on disk, and their restoration.
//
//   jobs/ID/job               StoredJob
//   jobs/ID/batches/STEP.R    StoredBatch; R is a replica, or "all"
//   jobs/ID/plans/STEP.R      StoredPlan
#ifndef PIPELOOM_SERVICE_CORE_CORE_STATE_H_
#define PIPELOOM_SERVICE_CORE_CORE_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "pipeloom/v1/service_state.pb.h"
#include "service/core/learned_costs.h"
#include "service/core/ready_plan.h"
#include "service/core/served_job.h"
#include "service/os/log.h"
#include "service/os/state_dir.h"

namespace pipeloom::service {

// The state folder of one core. Without a folder nothing is kept: every write
// fails with FailedPrecondition, which callers do not log.
class CoreState {
 public:
  // Opens the state folder. An empty path means no folder. REQUIRES: `log`
  // outlives the state.
  static absl::StatusOr<std::unique_ptr<CoreState>> Open(
      const std::string& path, Log* log);

  bool enabled() const { return dir_ != nullptr; }

  absl::Status Save(const v1::StoredJob& job) const;
  absl::Status Save(const v1::StoredBatch& batch) const;
  absl::Status Save(const ReadyPlan& plan) const;
  // Moves a job out of sight, which is quick, and returns the name of its files
  // for Discard, which deletes them.
  std::string RemoveJob(const std::string& job) const;
  void Discard(const std::string& removed) const;
  // Removes a step's batches and the plans of all its replicas.
  void RemoveStep(const std::string& job, int64_t step, int32_t replicas) const;

  struct Restored {
    v1::StoredJob job{};
    std::vector<v1::StoredBatch> batches{};
    std::vector<ReadyPlan> plans{};
  };
  // Returns all jobs, ordered by id; their batches and plans are ordered by
  // step, then replica. Damaged files are left out, deleted and logged.
  std::vector<Restored> Load() const;

 private:
  explicit CoreState(Log* log) : log_(log) {}

  template <typename Message>
  std::optional<Message> ReadMessage(const std::string& name) const;

  std::unique_ptr<StateDir> dir_{};
  Log* log_;
};

// Returns whether `id` may be a job's id, which also names a folder.
bool IsJobId(const std::string& id);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_CORE_STATE_H_
