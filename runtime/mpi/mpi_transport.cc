#include "runtime/mpi/mpi_transport.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <deque>
#include <memory>
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

// A time in nanoseconds of the sender's clock: the sender's progress, sent
// before the data, or the transfer's begin, sent back.
using Stamp = int64_t;

Stamp ToStamp(WallTime t) {
  return std::chrono::duration_cast<WallDuration>(t.time_since_epoch()).count();
}

WallTime FromStamp(Stamp s) {
  return WallTime(
      std::chrono::duration_cast<WallTime::duration>(WallDuration(s)));
}

// Returns MPI_Get_count for MPI_BYTE. Open MPI's function, which looks at the
// type first, takes a thirtieth of the time of a small message.
int BytesOf(const MPI_Status& status) {
#ifdef OPEN_MPI
  return static_cast<int>(status._ucount);
#else
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  return count;
#endif
}

std::string ErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

struct MpiTransport::State {
  // One side of a message, from its post to its wait.
  struct Posted {
    Message message{};
    WallTime at{};
    MPI_Request request = MPI_REQUEST_NULL;
    // Carries `begin` from the receiver to the sender.
    MPI_Request back = MPI_REQUEST_NULL;
    Stamp begin = 0;
    absl::Span<std::byte> into{};
    size_t expected = 0;              // Bytes to receive, with the stamp.
    std::vector<std::byte> staged{};  // With keep_time: stamp and data.
    bool done = false;
    bool waited = false;    // It was not done when first tested.
    bool taken = false;     // It is done and was waited for.
    TransferTimes times{};  // With keep_time.
  };
  // The messages to or from one peer, in the order of the posts. A ring, so
  // that nothing is allocated in the long run. Taken messages leave at the
  // front, so the first one is never taken.
  struct Channel {
    // Pointers, as MPI holds addresses.
    std::vector<std::unique_ptr<Posted>> ring{};
    size_t mask = 0;  // The ring's size less 1, a power of two less 1.
    // Unmasked places in the ring.
    size_t first = 0;
    size_t end = 0;
    std::deque<Posted> acks{};  // Begins being sent back.
    WallTime free_at{};

    Posted& at(size_t k) { return *ring[k & mask]; }
    Posted& Add(const Message& message, WallTime at) {
      if (end - first == ring.size()) [[unlikely]]
        Grow();
      Posted& p = this->at(end++);
      p.message = message;
      p.at = at;
      p.request = p.back = MPI_REQUEST_NULL;
      p.done = p.waited = p.taken = false;
      return p;
    }
    // Marks the message at place `k` as done and waited for.
    void Take(size_t k) {
      at(k).taken = true;
      while (first != end && at(first).taken) ++first;
    }
    [[gnu::cold]] void Grow() {
      std::vector<std::unique_ptr<Posted>> larger;
      for (size_t k = first; k != end; ++k) {
        larger.push_back(std::move(ring[k & mask]));
      }
      end -= first;
      first = 0;
      while (larger.size() < std::max<size_t>(8, 2 * end)) {
        larger.push_back(std::make_unique<Posted>());
      }
      ring = std::move(larger);
      mask = ring.size() - 1;
    }
  };

  State(const MpiWorld* w, Options o)
      : world(w),
        options(std::move(o)),
        to(static_cast<size_t>(w->size())),
        from(static_cast<size_t>(w->size())) {
    MPI_Comm_dup(MPI_COMM_WORLD, &data);
    MPI_Comm_dup(MPI_COMM_WORLD, &begins);
    MPI_Comm_set_errhandler(data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(begins, MPI_ERRORS_RETURN);
  }

  Channel& ChannelTo(RankId rank) {
    return to[static_cast<size_t>(rank.value())];
  }
  Channel& ChannelFrom(RankId rank) {
    return from[static_cast<size_t>(rank.value())];
  }

  // Rare cases are separate cold functions: MPI sends a message of a few bytes
  // in 0.3 us, to which this transport is to add little.
  bool IsAborted() const { return is_aborted.load(std::memory_order_acquire); }
  [[gnu::cold]] absl::Status Aborted() {
    const MutexLock lock(&mutex);
    return aborted;
  }

  static absl::Status Check(int code, const Message& m, const char* what) {
    if (code == MPI_SUCCESS) [[likely]]
      return absl::OkStatus();
    return MpiError(code, m, what);
  }
  [[gnu::cold]] static absl::Status MpiError(int code, const Message& m,
                                             const char* what) {
    return absl::UnavailableError(absl::StrFormat(
        "%s of edge %d from rank %d to rank %d: MPI: %s", what, m.edge.value(),
        m.from.value(), m.to.value(), ErrorText(code)));
  }

  // Aborts with an error that the peer cannot see by itself, and tells the
  // other ranks.
  absl::Status Tell(absl::Status status) {
    {
      const MutexLock lock(&mutex);
      if (aborted.ok()) aborted = status;
    }
    is_aborted.store(true, std::memory_order_release);
    if (options.tell_others) options.tell_others(status);
    return status;
  }

  static constexpr size_t kMaxBytes =
      static_cast<size_t>(INT_MAX) - sizeof(Stamp);
  [[gnu::cold]] static absl::Status TooLarge(const Message& message,
                                             size_t bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("edge %d has %d B; MPI messages take up to %d B",
                        message.edge.value(), bytes, kMaxBytes));
  }

