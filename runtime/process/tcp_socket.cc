#include "runtime/process/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

absl::Status SystemError(const std::string& what, int error) {
  return absl::UnavailableError(
      absl::StrFormat("%s: %s", what, std::strerror(error)));
}

// Waits until the socket is ready for `events`; returns false at the deadline.
absl::StatusOr<bool> Await(int file, short events, WallTime deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - WallNow());
    if (left.count() < 0) return false;
    pollfd entry{.fd = file, .events = events, .revents = 0};
    const int ready = poll(
        &entry, 1, static_cast<int>(std::min<int64_t>(left.count() + 1, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return SystemError("poll", errno);
  }
}

absl::Status MakeAsynchronous(int file) {
  const int one = 1;
  if (fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK) < 0 ||
      setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) < 0) {
    return SystemError("cannot set up a connection", errno);
  }
  return absl::OkStatus();
}

}  // namespace

Socket::~Socket() { Close(); }

void Socket::Close() {
  if (file_ >= 0) close(std::exchange(file_, -1));
}

absl::StatusOr<Socket> Listen(bool loopback_only) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return SystemError("no socket", errno);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  if (bind(socket.file(), reinterpret_cast<const sockaddr*>(&at), sizeof at) <
          0 ||
      listen(socket.file(), 1024) < 0) {
    return SystemError("cannot listen for the other ranks", errno);
  }
  return socket;
}

absl::StatusOr<int32_t> PortOf(const Socket& listener) {
  sockaddr_in at{};
  socklen_t size = sizeof at;
  if (getsockname(listener.file(), reinterpret_cast<sockaddr*>(&at), &size) <
      0) {
    return SystemError("a socket without a port", errno);
  }
  return ntohs(at.sin_port);
}

std::vector<std::string> HostAddresses() {
  std::vector<std::string> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    const auto& at = *reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    if (ntohl(at.sin_addr.s_addr) >> 24 == 127) continue;
    char text[INET_ADDRSTRLEN] = {};
    if (inet_ntop(AF_INET, &at.sin_addr, text, sizeof text) != nullptr) {
      addresses.emplace_back(text);
    }
  }
  freeifaddrs(first);
  return addresses;
}

absl::StatusOr<Socket> Accept(const Socket& listener, WallTime deadline) {
  PIPELOOM_ASSIGN_OR_RETURN(const bool ready,
                            Await(listener.file(), POLLIN, deadline));
  if (!ready) return absl::DeadlineExceededError("nobody connects");
  Socket socket(accept4(listener.file(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.is_open()) return SystemError("cannot accept", errno);
  PIPELOOM_RETURN_IF_ERROR(MakeAsynchronous(socket.file()));
  return socket;
}

absl::StatusOr<Socket> ConnectTo(const std::string& address, int32_t port,
                                 WallTime deadline) {
  const std::string name = absl::StrFormat("%s:%d", address, port);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &at.sin_addr) != 1) {
    return absl::UnavailableError(name + ": no IPv4 address");
  }
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return SystemError("no socket", errno);
  PIPELOOM_RETURN_IF_ERROR(MakeAsynchronous(socket.file()));
  if (connect(socket.file(), reinterpret_cast<const sockaddr*>(&at),
              sizeof at) < 0 &&
      errno != EINPROGRESS) {
    return SystemError(name, errno);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const bool ready,
                            Await(socket.file(), POLLOUT, deadline));
  if (!ready) return absl::DeadlineExceededError(name + " does not answer");
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.file(), SOL_SOCKET, SO_ERROR, &error, &size) < 0 ||
      error != 0) {
    return SystemError(name, error != 0 ? error : errno);
  }
  return socket;
}

absl::Status WriteAll(const Socket& socket, absl::string_view bytes,
                      WallTime deadline) {
  std::string rest(bytes);
  while (!rest.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(const bool ready,
                              Await(socket.file(), POLLOUT, deadline));
    if (!ready) return absl::DeadlineExceededError("the other side is silent");
    if (WriteSome(socket, &rest) == ReadResult::kClosed) {
      return absl::UnavailableError("the other side closed the connection");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t size,
                                        WallTime deadline) {
  std::string bytes(size, '\0');
  for (size_t have = 0; have < size;) {
    PIPELOOM_ASSIGN_OR_RETURN(const bool ready,
                              Await(socket.file(), POLLIN, deadline));
    if (!ready) return absl::DeadlineExceededError("the other side is silent");
    const ssize_t n = recv(socket.file(), bytes.data() + have, size - have, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      return absl::UnavailableError("the other side closed the connection");
    }
    if (n > 0) have += static_cast<size_t>(n);
  }
  return bytes;
}

ReadResult ReadSome(const Socket& socket, std::string* into) {
  char buffer[64 << 10];
  while (true) {
    const ssize_t n = recv(socket.file(), buffer, sizeof buffer, 0);
    if (n > 0) {
      into->append(buffer, static_cast<size_t>(n));
      if (static_cast<size_t>(n) < sizeof buffer) return ReadResult::kOpen;
      continue;
    }
    if (n == 0) return ReadResult::kClosed;
    if (errno == EINTR) continue;
    return errno == EAGAIN ? ReadResult::kOpen : ReadResult::kClosed;
  }
}

ReadResult WriteSome(const Socket& socket, std::string* from) {
  size_t written = 0;
  ReadResult result = ReadResult::kOpen;
  while (written < from->size()) {
    const ssize_t n = send(socket.file(), from->data() + written,
                           from->size() - written, MSG_NOSIGNAL);
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      if (errno != EAGAIN) result = ReadResult::kClosed;
      break;
    }
  }
  from->erase(0, written);
  return result;
}

}  // namespace pipeloom::runtime
