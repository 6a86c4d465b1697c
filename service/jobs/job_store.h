// The state folder of a core: which jobs it holds, and their restoration. The
// files of a job are those of service/jobs/job_files.h.
//
// Nothing that cannot be used is deleted. What cannot be read ends the start
// with its path and the reason. What was read and is damaged, or is not where
// its content says, is logged and kept: a job's folder in its place, a single
// batch or plan in damaged/.
#ifndef PIPELOOM_SERVICE_JOBS_JOB_STORE_H_
#define PIPELOOM_SERVICE_JOBS_JOB_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "pipeloom/v1/service_state.pb.h"
#include "service/jobs/job_files.h"
#include "service/os/log.h"
#include "service/os/metrics.h"
#include "service/os/state_dir.h"

namespace pipeloom::service {

class JobStore {
 public:
  // Opens the state folder. An empty path means no folder. REQUIRES: `log` and
  // `metrics` outlive the store.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& path,
                                                        Log* log,
                                                        Metrics* metrics);

  bool enabled() const { return dir_ != nullptr; }
  // Counts and logs an error in writing or removing `what`, unless there is
  // none or the job was closed.
  void NoteError(absl::string_view what, const absl::Status& status) const;

  // Returns the files of a job that is opened. Files that an earlier job of
  // this id left behind, because they were damaged, are moved to damaged/.
  // Unavailable: they cannot be moved.
  absl::StatusOr<std::shared_ptr<JobFiles>> Begin(const std::string& job) const;
  // Returns files that are not on disk, so that every write fails.
  std::shared_ptr<JobFiles> NoFiles(const std::string& job) const;
  // Deletes what JobFiles::Close returned.
  absl::Status Discard(const std::string& removed) const;

  struct PlanName {
    int64_t step = 0;
    int32_t replica = 0;
  };
  struct Restored {
    v1::StoredJob job{};
    int64_t attempt = 0;  // The newest one; files of others are removed.
    std::shared_ptr<JobFiles> files{};
    // Ordered by step, then replica.
    std::vector<v1::StoredBatch> batches{};
    std::vector<PlanName> plans{};
  };
  // Returns all jobs, ordered by id. Unavailable: a folder, a job or a batch
  // cannot be read, with its path and the reason.
  absl::StatusOr<std::vector<Restored>> Load() const;

 private:
  JobStore(Log* log, Metrics* metrics) : log_(log), metrics_(metrics) {}

  // Reads a job's folder. Returns false if it holds no job that can be served.
  absl::StatusOr<bool> LoadJob(const std::string& id, Restored* restored) const;
  absl::Status LoadBatches(const std::string& id, Restored* restored) const;
  absl::Status LoadPlanNames(const std::string& id, Restored* restored) const;
  // Logs why a file is not used and moves it to damaged/.
  absl::Status Keep(const std::string& name, const std::string& reason) const;

  std::unique_ptr<StateDir> dir_{};
  Log* log_;
  Metrics* metrics_;
};

// Returns whether `id` may be a job's id, which also names a folder.
bool IsJobId(const std::string& id);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_JOB_STORE_H_
