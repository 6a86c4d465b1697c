// Transport between threads of one process that takes the time the plan says.
//
// A transfer begins at max(send posted, recv posted, channel free), by the
// ranks' progress, keeps its channel (ordered pair of ranks) busy for its
// occupancy and arrives `delay` after it began, both times the time scale: the
// emulator's model with one transfer at a time from each rank to each other.
// Data are copied when both sides are posted.
#ifndef PIPELOOM_RUNTIME_INPROC_TRANSPORT_H_
#define PIPELOOM_RUNTIME_INPROC_TRANSPORT_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

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
  // Sides that have not met yet; at most one of the two is not empty.
  struct Channel {
    std::deque<Posted<const std::byte>> sends{};
    std::deque<Posted<std::byte>> recvs{};
    WallTime free_at{};
  };
  // All channels into one rank.
  struct Inbox {
    std::mutex mutex{};
    std::condition_variable met{};
    std::map<RankId, Channel> channels{};                   // By sender.
    absl::flat_hash_map<EdgeId, TransferTimes> sent{};      // Not yet waited
    absl::flat_hash_map<EdgeId, TransferTimes> received{};  // for.
    absl::Status aborted{};
  };

  absl::Status Meet(const Message& message, Inbox& inbox);
  absl::StatusOr<TransferTimes> Wait(
      Inbox& inbox, absl::flat_hash_map<EdgeId, TransferTimes>& done,
      const Message& message, RankId peer, WallTime deadline);

  double time_scale_;
  std::vector<std::unique_ptr<Inbox>> inboxes_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_INPROC_TRANSPORT_H_