  [[gnu::noinline]] absl::Status PostTimedSend(
      Posted& p, absl::Span<const std::byte> bytes) {
    const int peer = p.message.to.value();
    const Stamp stamp = ToStamp(p.at);
    p.staged.resize(sizeof stamp + bytes.size());
    std::memcpy(p.staged.data(), &stamp, sizeof stamp);
    if (!bytes.empty()) {
      std::memcpy(p.staged.data() + sizeof stamp, bytes.data(), bytes.size());
    }
    PIPELOOM_RETURN_IF_ERROR(Check(
        MPI_Irecv(&p.begin, sizeof p.begin, MPI_BYTE, peer, 0, begins, &p.back),
        p.message, "send"));
    return Check(
        MPI_Isend(p.staged.data(), static_cast<int>(p.staged.size()), MPI_BYTE,
                  peer, p.message.edge.value(), data, &p.request),
        p.message, "send");
  }

  // Tests a request, several times if the rank has a core of its own, as bare
  // MPI would. Takes some 10 us at most.
  int Look(Posted& p, int* done, MPI_Status* status) const {
    int code = MPI_Test(&p.request, done, status);
    if (*done != 0 || code != MPI_SUCCESS) return code;
    p.waited = true;
    for (int more = looks; --more > 0;) {
      code = MPI_Test(&p.request, done, status);
      if (*done != 0 || code != MPI_SUCCESS) break;
    }
    return code;
  }

  // Sets `done` when the data have been received.
  [[gnu::always_inline]] absl::Status TestRecv(Channel& channel, Posted& p) {
    int done = 0;
    MPI_Status status;
    const int code = Look(p, &done, &status);
    int count = 0;
    if (code == MPI_SUCCESS) [[likely]] {
      if (done == 0) return absl::OkStatus();
      count = BytesOf(status);
    }
    if (code != MPI_SUCCESS || status.MPI_TAG != p.message.edge.value() ||
        static_cast<size_t>(count) != p.expected) [[unlikely]] {
      return Mismatch(p, code, status.MPI_TAG, count);
    }
    p.done = true;
    if (options.keep_time) FinishTimedRecv(channel, p);
    return absl::OkStatus();
  }

  [[gnu::cold]] absl::Status Mismatch(const Posted& p, int code, int tag,
                                      int count) {
    const Message& m = p.message;
    std::string bytes = "more";
    if (code == MPI_SUCCESS) {
      bytes = absl::StrFormat("%d", count - int(p.expected - p.into.size()));
    } else {
      int kind = MPI_SUCCESS;
      MPI_Error_class(code, &kind);
      if (kind != MPI_ERR_TRUNCATE) return MpiError(code, m, "receive");
    }
    return Tell(absl::FailedPreconditionError(absl::StrFormat(
        "from rank %d to rank %d, edge %d of %s B is sent where edge %d of "
        "%d B is received",
        m.from.value(), m.to.value(), tag, bytes, m.edge.value(),
        p.into.size())));
  }

  void FinishTimedRecv(Channel& channel, Posted& p) {
    Stamp sent_at = 0;
    std::memcpy(&sent_at, p.staged.data(), sizeof sent_at);
    if (!p.into.empty()) {
      std::memcpy(p.into.data(), p.staged.data() + sizeof sent_at,
                  p.into.size());
    }
    // The sender's clock shows `ahead` more than ours.
    const WallDuration ahead = world->ClockAhead(p.message.from.value());
    p.times.begin =
        std::max({FromStamp(sent_at) - ahead, p.at, channel.free_at});
    p.times.sent =
        p.times.begin + ToWall(p.message.occupancy, options.time_scale);
    p.times.arrival =
        p.times.begin + ToWall(p.message.delay, options.time_scale);
    channel.free_at = p.times.sent;
    while (!channel.acks.empty()) {
      int done = 0;
      MPI_Test(&channel.acks.front().back, &done, MPI_STATUS_IGNORE);
      if (done == 0) break;
      channel.acks.pop_front();
    }
    Posted& ack = channel.acks.emplace_back();
    ack.begin = ToStamp(p.times.begin + ahead);
    MPI_Isend(&ack.begin, sizeof ack.begin, MPI_BYTE, p.message.from.value(), 0,
              begins, &ack.back);
  }

