#include "runtime/nccl/link_transport.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "runtime/backoff.h"

namespace pipeloom::runtime {
namespace {

// The meaning of a topic's number: a posted send, a posted receive, or the name
// of a link.
enum class About : uint64_t { kSend = 0, kRecv = 1, kLink = 2 };

uint64_t Topic(About about, uint64_t number) {
  return LinkTransport::kFirstTopic | (static_cast<uint64_t>(about) << 58) |
         number;
}

struct Notice {
  int64_t edge = 0;
  uint64_t size = 0;
};

std::string ToBytes(const Notice& notice) {
  std::string bytes(sizeof notice, '\0');
  std::memcpy(bytes.data(), &notice, sizeof notice);
  return bytes;
}

}  // namespace

absl::StatusOr<int32_t> DeviceOfRank(int32_t host_rank, int32_t host_size,
                                     int32_t devices, bool share) {
  if (devices < 1) {
    return absl::FailedPreconditionError(
        "the nccl transport needs a CUDA device on every host; there is none: "
        "use --transport mpi");
  }
  if (host_size > devices && !share) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d ranks on a host with %d CUDA device%s: NCCL takes one rank a "
        "device (\"Duplicate GPU detected\"); start %d ranks there, use "
        "--transport mpi, or, to try it out, set NCCL_MULTI_RANK_GPU_ENABLE=1 "
        "where NCCL knows it",
        host_size, devices, devices == 1 ? "" : "s", devices));
  }
  return host_rank % devices;
}

struct LinkTransport::State {
  enum class Stage { kPosted, kMatched, kStarted, kDone };
  struct Posted {
    Message message{};
    WallTime at{};
    uint64_t number = 0;
    size_t size = 0;
    DeviceLinks::Transfer transfer{};
    Stage stage = Stage::kPosted;
    TransferTimes times{};
  };
  // One direction of a pair of ranks, with its messages in the order of the
  // posts. A message that is done and waited for is removed.
  struct Channel {
    int32_t peer = 0;
    bool sends = false;
    uint64_t posts = 0;
    std::optional<int32_t> link{};
    std::list<Posted> posted{};
  };

  State(int32_t r, int32_t num_ranks, std::unique_ptr<DeviceLinks> l, Notices n)
      : rank(r), links(std::move(l)), notices(std::move(n)) {
    for (int32_t peer = 0; peer < num_ranks; ++peer) {
      for (const bool sends : {false, true}) {
        channels.push_back({.peer = peer, .sends = sends});
      }
    }
  }

  Channel& To(RankId peer) {
    return channels.at(static_cast<size_t>(peer.value()) * 2 + 1);
  }
  Channel& From(RankId peer) {
    return channels.at(static_cast<size_t>(peer.value()) * 2);
  }

  absl::Status Aborted() {
    if (!is_aborted.load(std::memory_order_acquire)) return absl::OkStatus();
    const MutexLock lock(&mutex);
    return aborted;
  }

  absl::Status Post(Channel& channel, Posted posted) {
    PIPELOOM_RETURN_IF_ERROR(Aborted());
    posted.number = channel.posts++;
    notices.send(
        channel.peer,
        Topic(channel.sends ? About::kSend : About::kRecv, posted.number),
        ToBytes({.edge = posted.message.edge.value(), .size = posted.size}));
    channel.posted.push_back(std::move(posted));
    return Advance();
  }

