// Control messages between the processes of a run; tensors take another way.
// They say where a rank is, that it is alive, that a step counts, or that a
// rank has failed. There is one connection between each two ranks, served by a
// thread of the mesh.
//
//     rank 0 ---- rank 1        heartbeats, arrivals, failures, byte strings
//        \        /
//          rank 2               tensors take another way (runtime/transport.h)
//
// Failure. A rank is lost when its connection closes without a goodbye, or
// when nothing was heard from it for `failure_timeout` / 2. A rank that sees
// this, or fails itself, tells all others; every rank hears of it within the
// timeout, with the place of the rank at fault. It is also a failure when all
// ranks wait for each other and none advances for `failure_timeout` / 2.
//
// Commit. Each rank tells all others when it arrives at its optimizer step, and
// the step counts for a rank that has heard from all. When a rank is lost at
// that point, the others first exchange what they know: if the step counts for
// one of them, it counts for all. A rank that was itself stopped for so long
// that the others gave it up takes part in no further commit.
//
// Threads: any, unless said otherwise.
#ifndef PIPELOOM_RUNTIME_PROCESS_CONTROL_MESH_H_
#define PIPELOOM_RUNTIME_PROCESS_CONTROL_MESH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "runtime/commit_point.h"
#include "runtime/process/position_board.h"
#include "runtime/process/tcp_socket.h"
#include "runtime/rank_clock.h"
#include "runtime/rank_progress.h"

namespace pipeloom::runtime {

// One rank's end of all its connections; see the top of the file.
class ControlMesh final : public CommitGate {
 public:
  struct Options {
    int32_t rank = 0;
    int32_t size = 1;
    bool single_host = true;  // Whether all ranks are on this host.
    // See RunOptions.
    WallDuration failure_timeout = std::chrono::seconds(5);
  };
  struct Callbacks {
    // Called once, on the mesh's thread, when the run has failed, here or
    // elsewhere. Must not block. `arrived`: this rank has arrived at the commit
    // under way, so the step may still count.
    std::function<void(const absl::Status&, bool arrived)> on_failure{};
    // Called once, on the mesh's thread, when this process still runs a quarter
    // of the timeout after the failure, because something hangs that ignores
    // the stop.
    std::function<void(const absl::Status&)> on_stuck{};
    // Returns in words where a rank with this progress is. Must not call the
    // mesh.
    std::function<std::string(int32_t rank, const RankProgress& progress)>
        describe{};
  };

  // Returns a mesh that listens at address().
  static absl::StatusOr<std::unique_ptr<ControlMesh>> Create(
      const Options& options);
  // After a failure, gives the others a moment to hear of it.
  ~ControlMesh() override;

  const std::string& address() const { return address_; }
  // Connects this rank to every other, and begins to watch them. `addresses` is
  // indexed by rank. Call once, before everything below. Errors:
  // DeadlineExceeded, Unavailable.
  absl::Status Connect(absl::Span<const std::string> addresses,
                       WallTime deadline);
  // Sets the callbacks, before or after Connect; none is called before Connect.
  // When this returns, the previous callbacks are not called any more.
  void SetCallbacks(Callbacks callbacks);

  int32_t rank() const { return options_.rank; }
  int32_t size() const { return options_.size; }
  // Returns this rank's progress, which the other ranks see.
  RankProgress* progress() { return board_->progress(); }

  // Send and receive a byte string under a topic, a number that both sides
  // choose and use once. Receive blocks until the string is there; it returns
  // DeadlineExceeded or the run's failure.
  void Send(int32_t to, uint64_t topic, std::string bytes);
  absl::StatusOr<std::string> Receive(int32_t from, uint64_t topic,
                                      WallTime deadline);
  // Returns rank 0's bytes, on all ranks.
  absl::StatusOr<std::string> Broadcast(uint64_t topic, std::string bytes,
                                        WallTime deadline);
  // Returns the bytes of all ranks, indexed by rank, on rank 0; an empty vector
  // on all others.
  absl::StatusOr<std::vector<std::string>> Gather(uint64_t topic,
                                                  std::string bytes,
                                                  WallTime deadline);

  // Begins the commit of the next step. Every rank calls it before each step,
  // from the thread that calls Arrive and Wait.
  void BeginCommit();
  void Arrive() override;
  absl::Status Wait(WallTime deadline) override;

  // Tells all ranks that the run has failed. Only the first reason counts.
  void Fail(const absl::Status& reason);
  // Returns why the run has failed, or OK.
  absl::Status failure() const;
  // Waits until the run fails or the deadline has passed. Returns the failure,
  // or OK if there is none.
  absl::Status AwaitFailure(WallTime deadline) const;

  // Ends a run that has not failed: says goodbye to all ranks and waits for
  // theirs.
  absl::Status Close(WallTime deadline);

  // For tests: after this call nothing is heard or said, as if the cable were
  // cut.
  void Cut() { cut_ = true; }

 private:
  enum class Kind : uint8_t { kBeat, kBytes, kArrived, kFailed, kGoodbye };
  struct Peer {
    Socket socket{};
    std::string in{};
    std::string out{};
    WallTime heard{};
    RankProgress progress{};  // As its heartbeats say.
    std::unique_ptr<PositionBoard> board{};
    int64_t arrived = 0;  // Number of the last commit that it arrived at.
    bool said_goodbye = false;
    bool gone = false;
    // After a failure: number of the last commit that counts for it.
    std::optional<int64_t> verdict{};
  };

  explicit ControlMesh(const Options& options) : options_(options) {}

  static absl::StatusOr<Socket> ConnectPeer(int32_t peer,
                                            const std::string& address,
                                            WallTime deadline);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake();
  void Queue(int32_t to, Kind kind, absl::string_view payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueueAll(Kind kind, absl::string_view payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadPeer(int32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Handle(int32_t from, Kind kind, absl::string_view payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(int32_t rank, const std::string& cause)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const absl::Status& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckSilence(WallTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckStall(WallTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Beat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Decide(WallTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Describe(int32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Options options_;
  std::string address_{};
  Socket listener_{};
  Socket wake_read_{};
  Socket wake_write_{};
  std::unique_ptr<PositionBoard> board_{};
  std::atomic<bool> cut_{false};

  mutable Mutex mutex_{};
  mutable CondVar changed_{};
  Callbacks callbacks_ ABSL_GUARDED_BY(mutex_){};
  // Indexed by rank; this rank's is empty.
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_){};
  std::map<std::tuple<int32_t, uint64_t>, std::string> received_
      ABSL_GUARDED_BY(mutex_){};
  // Number of the commit under way, and whether this rank has arrived at it.
  int64_t commit_ ABSL_GUARDED_BY(mutex_) = 0;
  bool arrived_ ABSL_GUARDED_BY(mutex_) = false;
  // Whether it counts, once decided.
  std::optional<bool> commits_ ABSL_GUARDED_BY(mutex_){};
  // Number of the last commit that counts.
  int64_t last_commit_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_){};
  WallTime failed_at_ ABSL_GUARDED_BY(mutex_){};
  bool told_failure_ ABSL_GUARDED_BY(mutex_) = false;
  bool told_stuck_ ABSL_GUARDED_BY(mutex_) = false;
  WallTime stalled_since_ ABSL_GUARDED_BY(mutex_){};
  uint64_t stalled_at_ ABSL_GUARDED_BY(mutex_) = 0;
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;  // A callback is running.
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  WallTime ending_at_ ABSL_GUARDED_BY(mutex_){};
  std::thread thread_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_CONTROL_MESH_H_