  absl::Status TestSend(Posted& p) {
    int done = 0;
    const int code = Look(p, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) [[unlikely]] {
      return MpiError(code, p.message, "send");
    }
    if (done != 0 && options.keep_time) {
      PIPELOOM_RETURN_IF_ERROR(Check(
          MPI_Test(&p.back, &done, MPI_STATUS_IGNORE), p.message, "send"));
      p.times.begin = FromStamp(p.begin);
      p.times.sent =
          p.times.begin + ToWall(p.message.occupancy, options.time_scale);
      p.times.arrival =
          p.times.begin + ToWall(p.message.delay, options.time_scale);
    }
    p.done = done != 0;
    return absl::OkStatus();
  }

  // Fast path: most waits are for the first message of their channel, which MPI
  // finishes soon. Returns that message, or null if Wait is needed.
  Posted* Next(Channel& channel, const Message& message) const {
    if (IsAborted() || options.keep_time || channel.first == channel.end) {
      return nullptr;
    }
    Posted& p = channel.at(channel.first);
    return p.message.edge == message.edge && !p.done ? &p : nullptr;
  }
  static TransferTimes TakeNext(Channel& channel, const Posted& p,
                                bool just_now) {
    while (++channel.first != channel.end && channel.at(channel.first).taken) {
    }
    return {p.at, p.at, p.at, just_now};
  }

  absl::StatusOr<TransferTimes> WaitSend(Channel& channel,
                                         const Message& message,
                                         WallTime deadline) {
    if (Posted* const p = Next(channel, message)) [[likely]] {
      int done = 0;
      const int code = MPI_Test(&p->request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) [[unlikely]] {
        return MpiError(code, message, "send");
      }
      // A message that was sent before the first test was not waited for.
      if (done != 0) return TakeNext(channel, *p, p->waited);
      p->waited = true;
    }
    return Wait</*kRecv=*/false>(channel, message, deadline);
  }

  absl::StatusOr<TransferTimes> WaitRecv(Channel& channel,
                                         const Message& message,
                                         WallTime deadline) {
    if (Posted* const p = Next(channel, message)) [[likely]] {
      PIPELOOM_RETURN_IF_ERROR(TestRecv(channel, *p));
      if (p->done) [[likely]]
        return TakeNext(channel, *p, true);
    }
    return Wait</*kRecv=*/true>(channel, message, deadline);
  }

  // Waits for a posted message and, in order, for those before it.
  template <bool kRecv>
  [[gnu::noinline]] absl::StatusOr<TransferTimes> Wait(Channel& channel,
                                                       const Message& message,
                                                       WallTime deadline) {
    Backoff backoff(looks > 1);
    for (size_t k = channel.first;;) {
      if (IsAborted()) return Aborted();
      PIPELOOM_CHECK(k != channel.end);
      Posted& p = channel.at(k);
      if (!p.done) {
        PIPELOOM_RETURN_IF_ERROR(kRecv ? TestRecv(channel, p) : TestSend(p));
      }
      if (p.done) {
        if (p.message.edge == message.edge && !p.taken) {
          channel.Take(k);
          if (options.keep_time) return TimesOf(p);
          return TransferTimes{p.at, p.at, p.at, kRecv || p.waited};
        }
        ++k;
        continue;
      }
      if (WallNow() >= deadline) {
        return TooLate(message, kRecv ? message.from : message.to);
      }
      if (options.keep_time) PIPELOOM_RETURN_IF_ERROR(AnswerSenders());
      backoff.Pause();
    }
  }

  // Finishes all transfers that have come, which tells their senders when they
  // began: a sender may wait for that, whatever this rank waits for itself.
  absl::Status AnswerSenders() {
    for (Channel& channel : from) {
      for (size_t k = channel.first; k != channel.end; ++k) {
        Posted& p = channel.at(k);
        if (!p.done) PIPELOOM_RETURN_IF_ERROR(TestRecv(channel, p));
        if (!p.done) break;
      }
    }
    return absl::OkStatus();
  }

