// The plans of a running `pipeloom run --service`. A separate process
// (pipeloom-service) holds the connection, so that it cannot disturb the run.
//
//   run, rank 0  --batches-->  pipeloom-service follow  --gRPC-->  the planner
//                <--plans----
//
// That process retries for ever, and opens the job again at a planner that does
// not know it. Whatever happens to it or to the planner, Wait returns in time.
#ifndef PIPELOOM_CLI_RUN_PLAN_FOLLOWER_H_
#define PIPELOOM_CLI_RUN_PLAN_FOLLOWER_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::cli {

struct FollowOptions {
  std::string target{};  // Address of the planner.
  std::string token_file{};
  std::string tls_ca{};
  std::chrono::nanoseconds wait = std::chrono::seconds(1);
};

// The run's side of the connection to that process.
class PlanFollower {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the process, which opens `job` with `partition`. Does not check
  // whether the planner can be reached. An error: there is no pipeloom-service,
  // or it is of another build.
  static absl::StatusOr<std::unique_ptr<PlanFollower>> Start(
      const FollowOptions& options, const JobSpec& job,
      const Partition& partition);
  // Ends the process.
  ~PlanFollower();
  PlanFollower(const PlanFollower&) = delete;
  PlanFollower& operator=(const PlanFollower&) = delete;

  // Submits a step to be planned for replica 0, with the given microbatches.
  void Submit(int64_t step, const partition::PackedStep& packed);
  // Waits for the bytes of the step's plan, then forgets this and all earlier
  // steps. Waits for at most FollowOptions::wait, counted from the time when
  // the planner fell silent if it has; a planner that stays silent costs one
  // such wait in ten times that duration.
  std::optional<std::string> Wait(int64_t step);

 private:
  PlanFollower(pid_t process, int socket, std::chrono::nanoseconds wait);
  void Send(char kind, int64_t step, absl::string_view payload);
  void Read();

  const pid_t process_;
  const int socket_;
  const std::chrono::nanoseconds wait_;
  Mutex mutex_{};
  CondVar changed_{};
  std::map<int64_t, std::string> plans_ ABSL_GUARDED_BY(mutex_){};
  std::optional<Clock::time_point> silent_since_ ABSL_GUARDED_BY(mutex_){};
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_{};
};

// Write or read a frame between the two processes: kind, step, size, payload.
// Return false if the other process is gone.
bool WriteFrame(int fd, char kind, int64_t step, absl::string_view payload);
bool ReadFrame(int fd, char* kind, int64_t* step, std::string* payload);

// Returns the payload of a 'J' frame: the partition, one line per stage, and
// the job's message.
std::string FollowedJob(const JobSpec& job, const Partition& partition);
// Returns the payload of an 'S' frame: the microbatch of each sample, and the
// samples' message.
std::string FollowedBatch(const partition::PackedStep& packed);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_PLAN_FOLLOWER_H_
