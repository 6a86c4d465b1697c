#include "service/guard/connection_guard.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "service/os/descriptor_limit.h"
#include "service/os/thread_priority.h"

namespace pipeloom::service {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBuffer = size_t{64} << 10;
// The send buffer of a client's socket, in bytes. Left alone, the kernel grows
// it to 4 MB, and a client that never reads would fill all of it with answers.
constexpr int kSendBuffer = 128 << 10;
constexpr int kEvents = 256;
constexpr int kAccepts = 64;         // At a time, before others get their turn.
constexpr int64_t kDescriptors = 3;  // Each connection has these; two here.
constexpr int64_t kReserve = 512;    // Descriptors for files and threads.
constexpr milliseconds kPause{100};  // Without free descriptors.
constexpr milliseconds kLookAtTimes{250};
constexpr milliseconds kStopping{10};
// When many have taken too long, this part of all connections is ended, and the
// next one after this time.
constexpr size_t kPartOfEnds = 256;
constexpr milliseconds kNextEnds{10};
constexpr int64_t kToldPerSecond = 10;

int64_t MostConnections(const GuardLimits& limits) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return limits.connections;
  const auto all =
      static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 30));
  const int64_t left = all - std::min(kReserve, all / 4);
  return std::max<int64_t>(1,
                           std::min(limits.connections, left / kDescriptors));
}

struct Address {
  std::string counted{};  // Empty: not counted by address.
  std::string peer{};
};

Address AddressOf(const sockaddr_storage& from) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (from.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(from);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port))};
  }
  if (from.ss_family != AF_INET6) return {"", "unix:"};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(from);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
    return {text, absl::StrCat("ipv4:", text, ":", ntohs(v6.sin6_port))};
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  const std::string peer =
      absl::StrCat("ipv6:[", text, "]:", ntohs(v6.sin6_port));
  in6_addr network = v6.sin6_addr;
  std::fill_n(network.s6_addr + 8, 8, uint8_t{0});
  inet_ntop(AF_INET6, &network, text, sizeof(text));
  return {text, peer};
}

// Those of all connections are made room for when the guard is made.
int64_t ReserveFor(int64_t connections) {
  ReserveDescriptors(kDescriptors * connections + kReserve);
  return connections;
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionGuard>> ConnectionGuard::Listen(
    const std::string& address, const GuardLimits& limits,
    const TlsContexts* tls, Log* log) {
  PIPELOOM_ASSIGN_OR_RETURN(Listener listener, Listener::Open(address));
  std::unique_ptr<ConnectionGuard> guard(
      new ConnectionGuard(std::move(listener), limits, tls, log));
  if (guard->wake_ < 0 || guard->guard_.epoll < 0 || guard->spare_ < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot watch connections: ", strerror(errno)));
  }
  return guard;
}

ConnectionGuard::ConnectionGuard(Listener listener, const GuardLimits& limits,
                                 const TlsContexts* tls, Log* log)
    : limits_(limits),
      tls_(tls),
      log_(log),
      listener_(std::move(listener)),
      port_(listener_.port()),
      most_(ReserveFor(MostConnections(limits))),
      most_of_address_(limits.connections_of_address > 0
                           ? limits.connections_of_address
                           : std::max<int64_t>(1, most_ / 2)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      turns_(limits.turns),
      buffer_(kBuffer),
      spare_(OpenSpare()) {
  guard_.epoll = epoll_create1(EPOLL_CLOEXEC);
  guard_.buffer = buffer_.data();
  guard_.buffer_size = buffer_.size();
  guard_.times = limits.times;
  guard_.turns = &turns_;
  guard_.ended = [this](const std::string& peer, absl::string_view reason) {
    Tell(peer, reason);
  };
  for (const int fd : listener_.sockets()) listeners_.push_back({.fd = fd});
  wake_side_.fd = wake_;
}

ConnectionGuard::~ConnectionGuard() {
  Stop(milliseconds(0));
  for (const int fd : {wake_, guard_.epoll, spare_}) {
    if (fd >= 0) close(fd);
  }
}

void ConnectionGuard::Start(HandOver hand_over) {
  guard_.hand_over = std::move(hand_over);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &wake_side_;
  epoll_ctl(guard_.epoll, EPOLL_CTL_ADD, wake_, &event);
  thread_ = std::jthread([this] { Serve(); });
}

void ConnectionGuard::SetWant(Want want) {
  {
    const MutexLock lock(&mutex_);
    want_ = std::max(want_, want);
  }
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void ConnectionGuard::StopAccepting() {
  if (!thread_.joinable()) {
    listener_.Close();
    return;
  }
  SetWant(Want::kServe);
  const MutexLock lock(&mutex_);
  changed_.Wait(&mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !listens_;
  });
}

void ConnectionGuard::Stop(milliseconds patience) {
  StopAccepting();
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, patience,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return !has_answers_;
                     });
  }
  SetWant(Want::kEnd);
  thread_.join();
  all_.clear();
}

void ConnectionGuard::CloseAfter(milliseconds time) {
  const MutexLock lock(&mutex_);
  close_at_ = Clock::now() + time;
}

void ConnectionGuard::Report(Clock::time_point now) {
  bool accepts = false;
  bool closes = false;
  {
    const MutexLock lock(&mutex_);
    accepts = want_ == Want::kAccept;
    closes = now >= close_at_;
  }
  if (!accepts && !listeners_.empty()) {
    WatchListeners(false);
    listeners_.clear();
    listener_.Close();
    // A connection that has not begun has no calls to finish.
    guard_.hand_over = nullptr;
  }
  if (closes) {
    while (!all_.empty()) Remove(all_.back().get());
    removed_.clear();
  }
  bool has_answers = false;
  if (!accepts) {
    has_answers = std::any_of(all_.begin(), all_.end(), [](const auto& each) {
      return each->has_answers();
    });
  }
  const MutexLock lock(&mutex_);
  listens_ = accepts;
  has_answers_ = has_answers;
  open_ = static_cast<int64_t>(all_.size());
  if (!accepts) changed_.NotifyAll();
}

