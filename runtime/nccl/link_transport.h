// A transport over one-way links between two devices (NCCL).
//
// Every ordered pair of ranks that exchanges messages has a link of its own,
// opened at its first message: a receive that waits on one link cannot hold up
// another, as it would on a common communicator. Both sides first tell each
// other what they have posted, over the run's control connections, and start
// the transfer when the other side is known to be ready. So a mismatch is an
// error on both sides, no kernel spins on the device for a peer that does not
// come, and a transfer that has been started ends soon.
//
//     rank a   PostSend --notice--> . . . . start --> done
//     rank b   . . . . <--notice-- PostRecv  start --> done
//
// Cost: one notice per side and message, tens of us, hidden if the posts come
// before the waits. The plan's delays are ignored. Threads: that of the rank
// only, except Abort.
#ifndef PIPELOOM_RUNTIME_NCCL_LINK_TRANSPORT_H_
#define PIPELOOM_RUNTIME_NCCL_LINK_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/nccl/device_links.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

// See the top of the file.
class LinkTransport final : public Transport {
 public:
  // Functions that pass byte strings between ranks (ControlMesh), in any order.
  // Topics from kFirstTopic on belong to the transport.
  struct Notices {
    std::function<void(int32_t to, uint64_t topic, std::string bytes)> send{};
    // Returns at once; nullopt if the message has not come yet.
    std::function<absl::StatusOr<std::optional<std::string>>(int32_t from,
                                                             uint64_t topic)>
        receive{};
  };
  static constexpr uint64_t kFirstTopic = uint64_t{1} << 62;

  LinkTransport(int32_t rank, int32_t num_ranks,
                std::unique_ptr<DeviceLinks> links, Notices notices);
  // Cancels all transfers if one of them is not done or Abort was called.
  ~LinkTransport() override;

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
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_NCCL_LINK_TRANSPORT_H_
