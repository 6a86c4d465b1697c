// A transport between threads of one process whose transfers take the time that
// the plan says.
//
// A transfer begins at max(send posted, recv posted, channel free), measured by
// the ranks' progress, keeps its channel (ordered pair of ranks) busy for its
// occupancy and arrives `delay` after it began; both durations are multiplied
// by the time scale. This is the emulator's model with one transfer at a time
// from each rank to each other. Data are copied when both sides are posted.
#ifndef PIPELOOM_RUNTIME_INPROC_TRANSPORT_H_
#define PIPELOOM_RUNTIME_INPROC_TRANSPORT_H_

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

// See the top of the file.
class InprocTransport final : public Transport {
 public:
  InprocTransport(int32_t num_ranks, double time_scale);

  absl::Status PostSend(const Message& message, WallTime at,
                        absl::Span<const std::byte> data) override;
  absl::Status PostRecv(const Message& message, WallTime at,
                        absl::Span<std::byte> into) override;
  absl::StatusOr<TransferTimes> WaitSend(const Message& message,
                                         WallTime deadline) override;
  absl::StatusOr<TransferTimes> WaitRecv(const Message& message,
                                         WallTime deadline) override;
  void Abort(absl::Status reason) override;

 private:
  template <typename Bytes>
  struct Posted {
    EdgeId edge{};
    WallTime at{};
    absl::Span<Bytes> bytes{};
  };
  // Posted sides whose other side is not posted yet; at most one of the two
  // queues is not empty.
  struct Channel {
    std::deque<Posted<const std::byte>> sends{};
    std::deque<Posted<std::byte>> recvs{};
    WallTime free_at{};
  };
  // All channels into one rank.
  struct Inbox {
    Mutex mutex{};
    CondVar met{};
    // Indexed by sender.
    std::map<RankId, Channel> channels ABSL_GUARDED_BY(mutex){};
    // Finished transfers that the sender or receiver has not waited for yet.
    absl::flat_hash_map<EdgeId, TransferTimes> sent ABSL_GUARDED_BY(mutex){};
    absl::flat_hash_map<EdgeId, TransferTimes> received
        ABSL_GUARDED_BY(mutex){};
    absl::Status aborted ABSL_GUARDED_BY(mutex){};
  };

  absl::Status Meet(const Message& message, Inbox& inbox)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox.mutex);
  absl::StatusOr<TransferTimes> Wait(
      Inbox& inbox, absl::flat_hash_map<EdgeId, TransferTimes>& done,
      const Message& message, RankId peer, WallTime deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox.mutex);

  double time_scale_;
  std::vector<std::unique_ptr<Inbox>> inboxes_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_INPROC_TRANSPORT_H_
