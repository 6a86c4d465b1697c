#include "service/guard/guarded_connection.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pipeloom::service {
namespace {

constexpr size_t kMostThrownAway = size_t{1} << 20;

// The frame GOAWAY: last stream 0, ENHANCE_YOUR_CALM.
constexpr unsigned char kGoAway[] = {0, 0, 8, 7, 0, 0, 0, 0, 0,
                                     0, 0, 0, 0, 0, 0, 0, 11};
// An empty SETTINGS frame, with which a server must begin.
constexpr unsigned char kSettings[] = {0, 0, 0, 4, 0, 0, 0, 0, 0};

template <size_t size>
absl::string_view View(const unsigned char (&bytes)[size]) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// Gives a socket a name, by which the other end of its pair knows it.
bool SetName(int fd, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.begin(), size, address.sun_path + 1);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  return bind(fd, plain,
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                     size)) == 0 ||
         // Another process has that name: let the kernel choose one.
         bind(fd, plain, offsetof(sockaddr_un, sun_path)) == 0;
}

}  // namespace

GuardedConnection::GuardedConnection(const Guard* guard, int fd,
                                     SSL_CTX* context,
                                     const FrameLimits& limits,
                                     std::string address, std::string peer,
                                     std::string name)
    : guard_(guard),
      wire_(fd, context),
      address_(std::move(address)),
      peer_(std::move(peer)),
      name_(std::move(name)),
      walker_(limits, Clock::now()),
      until_(Clock::now() + guard->times.handshake) {
  client_ = {.connection = this, .fd = fd};
  server_ = {.connection = this};
  if (context == nullptr) state_ = State::kPreface;
  WatchBoth();
}

GuardedConnection::~GuardedConnection() {
  guard_->turns->Leave(this);
  // The client's socket is closed by its wire.
  if (server_.fd >= 0) close(server_.fd);
}

void GuardedConnection::Handle(const Side* side, uint32_t events,
                               Clock::time_point now) {
  if (side == &client_) {
    if ((events & (EPOLLERR | EPOLLHUP)) != 0 && (events & EPOLLIN) == 0) {
      state_ = State::kOver;
    }
    if (state_ == State::kHandshake) {
      ShakeHands(now);
    } else {
      if ((events & EPOLLOUT) != 0) SendToClient({}, now);
      if ((events & ~uint32_t{EPOLLOUT}) != 0 || wire_.wants_write()) {
        ReadClient(now);
      }
    }
  } else {
    if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) {
      SendToServer({});
      PassOn();
    }
    if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) ReadServer(now);
  }
  WatchBoth();
}

void GuardedConnection::ShakeHands(Clock::time_point now) {
  const ssize_t result = wire_.Handshake();
  if (result == ClientWire::kBroken) state_ = State::kOver;
  if (result != 1) return;
  state_ = State::kPreface;
  walker_.Restart(now);
}

void GuardedConnection::ReadClient(Clock::time_point now) {
  if (over() || !ReadsClient()) return;
  const ssize_t got = wire_.Read(guard_->buffer, guard_->buffer_size);
  if (got == ClientWire::kLater) return;
  if (got == ClientWire::kBroken) {
    state_ = State::kOver;
    return;
  }
  if (got == ClientWire::kEnd) {
    client_ended_ = true;
    SendToServer({});
    // There is nothing to answer, or all is said.
    if (state_ == State::kPreface || client_told_) state_ = State::kOver;
    return;
  }
  const absl::string_view bytes(guard_->buffer, static_cast<size_t>(got));
  if (state_ == State::kClosing) {
    thrown_away_ += bytes.size();
    if (thrown_away_ > kMostThrownAway) state_ = State::kOver;
    return;
  }
  const absl::string_view reason = walker_.Walk(bytes, now);
  if (!reason.empty()) {
    End(reason, now);
    return;
  }
  if (state_ == State::kPreface) {
    if (!walker_.has_preface()) {
      early_ += bytes.size();
      return;
    }
    if (!HandOver()) {
      state_ = State::kOver;
      return;
    }
    state_ = State::kOpen;
    if (early_ > 0) SendToServer(FrameWalker::kPreface.substr(0, early_));
  }
  for (const uint32_t stream : walker_.resets()) EndCall(stream);
  calls_.Add(bytes, walker_);
  PassOn();
}

void GuardedConnection::PassOn() {
  while (server_.fd >= 0 && to_server_.empty() && !in_turn_) {
    const absl::string_view ready = calls_.Ready();
    if (!ready.empty()) {
      SendToServer(ready);
      calls_.Passed(ready.size());
      continue;
    }
    if (!calls_.waits()) return;
    const bool first = calls_.open() == 0;
    in_turn_ = !first && !guard_->turns->Take(this);
    if (!in_turn_) calls_.Begin(!first);
  }
}

void GuardedConnection::EndCall(uint32_t stream) {
  if (calls_.End(stream)) guard_->turns->Answered();
}

void GuardedConnection::PassCall() {
  in_turn_ = false;
  calls_.Begin(true);
  PassOn();
  WatchBoth();
}

bool GuardedConnection::IsUnread() const {
  int bytes = 0;
  return !to_server_.empty() ||
         (ioctl(server_.fd, SIOCOUTQ, &bytes) == 0 && bytes > 0);
}

bool GuardedConnection::HandOver() {
  if (!guard_->hand_over) return false;
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                 pair) != 0) {
    guard_->ended(peer_, absl::StrCat("no socket pair: ", strerror(errno)));
    return false;
  }
  server_.fd = pair[0];
  if (!SetName(pair[0], name_)) {
    guard_->ended(peer_, absl::StrCat("no name: ", strerror(errno)));
    close(pair[1]);
    return false;
  }
  guard_->hand_over(pair[1]);
  return true;
}