void ConnectionGuard::WatchListeners(bool accepts) {
  if (accepts == accepts_) return;
  accepts_ = accepts;
  for (Side& side : listeners_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &side;
    epoll_ctl(guard_.epoll, accepts ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, side.fd,
              &event);
  }
}

void ConnectionGuard::Serve() {
  // TLS writes without MSG_NOSIGNAL.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  AnswerAtOnce();
  const GuardTimes& times = limits_.times;
  const milliseconds shortest =
      std::min({times.handshake, times.header, times.unread, times.last_bytes,
                times.close});
  const milliseconds period =
      std::max(milliseconds(5), std::min(kLookAtTimes, shortest / 4));
  std::vector<epoll_event> events(kEvents);
  WatchListeners(true);
  Clock::time_point next_look = Clock::now() + period;
  bool more_ends = false;
  while (true) {
    milliseconds most = more_ends ? kNextEnds : period;
    if (listeners_.empty()) most = std::min(most, kStopping);
    if (all_.empty() && accepts_) most = milliseconds(-1);  // Any time.
    if (turns_.any_waits()) {
      most =
          std::min(most, std::chrono::ceil<milliseconds>(limits_.turns.time));
    }
    const int ready = epoll_wait(guard_.epoll, events.data(), kEvents,
                                 static_cast<int>(most.count()));
    const Clock::time_point now = Clock::now();
    for (int e = 0; e < ready; ++e) {
      const epoll_event& event = events[static_cast<size_t>(e)];
      const auto* side = static_cast<const Side*>(event.data.ptr);
      GuardedConnection* const connection = side->connection;
      if (side == &wake_side_) {
        uint64_t count = 0;
        while (read(wake_, &count, sizeof(count)) > 0) {
        }
        const MutexLock lock(&mutex_);
        if (want_ == Want::kEnd) return;
      } else if (connection == nullptr) {
        Accept(side->fd, now);
      } else if (!connection->over()) {
        connection->Handle(side, event.events, now);
        if (connection->over()) Remove(connection);
      }
    }
    removed_.clear();
    turns_.Advance(now);
    if (now >= next_look) {
      next_look = now + period;
      // The server ends the calls of each before it takes others.
      size_t ends = 2 + all_.size() / kPartOfEnds;
      for (size_t c = all_.size(); c-- > 0 && ends > 0;) {
        if (all_[c]->CheckTimes(now)) --ends;
        if (all_[c]->over()) Remove(all_[c].get());
      }
      more_ends = ends == 0;
      if (more_ends) next_look = now + kNextEnds;
      removed_.clear();
    }
    Report(now);
    if (!listeners_.empty()) WatchListeners(now >= pause_);
  }
}

void ConnectionGuard::Accept(int listener, Clock::time_point now) {
  for (int a = 0; a < kAccepts; ++a) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    const int fd = accept4(listener, reinterpret_cast<sockaddr*>(&from), &size,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      Admit(fd, from);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
               errno == ENOBUFS) {
      Tell("", absl::StrCat("cannot accept: ", strerror(errno)));
      if (Shed(listener)) continue;
      pause_ = now + kPause;
      return;
    }
    // Other errors are of a client that is gone already.
  }
}

bool ConnectionGuard::Shed(int listener) {
  if (spare_ >= 0) close(spare_);
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  const bool shed = fd >= 0;
  if (shed) close(fd);
  spare_ = OpenSpare();
  return shed && spare_ >= 0;
}

void ConnectionGuard::Admit(int fd, const sockaddr_storage& from) {
  Address address = AddressOf(from);
  const bool full = static_cast<int64_t>(all_.size()) >= most_;
  int64_t& count = of_address_[address.counted];
  if (full || (!address.counted.empty() && count >= most_of_address_)) {
    Tell(address.peer,
         full ? "too many connections" : "too many connections of one address");
    if (count == 0) of_address_.erase(address.counted);
    close(fd);
    return;
  }
  ++count;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  const std::string name =
      absl::StrCat("pipeloom:", getpid(), ":", ++next_name_, ":", address.peer);
  const TlsContexts::Context context =
      tls_ == nullptr ? nullptr : tls_->current();
  auto connection = std::make_unique<GuardedConnection>(
      &guard_, fd, context.get(), limits_.frames, std::move(address.counted),
      std::move(address.peer), name);
  connection->index = all_.size();
  all_.push_back(std::move(connection));
}

void ConnectionGuard::Remove(GuardedConnection* connection) {
  const auto count = of_address_.find(connection->address());
  if (--count->second == 0) of_address_.erase(count);
  const size_t index = connection->index;
  std::swap(all_[index], all_.back());
  all_[index]->index = index;
  // Events of its other side may still be among those at hand.
  removed_.push_back(std::move(all_.back()));
  all_.pop_back();
}

void ConnectionGuard::Tell(const std::string& peer, absl::string_view reason) {
  const Clock::time_point now = Clock::now();
  if (now - second_ >= std::chrono::seconds(1)) {
    second_ = now;
    told_ = 0;
  }
  if (++told_ > kToldPerSecond) {
    ++left_out_;
    return;
  }
  log_->Write(
      LogLevel::kWarning, "connection_ended",
      {{"peer", peer}, {"reason", reason}, {"left_out_before", left_out_}});
  left_out_ = 0;
}

}  // namespace pipeloom::service