  // Returns whether the peer has posted its side of `p`. FailedPrecondition:
  // the peer has posted another edge or size.
  absl::StatusOr<bool> Match(const Channel& channel, Posted& p) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::optional<std::string> bytes,
        notices.receive(
            channel.peer,
            Topic(channel.sends ? About::kRecv : About::kSend, p.number)));
    if (!bytes.has_value()) return false;
    Notice other;
    if (bytes->size() != sizeof other) {
      return absl::InternalError(absl::StrFormat(
          "rank %d: a notice that cannot be read", channel.peer));
    }
    std::memcpy(&other, bytes->data(), sizeof other);
    const Notice own{.edge = p.message.edge.value(), .size = p.size};
    if (own.edge != other.edge || own.size != other.size) {
      const Notice& sent = channel.sends ? own : other;
      const Notice& received = channel.sends ? other : own;
      return absl::FailedPreconditionError(absl::StrFormat(
          "from rank %d to rank %d, edge %d of %d B is sent where edge %d of "
          "%d B is received",
          p.message.from.value(), p.message.to.value(), sent.edge, sent.size,
          received.edge, received.size));
    }
    p.times.begin = std::max(p.at, WallNow());
    return true;
  }

  // Opens the channel's link if it can; returns whether it is connected.
  absl::StatusOr<bool> Connected(Channel& channel) {
    if (!channel.link.has_value()) {
      std::string name;
      if (channel.sends) {
        PIPELOOM_ASSIGN_OR_RETURN(name, links->NewName());
        notices.send(channel.peer, Topic(About::kLink, 0), name);
      } else {
        PIPELOOM_ASSIGN_OR_RETURN(
            const std::optional<std::string> given,
            notices.receive(channel.peer, Topic(About::kLink, 0)));
        if (!given.has_value()) return false;
        name = *given;
      }
      PIPELOOM_ASSIGN_OR_RETURN(channel.link, links->Open(name, channel.sends));
    }
    return links->Ready(*channel.link);
  }

  // Advances the channel's first transfers as far as they can go. Returns
  // whether the first that is not done can be started.
  absl::StatusOr<bool> AdvanceFirst(Channel& channel) {
    for (Posted& p : channel.posted) {
      if (p.stage == Stage::kDone) continue;
      if (p.stage == Stage::kPosted) {
        PIPELOOM_ASSIGN_OR_RETURN(const bool matched, Match(channel, p));
        if (!matched) return false;
        p.stage = Stage::kMatched;
      }
      bool done = p.size == 0;
      if (p.stage == Stage::kStarted) {
        PIPELOOM_ASSIGN_OR_RETURN(done, links->Done(*channel.link));
        if (!done) return false;
      }
      if (!done) return Connected(channel);
      p.times.sent = p.times.arrival = std::max(p.times.begin, WallNow());
      p.stage = Stage::kDone;
    }
    return false;
  }

  // Advances all channels, as a peer may wait for one that this rank does not
  // wait for at the moment.
  absl::Status Advance() {
    std::vector<DeviceLinks::Transfer> now;
    for (Channel& channel : channels) {
      if (channel.posted.empty()) continue;
      PIPELOOM_ASSIGN_OR_RETURN(const bool start, AdvanceFirst(channel));
      if (!start) continue;
      for (Posted& p : channel.posted) {
        if (p.stage != Stage::kMatched) continue;
        p.stage = Stage::kStarted;
        p.transfer.link = *channel.link;
        now.push_back(p.transfer);
        break;
      }
    }
    return now.empty() ? absl::OkStatus() : links->Start(now);
  }

  absl::StatusOr<TransferTimes> Wait(Channel& channel, const Message& message,
                                     WallTime deadline) {
    Backoff backoff;
    for (;;) {
      PIPELOOM_RETURN_IF_ERROR(Aborted());
      PIPELOOM_RETURN_IF_ERROR(Advance());
      const auto at = std::find_if(
          channel.posted.begin(), channel.posted.end(),
          [&](const Posted& p) { return p.message.edge == message.edge; });
      PIPELOOM_CHECK(at != channel.posted.end());
      if (at->stage == Stage::kDone) {
        const TransferTimes times = at->times;
        channel.posted.erase(at);
        return times;
      }
      if (WallNow() >= deadline) {
        const int32_t edge = message.edge.value();
        return absl::DeadlineExceededError(
            at->stage == Stage::kPosted
                ? absl::StrFormat(
                      "rank %d has not posted its side of edge %d in time",
                      channel.peer, edge)
                : absl::StrFormat(
                      "rank %d: the transfer of edge %d has not ended in time",
                      channel.peer, edge));
      }
      backoff.Pause();
    }
  }

  int32_t rank;
  std::unique_ptr<DeviceLinks> links;
  Notices notices;
  // Two for each peer: from it, then to it.
  std::vector<Channel> channels{};
  Mutex mutex{};
  absl::Status aborted ABSL_GUARDED_BY(mutex){};
  std::atomic<bool> is_aborted{false};
};

LinkTransport::LinkTransport(int32_t rank, int32_t num_ranks,
                             std::unique_ptr<DeviceLinks> links,
                             Notices notices)
    : state_(std::make_unique<State>(rank, num_ranks, std::move(links),
                                     std::move(notices))) {}

LinkTransport::~LinkTransport() {
  bool all_done = !state_->is_aborted;
  for (const State::Channel& channel : state_->channels) {
    for (const State::Posted& p : channel.posted) {
      all_done &= p.stage == State::Stage::kDone;
    }
  }
  if (!all_done) state_->links->Abort();
}

absl::Status LinkTransport::PostSend(const Message& message, WallTime at,
                                     absl::Span<const std::byte> data) {
  return state_->Post(state_->To(message.to), {.message = message,
                                               .at = at,
                                               .size = data.size(),
                                               .transfer = {.out = data}});
}

absl::Status LinkTransport::PostRecv(const Message& message, WallTime at,
                                     absl::Span<std::byte> into) {
  return state_->Post(state_->From(message.from), {.message = message,
                                                   .at = at,
                                                   .size = into.size(),
                                                   .transfer = {.into = into}});
}

absl::StatusOr<TransferTimes> LinkTransport::WaitSend(const Message& message,
                                                      WallTime deadline) {
  return state_->Wait(state_->To(message.to), message, deadline);
}

absl::StatusOr<TransferTimes> LinkTransport::WaitRecv(const Message& message,
                                                      WallTime deadline) {
  return state_->Wait(state_->From(message.from), message, deadline);
}

void LinkTransport::Abort(absl::Status reason) {
  PIPELOOM_CHECK(!reason.ok());
  {
    const MutexLock lock(&state_->mutex);
    if (state_->aborted.ok()) state_->aborted = std::move(reason);
  }
  state_->is_aborted.store(true, std::memory_order_release);
}

}  // namespace pipeloom::runtime