void GuardedConnection::SendToServer(absl::string_view bytes) {
  if (server_.fd < 0) return;
  const bool kept = !to_server_.empty();
  if (kept) bytes = to_server_;
  while (!bytes.empty()) {
    const ssize_t sent =
        send(server_.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) break;
    // The server is gone; its last words are read yet.
    if (sent < 0) bytes = {};
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  if (kept) {
    to_server_.erase(0, to_server_.size() - bytes.size());
    if (to_server_.empty()) to_server_.shrink_to_fit();
  } else {
    to_server_.assign(bytes.data(), bytes.size());
  }
  if (client_ended_ && to_server_.empty() && !server_told_) {
    server_told_ = true;
    shutdown(server_.fd, SHUT_WR);
  }
}

void GuardedConnection::ReadServer(Clock::time_point now) {
  if (server_.fd < 0 || over() || !to_client_.empty()) return;
  const ssize_t got = recv(server_.fd, guard_->buffer, guard_->buffer_size, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    CloseServer(now);
    return;
  }
  SendToClient({guard_->buffer, static_cast<size_t>(got)}, now);
}

void GuardedConnection::SendToClient(absl::string_view bytes,
                                     Clock::time_point now) {
  if (over()) return;
  const bool kept = !to_client_.empty();
  if (kept) bytes = to_client_;
  while (!bytes.empty()) {
    const ssize_t sent = wire_.Write(bytes);
    if (sent == ClientWire::kBroken) {
      state_ = State::kOver;
      return;
    }
    if (sent == ClientWire::kLater) break;
    taken_ = now;
    sent_.Walk(bytes.substr(0, static_cast<size_t>(sent)));
    for (const uint32_t stream : sent_.ended()) EndCall(stream);
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  if (!kept) taken_ = now;
  if (kept) {
    to_client_.erase(0, to_client_.size() - bytes.size());
    if (to_client_.empty()) to_client_.shrink_to_fit();
  } else {
    to_client_.assign(bytes.data(), bytes.size());
  }
  FinishClosing(now);
}

void GuardedConnection::End(absl::string_view reason, Clock::time_point now) {
  guard_->ended(peer_, reason);
  // In the middle of a frame, nothing can be said.
  if (!walker_.has_preface() || !to_client_.empty() || !sent_.at_boundary()) {
    state_ = State::kOver;
    return;
  }
  std::string last;
  if (sent_.at_start()) absl::StrAppend(&last, View(kSettings));
  absl::StrAppend(&last, View(kGoAway));
  SendToClient(last, now);
  if (!over()) CloseServer(now);
}

void GuardedConnection::CloseServer(Clock::time_point now) {
  Watch(&server_, 0);
  if (server_.fd >= 0) close(server_.fd);
  server_.fd = -1;
  to_server_.clear();
  calls_.Clear();
  guard_->turns->Leave(this);
  in_turn_ = false;
  state_ = State::kClosing;
  until_ = now + guard_->times.last_bytes;
  FinishClosing(now);
}

void GuardedConnection::FinishClosing(Clock::time_point now) {
  if (state_ != State::kClosing || !to_client_.empty() || client_told_) return;
  client_told_ = true;
  wire_.EndWrites();
  until_ = now + guard_->times.close;
  if (client_ended_) state_ = State::kOver;
}

bool GuardedConnection::CheckTimes(Clock::time_point now) {
  if (state_ == State::kHandshake || state_ == State::kClosing) {
    if (now < until_) return false;
    if (state_ == State::kHandshake || !to_client_.empty()) {
      guard_->ended(peer_, state_ == State::kHandshake
                               ? "TLS handshake not complete in time"
                               : "last bytes not read in time");
    }
    state_ = State::kOver;
    return true;
  }
  const auto since = walker_.incomplete_since();
  // While nothing is read, the end of a header may wait in the socket.
  if (!ReadsClient()) held_up_ = now;
  if (since.has_value() &&
      now - std::max(*since, held_up_) >= guard_->times.header) {
    End(walker_.has_preface() ? "header not complete in time"
                              : "preface not complete in time",
        now);
    WatchBoth();
    return true;
  }
  if (!to_client_.empty() && now - taken_ >= guard_->times.unread) {
    End("answers not read in time", now);
    return true;
  }
  return false;
}

void GuardedConnection::Watch(Side* side, uint32_t interest) {
  if (side->interest == interest || side->fd < 0) return;
  epoll_event event{};
  event.events = interest;
  event.data.ptr = side;
  const int change = interest == 0         ? EPOLL_CTL_DEL
                     : side->interest == 0 ? EPOLL_CTL_ADD
                                           : EPOLL_CTL_MOD;
  if (epoll_ctl(guard_->epoll, change, side->fd, &event) != 0) {
    state_ = State::kOver;
  }
  side->interest = interest;
}

bool GuardedConnection::ReadsClient() const {
  if (client_ended_ || !to_server_.empty() || in_turn_) return false;
  // Who takes no answers asks for no more. At the end, its own end matters.
  return to_client_.empty() || state_ == State::kClosing;
}

void GuardedConnection::WatchBoth() {
  if (over()) return;
  const bool reads = ReadsClient();
  const bool writes = !to_client_.empty() || wire_.wants_write();
  Watch(&client_,
        (reads ? uint32_t{EPOLLIN} : 0) | (writes ? uint32_t{EPOLLOUT} : 0));
  // A side that nothing is wanted from is not watched, as the kernel tells of
  // an end again and again.
  Watch(&server_, (to_client_.empty() ? uint32_t{EPOLLIN} : 0) |
                      (to_server_.empty() ? 0 : uint32_t{EPOLLOUT}));
}

}  // namespace pipeloom::service
