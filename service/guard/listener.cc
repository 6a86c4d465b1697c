#include "service/guard/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

constexpr int kBacklog = 4096;  // The kernel's limit may be smaller.
constexpr int kTries = 10;      // For a free port that is free for IPv4 and 6.

absl::Status CannotListen(const std::string& address,
                          const std::string& reason) {
  return absl::UnavailableError(
      absl::StrFormat("cannot listen on %s: %s; the port is taken, or the "
                      "address is not this machine's",
                      address, reason));
}

struct HostAndPort {
  std::string host{};
  std::string port{};
};

absl::StatusOr<HostAndPort> Split(const std::string& address) {
  absl::string_view rest = address;
  for (const char* scheme : {"ipv4:", "ipv6:", "dns:///", "dns:"}) {
    if (absl::ConsumePrefix(&rest, scheme)) break;
  }
  const size_t colon = rest.rfind(':');
  absl::string_view host = rest.substr(0, colon);
  int port = -1;
  const bool brackets =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port < 0 ||
      port > 65535 || (!brackets && absl::StrContains(host, ":"))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot listen on \"%s\": it must be HOST:PORT with a port from 0 to "
        "65535 (IPv6 in brackets), unix:PATH or unix-abstract:NAME",
        address));
  }
  if (brackets) host = host.substr(1, host.size() - 2);
  return HostAndPort{std::string(host), std::to_string(port)};
}

bool IsUnix(absl::string_view address) {
  return absl::StartsWith(address, "unix:") ||
         absl::StartsWith(address, "unix-abstract:");
}

// Returns the path or name of a Unix socket. REQUIRES: IsUnix(address).
absl::StatusOr<absl::string_view> SplitUnix(const std::string& address) {
  absl::string_view name = address;
  if (absl::ConsumePrefix(&name, "unix:")) {
    if (absl::StartsWith(name, "///")) name.remove_prefix(2);
  } else {
    absl::ConsumePrefix(&name, "unix-abstract:");
  }
  // Both kinds need one byte more: a zero at the end, or at the beginning.
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (name.empty() || name.size() > kMost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot listen on \"%s\": the name must have 1 to %d bytes", address,
        kMost));
  }
  return name;
}

// Opens a socket that listens; -1 with errno if it cannot.
int OpenSocket(const sockaddr* address, socklen_t size, bool both) {
  const int fd =
      socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int on = 1;
  const int only = both ? 0 : 1;
  const bool inet = address->sa_family != AF_UNIX;
  if ((inet &&
       setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) ||
      (address->sa_family == AF_INET6 &&
       setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only)) != 0) ||
      bind(fd, address, size) != 0 || listen(fd, kBacklog) != 0) {
    const int reason = errno;
    close(fd);
    errno = reason;
    return -1;
  }
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

void SetPort(sockaddr* address, int port) {
  const auto wire = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = wire;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = wire;
  }
}

// Deletes the file of a socket that nobody listens on.
void DeleteIfUnused(const sockaddr_un& address, socklen_t size) {
  struct stat info {};
  if (stat(address.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 &&
      errno == ECONNREFUSED) {
    unlink(address.sun_path);
  }
  close(fd);
}

}  // namespace

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(sockets_, other.sockets_);
  std::swap(port_, other.port_);
  std::swap(path_, other.path_);
  return *this;
}

void Listener::Close() {
  for (const int fd : sockets_) close(fd);
  sockets_.clear();
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
}

absl::StatusOr<Listener> Listener::Open(const std::string& address) {
  Listener listener;
  PIPELOOM_RETURN_IF_ERROR(IsUnix(address) ? listener.OpenUnix(address)
                                           : listener.OpenHost(address));
  return listener;
}

absl::Status Listener::Check(const std::string& address) {
  return IsUnix(address) ? SplitUnix(address).status()
                         : Split(address).status();
}

absl::Status Listener::OpenUnix(const std::string& address) {
  PIPELOOM_ASSIGN_OR_RETURN(const absl::string_view name, SplitUnix(address));
  const bool file = absl::StartsWith(address, "unix:");
  sockaddr_un bound{};
  bound.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), bound.sun_path + (file ? 0 : 1));
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
  if (file) DeleteIfUnused(bound, size);
  const int fd =
      OpenSocket(reinterpret_cast<const sockaddr*>(&bound), size, false);
  if (fd < 0) return CannotListen(address, strerror(errno));
  sockets_.push_back(fd);
  port_ = 1;
  if (file) path_ = std::string(name);
  return absl::OkStatus();
}

absl::Status Listener::OpenHost(const std::string& address) {
  PIPELOOM_ASSIGN_OR_RETURN(const HostAndPort wanted, Split(address));
  const bool everywhere = wanted.host.empty() || wanted.host == "0.0.0.0" ||
                          wanted.host == "::" || wanted.host == "*";
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(everywhere ? nullptr : wanted.host.c_str(),
                                wanted.port.c_str(), &hints, &found);
  if (error != 0) return CannotListen(address, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  std::vector<const addrinfo*> order;
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    order.push_back(next);
  }
  // A socket for both kinds of addresses comes first; where it can be had, the
  // others are not needed.
  if (everywhere) {
    std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) {
      return a->ai_family > b->ai_family;
    });
  }
  std::string reason = "it has no address";
  for (int tries = 0; tries < kTries; ++tries) {
    port_ = 0;
    bool again = false;
    for (const addrinfo* next : order) {
      if (port_ > 0) SetPort(next->ai_addr, port_);
      const int fd = OpenSocket(next->ai_addr, next->ai_addrlen, everywhere);
      if (fd >= 0) {
        sockets_.push_back(fd);
        port_ = PortOf(fd);
        if (everywhere) return absl::OkStatus();
        continue;
      }
      reason = strerror(errno);
      if (errno == EADDRINUSE) {
        again = wanted.port == "0" && port_ > 0;
        Close();
        if (!again) return CannotListen(address, reason);
        for (const addrinfo* each : order) SetPort(each->ai_addr, 0);
        break;
      }
    }
    if (!again) break;
  }
  if (sockets_.empty()) return CannotListen(address, reason);
  return absl::OkStatus();
}

}  // namespace pipeloom::service