  // Returns the times and frees the staged bytes. REQUIRES: keep_time, and `p`
  // is not used afterwards.
  static TransferTimes TimesOf(Posted& p) {
    p.staged = {};
    return p.times;
  }

  [[gnu::cold]] static absl::Status TooLate(const Message& message,
                                            RankId peer) {
    return absl::DeadlineExceededError(
        absl::StrFormat("rank %d has not posted its side of edge %d in time",
                        peer.value(), message.edge.value()));
  }

  static constexpr int kLooks = 256;
  const MpiWorld* world;
  const int looks = world->own_core() ? kLooks : 1;  // Tests before a pause.
  Options options;
  MPI_Comm data = MPI_COMM_NULL;
  MPI_Comm begins = MPI_COMM_NULL;
  std::vector<Channel> to;
  std::vector<Channel> from;
  Mutex mutex{};
  absl::Status aborted ABSL_GUARDED_BY(mutex){};
  std::atomic<bool> is_aborted{false};
};

MpiTransport::MpiTransport(const MpiWorld* world, Options options)
    : state_(std::make_unique<State>(world, std::move(options))) {}

// A send that never met its other side cannot be cancelled in general. Then its
// memory and the communicators are leaked.
MpiTransport::~MpiTransport() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  bool all_done = true;
  for (State::Channel& channel : state_->from) {
    for (size_t k = channel.first; k != channel.end; ++k) {
      State::Posted& p = channel.at(k);
      if (p.request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&p.request);
      MPI_Wait(&p.request, MPI_STATUS_IGNORE);
    }
    for (State::Posted& p : channel.acks) {
      int done = 0;
      MPI_Test(&p.back, &done, MPI_STATUS_IGNORE);
      all_done &= done != 0;
    }
  }
  for (State::Channel& channel : state_->to) {
    for (size_t k = channel.first; k != channel.end; ++k) {
      State::Posted& p = channel.at(k);
      if (p.done) continue;
      int done = 0;
      MPI_Test(&p.request, &done, MPI_STATUS_IGNORE);
      all_done &= done != 0;
      if (p.back != MPI_REQUEST_NULL) {
        MPI_Cancel(&p.back);
        MPI_Wait(&p.back, MPI_STATUS_IGNORE);
      }
    }
  }
  if (!all_done) static_cast<void>(state_.release());
}

absl::Status MpiTransport::PostSend(const Message& message, WallTime at,
                                    absl::Span<const std::byte> data) {
  State& s = *state_;
  if (s.IsAborted()) [[unlikely]]
    return s.Aborted();
  if (data.size() > State::kMaxBytes) [[unlikely]] {
    return State::TooLarge(message, data.size());
  }
  State::Posted& p = s.ChannelTo(message.to).Add(message, at);
  if (s.options.keep_time) [[unlikely]]
    return s.PostTimedSend(p, data);
  return State::Check(
      MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE,
                message.to.value(), message.edge.value(), s.data, &p.request),
      message, "send");
}

absl::Status MpiTransport::PostRecv(const Message& message, WallTime at,
                                    absl::Span<std::byte> into) {
  State& s = *state_;
  if (s.IsAborted()) [[unlikely]]
    return s.Aborted();
  State::Posted& p = s.ChannelFrom(message.from).Add(message, at);
  p.into = into;
  std::byte* where = into.data();
  p.expected = into.size();
  if (s.options.keep_time) [[unlikely]] {
    p.expected += sizeof(Stamp);
    p.staged.resize(p.expected);
    where = p.staged.data();
  }
  return State::Check(
      MPI_Irecv(where, static_cast<int>(p.expected), MPI_BYTE,
                message.from.value(), MPI_ANY_TAG, s.data, &p.request),
      message, "receive");
}

absl::StatusOr<TransferTimes> MpiTransport::WaitSend(const Message& message,
                                                     WallTime deadline) {
  return state_->WaitSend(state_->ChannelTo(message.to), message, deadline);
}

absl::StatusOr<TransferTimes> MpiTransport::WaitRecv(const Message& message,
                                                     WallTime deadline) {
  return state_->WaitRecv(state_->ChannelFrom(message.from), message, deadline);
}

void MpiTransport::Abort(absl::Status reason) {
  PIPELOOM_CHECK(!reason.ok());
  {
    const MutexLock lock(&state_->mutex);
    if (state_->aborted.ok()) state_->aborted = std::move(reason);
  }
  state_->is_aborted.store(true, std::memory_order_release);
}

}  // namespace pipeloom::runtime
