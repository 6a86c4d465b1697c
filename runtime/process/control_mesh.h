// What the processes of a run say to each other besides tensors: where they
// are, that they are alive, that a step counts, that one has failed. One
// connection between each two ranks, served by a thread of the mesh.
//
//     rank 0 ---- rank 1        heartbeats, arrivals, failures, byte strings
//        \        /
//          rank 2               tensors take another way (runtime/transport.h)
//
// Failure. A rank is lost when its connection closes without a goodbye, or
// when nothing was heard of it for `failure_timeout` / 2. Whoever sees that, or
// fails itself, tells all others; every rank hears of it within the timeout,
// with the place of the rank at fault. When all ranks wait for each other and
// none goes on for as long, that is a failure too.
//
// Commit. Each rank tells all when it arrives at its optimizer step, and a
// step counts for a rank that has heard of everyone. When a rank is lost then,
// the others first exchange what they know: if the step counts for one of
// them, it counts for all. A rank that was stopped itself for long enough to be
// given up takes part in no commit any more.
//
// Threads: any, unless said otherwise.
#ifndef PIPELOOM_RUNTIME_PROCESS_CONTROL_MESH_H_
#define PIPELOOM_RUNTIME_PROCESS_CONTROL_MESH_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/commit_point.h"
#include "runtime/process/position_board.h"
#include "runtime/process/tcp_socket.h"
#include "runtime/rank_clock.h"
#include "runtime/rank_progress.h"

namespace pipeloom::runtime {

class ControlMesh final : public CommitGate {
 public:
  struct Options {
    int32_t rank = 0;
    int32_t size = 1;
    bool single_host = true;  // All ranks are on this host.
    // See RunOptions.
    WallDuration failure_timeout = std::chrono::seconds(5);
  };
  struct Callbacks {
    // The run has failed, here or elsewhere. Called once, on the mesh's
    // thread; must not block. `arrived`: at the commit under way, so that what
    // this rank computes may still count.
    std::function<void(const absl::Status&, bool arrived)> on_failure{};
    // This process still runs a quarter of the timeout after that: what hangs
    // does not heed the stop. Called once, on the mesh's thread.
    std::function<void(const absl::Status&)> on_stuck{};
    // In words, where a rank is with `progress`. Must not call the mesh.
    std::function<std::string(int32_t rank, const RankProgress& progress)>
        describe{};
  };

  // Ready to be connected to at address().
  static absl::StatusOr<std::unique_ptr<ControlMesh>> Create(
      const Options& options);
  // After a failure: gives the others a moment to hear of it.
  ~ControlMesh() override;

  const std::string& address() const { return address_; }
  // Connects every rank to every other, and begins to watch them. `addresses`
  // by rank. Once, before everything below. DeadlineExceeded, Unavailable.
  absl::Status Connect(absl::Span<const std::string> addresses,
                       WallTime deadline);
  // Callbacks may be set before and after; none is called before that. Those
  // set before are not called any more when this returns.
  void SetCallbacks(Callbacks callbacks);

  int32_t rank() const { return options_.rank; }
  int32_t size() const { return options_.size; }
  // Where this rank is, for the others.
  RankProgress* progress() { return board_->progress(); }

  // Byte strings, by a number that both sides choose; each once. Receive
  // blocks until it is there: DeadlineExceeded, or the run's failure.
  void Send(int32_t to, uint64_t topic, std::string bytes);
  absl::StatusOr<std::string> Receive(int32_t from, uint64_t topic,
                                      WallTime deadline);
  // Rank 0's bytes, on all ranks.
  absl::StatusOr<std::string> Broadcast(uint64_t topic, std::string bytes,
                                        WallTime deadline);
  // Everyone's, by rank, on rank 0; nothing elsewhere.
  absl::StatusOr<std::vector<std::string>> Gather(uint64_t topic,
                                                  std::string bytes,
                                                  WallTime deadline);

  // The commit of one step after the other: BeginCommit before each, by every
  // rank, from the thread that arrives and waits.
  void BeginCommit();
  void Arrive() override;
  absl::Status Wait(WallTime deadline) override;

  // Tells all ranks that the run has failed. The first reason counts.
  void Fail(const absl::Status& reason);
  // OK, or why the run has failed.
  absl::Status failure() const;
  // Waits for a failure that is on its way; OK when none comes.
  absl::Status AwaitFailure(WallTime deadline) const;

  // Says goodbye to all and waits for theirs; the end of a run that went well.
  absl::Status Close(WallTime deadline);

  // For tests: from now on nothing is heard or said, as if the cable were cut.
  void Cut() { cut_ = true; }

 private:
  enum class Kind : uint8_t { kBeat, kBytes, kArrived, kFailed, kGoodbye };
  struct Peer {
    Socket socket{};
    std::string in{};
    std::string out{};
    WallTime heard{};
    RankProgress progress{};  // By its heartbeats.
    std::unique_ptr<PositionBoard> board{};
    int64_t arrived = 0;  // Its last commit.
    bool said_goodbye = false;
    bool gone = false;
    std::optional<int64_t> verdict{};  // After a failure: its last commit.
  };

  explicit ControlMesh(const Options& options) : options_(options) {}

  absl::Status ConnectPeer(int32_t peer, const std::string& address,
                           WallTime deadline);
  void Run();
  void Wake();
  // All with mutex_ held.
  void Queue(int32_t to, Kind kind, absl::string_view payload);
  void QueueAll(Kind kind, absl::string_view payload);
  void ReadPeer(int32_t rank);
  void Handle(int32_t from, Kind kind, absl::string_view payload);
  void Lose(int32_t rank, const std::string& cause);
  void FailLocked(const absl::Status& reason);
  void CheckSilence(WallTime now);
  void CheckStall(WallTime now);
  void Beat();
  void Decide(WallTime now);
  std::string Describe(int32_t rank);

  Options options_;
  std::string address_{};
  Socket listener_{};
  Socket wake_read_{};
  Socket wake_write_{};
  std::unique_ptr<PositionBoard> board_{};
  std::atomic<bool> cut_{false};

  mutable std::mutex mutex_{};
  mutable std::condition_variable changed_{};
  Callbacks callbacks_{};
  std::vector<Peer> peers_{};  // By rank; its own is empty.
  std::map<std::tuple<int32_t, uint64_t>, std::string> received_{};
  int64_t commit_ = 0;             // Number of the commit under way.
  bool arrived_ = false;           // At it.
  std::optional<bool> commits_{};  // What was decided of it.
  int64_t last_commit_ = 0;        // The last one that counts.
  absl::Status failure_{};
  WallTime failed_at_{};
  bool told_failure_ = false;
  bool told_stuck_ = false;
  WallTime stalled_since_{};
  uint64_t stalled_at_ = 0;
  bool calling_ = false;  // One of the callbacks.
  bool ending_ = false;
  WallTime ending_at_{};
  bool shut_ = false;  // Said to all that no more will come.
  std::thread thread_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_CONTROL_MESH_H_
