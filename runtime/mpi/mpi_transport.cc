#include "runtime/mpi/mpi_transport.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "runtime/backoff.h"

namespace pipeloom::runtime {
namespace {

// The sender's progress, before the data; the transfer's begin, on the way
// back. Nanoseconds of the sender's clock.
using Stamp = int64_t;

Stamp ToStamp(WallTime t) {
  return std::chrono::duration_cast<WallDuration>(t.time_since_epoch()).count();
}

WallTime FromStamp(Stamp s) {
  return WallTime(
      std::chrono::duration_cast<WallTime::duration>(WallDuration(s)));
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
    MPI_Request back = MPI_REQUEST_NULL;  // The begin, to or from the receiver.
    Stamp begin = 0;
    absl::Span<std::byte> into{};
    std::vector<std::byte> staged{};  // With keep_time: stamp and data.
    bool done = false;
    bool waited = false;  // Was not done when first asked.
    TransferTimes times{};
  };
  // To or from one peer, in the order of the posts. What is done and waited
  // for leaves at the front.
  struct Channel {
    std::list<Posted> posted{};  // MPI holds addresses in them.
    std::list<Posted> spare{};   // For posts to come: nothing is allocated.
    std::deque<Posted> acks{};   // Begins on their way back.
    WallTime free_at{};

    Posted& Add(const Message& message, WallTime at) {
      if (spare.empty()) spare.emplace_back();
      posted.splice(posted.end(), spare, spare.begin());
      Posted& p = posted.back();
      p.message = message;
      p.at = at;
      p.request = p.back = MPI_REQUEST_NULL;
      p.done = p.waited = false;
      return p;
    }
    void Remove(std::list<Posted>::iterator at) {
      at->staged = {};
      spare.splice(spare.begin(), posted, at);
    }
  };

