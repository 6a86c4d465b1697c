// The plans of a running `pipeloom run --service`: a process of its own
// (pipeloom-service) holds the connection, so that nothing of it can disturb
// the run.
//
//   run, rank 0  --batches-->  pipeloom-service follow  --gRPC-->  the planner
//                <--plans----
//
// The process tries again by itself, for ever, and opens the job again at a
// planner that does not know it. Whatever happens to it or to the planner, Wait
// returns in time.
#ifndef PIPELOOM_CLI_RUN_PLAN_FOLLOWER_H_
#define PIPELOOM_CLI_RUN_PLAN_FOLLOWER_H_

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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

class PlanFollower {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts the process, which opens `job` with `partition`. Does not ask
  // whether the planner is there. An error: no pipeloom-service, or one of
  // another build.
  static absl::StatusOr<std::unique_ptr<PlanFollower>> Start(
      const FollowOptions& options, const JobSpec& job,
      const Partition& partition);
  // Ends the process.
  ~PlanFollower();
  PlanFollower(const PlanFollower&) = delete;
  PlanFollower& operator=(const PlanFollower&) = delete;

  // Has a step planned for replica 0, with its microbatches as they are.
  void Submit(int64_t step, const partition::PackedStep& packed);
  // The bytes of the step's plan once they are there; waits for them as long
  // as the options say, counted from when the planner fell silent if it has; a
  // planner that stays silent costs that once in ten times as long.
  // Forgets the step and those before it.
  std::optional<std::string> Wait(int64_t step);

 private:
  PlanFollower(pid_t process, int socket, std::chrono::nanoseconds wait);
  void Send(char kind, int64_t step, absl::string_view payload);
  void Read();

  const pid_t process_;
  const int socket_;
  const std::chrono::nanoseconds wait_;
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::map<int64_t, std::string> plans_{};
  std::optional<Clock::time_point> silent_since_{};
  bool ended_ = false;
  std::thread reader_{};
};

// Frames between the two: kind, step, size, payload. False: the other is gone.
bool WriteFrame(int fd, char kind, int64_t step, absl::string_view payload);
bool ReadFrame(int fd, char* kind, int64_t* step, std::string* payload);

// What a 'J' frame holds: the partition, a line a stage, and the job's message.
std::string FollowedJob(const JobSpec& job, const Partition& partition);
// What an 'S' frame holds: microbatch by sample, and the samples' message.
std::string FollowedBatch(const partition::PackedStep& packed);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_RUN_PLAN_FOLLOWER_H_
