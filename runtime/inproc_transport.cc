#include "runtime/inproc_transport.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace pipeloom::runtime {

InprocTransport::InprocTransport(int32_t num_ranks, double time_scale)
    : time_scale_(time_scale) {
  for (int32_t r = 0; r < num_ranks; ++r) {
    inboxes_.push_back(std::make_unique<Inbox>());
  }
}

absl::Status InprocTransport::PostSend(const Message& message, WallTime at,
                                       absl::Span<const std::byte> data) {
  Inbox& inbox = *inboxes_.at(static_cast<size_t>(message.to.value()));
  const MutexLock lock(&inbox.mutex);
  if (!inbox.aborted.ok()) return inbox.aborted;
  inbox.channels[message.from].sends.push_back({message.edge, at, data});
  return Meet(message, inbox);
}

absl::Status InprocTransport::PostRecv(const Message& message, WallTime at,
                                       absl::Span<std::byte> into) {
  Inbox& inbox = *inboxes_.at(static_cast<size_t>(message.to.value()));
  const MutexLock lock(&inbox.mutex);
  if (!inbox.aborted.ok()) return inbox.aborted;
  inbox.channels[message.from].recvs.push_back({message.edge, at, into});
  return Meet(message, inbox);
}

// Completes the oldest message of the channel if both sides are there.
// A mismatch ends the channel for both sides.
absl::Status InprocTransport::Meet(const Message& message, Inbox& inbox) {
  Channel& channel = inbox.channels[message.from];
  if (channel.sends.empty() || channel.recvs.empty()) return absl::OkStatus();
  const Posted<const std::byte> send = channel.sends.front();
  const Posted<std::byte> recv = channel.recvs.front();
  if (send.edge != recv.edge || send.bytes.size() != recv.bytes.size()) {
    inbox.aborted = absl::FailedPreconditionError(absl::StrFormat(
        "from rank %d to rank %d, edge %d of %d B is sent where edge %d of %d "
        "B is received",
        message.from.value(), message.to.value(), send.edge.value(),
        send.bytes.size(), recv.edge.value(), recv.bytes.size()));
    inbox.met.NotifyAll();
    return inbox.aborted;
  }
  channel.sends.pop_front();
  channel.recvs.pop_front();
  if (!send.bytes.empty()) {
    std::memcpy(recv.bytes.data(), send.bytes.data(), send.bytes.size());
  }
  TransferTimes times;
  times.begin = std::max({send.at, recv.at, channel.free_at});
  times.sent = times.begin + ToWall(message.occupancy, time_scale_);
  times.arrival = times.begin + ToWall(message.delay, time_scale_);
  channel.free_at = times.sent;
  inbox.sent.emplace(send.edge, times);
  inbox.received.emplace(send.edge, times);
  inbox.met.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<TransferTimes> InprocTransport::WaitSend(const Message& message,
                                                        WallTime deadline) {
  Inbox& inbox = *inboxes_.at(static_cast<size_t>(message.to.value()));
  const MutexLock lock(&inbox.mutex);
  return Wait(inbox, inbox.sent, message, message.to, deadline);
}

absl::StatusOr<TransferTimes> InprocTransport::WaitRecv(const Message& message,
                                                        WallTime deadline) {
  Inbox& inbox = *inboxes_.at(static_cast<size_t>(message.to.value()));
  const MutexLock lock(&inbox.mutex);
  return Wait(inbox, inbox.received, message, message.from, deadline);
}

absl::StatusOr<TransferTimes> InprocTransport::Wait(
    Inbox& inbox, absl::flat_hash_map<EdgeId, TransferTimes>& done,
    const Message& message, RankId peer, WallTime deadline) {
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox.mutex) {
    return !inbox.aborted.ok() || done.contains(message.edge);
  };
  const bool woken = inbox.met.WaitUntil(&inbox.mutex, deadline, is_over);
  if (!inbox.aborted.ok()) return inbox.aborted;
  if (!woken) {
    return absl::DeadlineExceededError(
        absl::StrFormat("rank %d has not posted its side of edge %d in time",
                        peer.value(), message.edge.value()));
  }
  const auto found = done.find(message.edge);
  const TransferTimes times = found->second;
  done.erase(found);
  return times;
}

void InprocTransport::Abort(absl::Status reason) {
  PIPELOOM_CHECK(!reason.ok());
  for (const std::unique_ptr<Inbox>& inbox : inboxes_) {
    const MutexLock lock(&inbox->mutex);
    if (inbox->aborted.ok()) inbox->aborted = reason;
    inbox->met.NotifyAll();
  }
}

}  // namespace pipeloom::runtime