  State(const MpiWorld* w, Options o) : world(w), options(std::move(o)) {
    MPI_Comm_dup(MPI_COMM_WORLD, &data);
    MPI_Comm_dup(MPI_COMM_WORLD, &begins);
    MPI_Comm_set_errhandler(data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(begins, MPI_ERRORS_RETURN);
    to.resize(static_cast<size_t>(w->size()));
    from.resize(static_cast<size_t>(w->size()));
  }

  Channel& ChannelTo(RankId rank) {
    return to.at(static_cast<size_t>(rank.value()));
  }
  Channel& ChannelFrom(RankId rank) {
    return from.at(static_cast<size_t>(rank.value()));
  }

  absl::Status Aborted() {
    if (!is_aborted.load(std::memory_order_acquire)) return absl::OkStatus();
    const std::lock_guard lock(mutex);
    return aborted;
  }

  absl::Status Check(int code, const Message& m, const char* what) {
    if (code == MPI_SUCCESS) return absl::OkStatus();
    return absl::UnavailableError(absl::StrFormat(
        "%s of edge %d from rank %d to rank %d: MPI: %s", what, m.edge.value(),
        m.from.value(), m.to.value(), ErrorText(code)));
  }

  // An error that the peer cannot see by itself.
  absl::Status Tell(absl::Status status) {
    {
      const std::lock_guard lock(mutex);
      if (aborted.ok()) aborted = status;
    }
    is_aborted.store(true, std::memory_order_release);
    if (options.tell_others) options.tell_others(status);
    return status;
  }

  // Tests a request: a rank with a core of its own several times, as bare MPI
  // would, before anything else is looked at. Some 10 us at most.
  int Look(MPI_Request* request, int* done, MPI_Status* status, bool* waited) {
    for (int looks = world->own_core() ? kLooks : 1;;) {
      const int code = MPI_Test(request, done, status);
      if (*done != 0 || code != MPI_SUCCESS) return code;
      if (waited != nullptr) *waited = true;
      if (--looks == 0) return code;
    }
  }

  // OK and true once the side's data have come or gone.
  absl::StatusOr<bool> TestRecv(Channel& channel, Posted& p) {
    int done = 0;
    MPI_Status status;
    const int code = Look(&p.request, &done, &status, nullptr);
    const Message& m = p.message;
    int kind = MPI_SUCCESS;
    if (code != MPI_SUCCESS) {
      MPI_Error_class(code, &kind);
      if (kind != MPI_ERR_TRUNCATE) return Check(code, m, "receive");
    } else if (done == 0) {
      return false;
    }
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    const auto stamp = options.keep_time ? sizeof(Stamp) : 0;
    const auto expected = p.into.size() + stamp;
    if (kind == MPI_ERR_TRUNCATE || status.MPI_TAG != m.edge.value() ||
        static_cast<size_t>(count) != expected) {
      return Tell(absl::FailedPreconditionError(absl::StrFormat(
          "from rank %d to rank %d, edge %d of %s B is sent where edge %d of "
          "%d B is received",
          m.from.value(), m.to.value(), status.MPI_TAG,
          kind == MPI_ERR_TRUNCATE ? "more"
                                   : absl::StrFormat("%d", count - int(stamp)),
          m.edge.value(), p.into.size())));
    }
    if (options.keep_time) {
      FinishTimedRecv(channel, p);
    } else {
      p.times.begin = p.at;
      p.times.sent = p.times.arrival = std::max(p.at, WallNow());
    }
    return true;
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

  absl::StatusOr<bool> TestSend(Channel&, Posted& p) {
    int done = 0;
    PIPELOOM_RETURN_IF_ERROR(
        Check(Look(&p.request, &done, MPI_STATUS_IGNORE, &p.waited), p.message,
              "send"));
    if (done != 0 && options.keep_time) {
      PIPELOOM_RETURN_IF_ERROR(Check(
          MPI_Test(&p.back, &done, MPI_STATUS_IGNORE), p.message, "send"));
    }
    if (done == 0) return false;
    if (options.keep_time) {
      p.times.begin = FromStamp(p.begin);
      p.times.sent =
          p.times.begin + ToWall(p.message.occupancy, options.time_scale);
      p.times.arrival =
          p.times.begin + ToWall(p.message.delay, options.time_scale);
      return true;
    }
    // Gone before anyone asked: nothing was waited for.
    p.times.begin = p.at;
    p.times.sent = p.times.arrival =
        p.waited ? std::max(p.at, WallNow()) : p.at;
    return true;
  }

  // Waits for a posted side and, in their order, those before it.
  template <typename Test>
  absl::StatusOr<TransferTimes> Wait(Channel& channel, const Message& message,
                                     RankId peer, WallTime deadline,
                                     Test test) {
    Backoff backoff(world->own_core());
    for (auto at = channel.posted.begin();;) {
      PIPELOOM_RETURN_IF_ERROR(Aborted());
      PIPELOOM_CHECK(at != channel.posted.end());
      Posted& p = *at;
      if (!p.done) {
        PIPELOOM_ASSIGN_OR_RETURN(p.done, test(channel, p));
      }
      if (p.done) {
        if (p.message.edge == message.edge) {
          const TransferTimes times = p.times;
          channel.Remove(at);
          return times;
        }
        ++at;
        continue;
      }
      if (WallNow() >= deadline) {
        return absl::DeadlineExceededError(absl::StrFormat(
            "rank %d has not posted its side of edge %d in time", peer.value(),
            message.edge.value()));
      }
      backoff.Pause();
    }
  }

  static constexpr int kLooks = 256;
  const MpiWorld* world;
  Options options;
  MPI_Comm data = MPI_COMM_NULL;
  MPI_Comm begins = MPI_COMM_NULL;
  std::vector<Channel> to{};
  std::vector<Channel> from{};
  std::mutex mutex{};
  absl::Status aborted{};
  std::atomic<bool> is_aborted{false};
};

MpiTransport::MpiTransport(const MpiWorld* world, Options options)
    : state_(std::make_unique<State>(world, std::move(options))) {}

// What never met its other side cannot be taken back in general; then its
// memory, and the communicators, stay until the process ends.
MpiTransport::~MpiTransport() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  bool all_done = true;
  for (State::Channel& channel : state_->from) {
    for (State::Posted& p : channel.posted) {
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
    for (State::Posted& p : channel.posted) {
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
  PIPELOOM_RETURN_IF_ERROR(s.Aborted());
  if (data.size() > static_cast<size_t>(INT_MAX) - sizeof(Stamp)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("edge %d has %d B; MPI messages take up to %d B",
                        message.edge.value(), data.size(), INT_MAX));
  }
  State::Posted& p = s.ChannelTo(message.to).Add(message, at);
  const int to = message.to.value();
  const int tag = message.edge.value();
  if (!s.options.keep_time) {
    return s.Check(MPI_Isend(data.data(), static_cast<int>(data.size()),
                             MPI_BYTE, to, tag, s.data, &p.request),
                   message, "send");
  }
  const Stamp stamp = ToStamp(at);
  p.staged.resize(sizeof stamp + data.size());
  std::memcpy(p.staged.data(), &stamp, sizeof stamp);
  if (!data.empty()) {
    std::memcpy(p.staged.data() + sizeof stamp, data.data(), data.size());
  }
  PIPELOOM_RETURN_IF_ERROR(s.Check(
      MPI_Irecv(&p.begin, sizeof p.begin, MPI_BYTE, to, 0, s.begins, &p.back),
      message, "send"));
  return s.Check(MPI_Isend(p.staged.data(), static_cast<int>(p.staged.size()),
                           MPI_BYTE, to, tag, s.data, &p.request),
                 message, "send");
}

absl::Status MpiTransport::PostRecv(const Message& message, WallTime at,
                                    absl::Span<std::byte> into) {
  State& s = *state_;
  PIPELOOM_RETURN_IF_ERROR(s.Aborted());
  State::Posted& p = s.ChannelFrom(message.from).Add(message, at);
  p.into = into;
  std::byte* where = into.data();
  size_t size = into.size();
  if (s.options.keep_time) {
    p.staged.resize(sizeof(Stamp) + size);
    where = p.staged.data();
    size = p.staged.size();
  }
  return s.Check(
      MPI_Irecv(where, static_cast<int>(size), MPI_BYTE, message.from.value(),
                MPI_ANY_TAG, s.data, &p.request),
      message, "receive");
}

absl::StatusOr<TransferTimes> MpiTransport::WaitSend(const Message& message,
                                                     WallTime deadline) {
  State& s = *state_;
  return s.Wait(
      s.ChannelTo(message.to), message, message.to, deadline,
      [&s](State::Channel& c, State::Posted& p) { return s.TestSend(c, p); });
}

absl::StatusOr<TransferTimes> MpiTransport::WaitRecv(const Message& message,
                                                     WallTime deadline) {
  State& s = *state_;
  return s.Wait(
      s.ChannelFrom(message.from), message, message.from, deadline,
      [&s](State::Channel& c, State::Posted& p) { return s.TestRecv(c, p); });
}

void MpiTransport::Abort(absl::Status reason) {
  PIPELOOM_CHECK(!reason.ok());
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->aborted.ok()) state_->aborted = std::move(reason);
  }
  state_->is_aborted.store(true, std::memory_order_release);
}

}  // namespace pipeloom::runtime
