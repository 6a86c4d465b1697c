// Sockets that listen on an address as gRPC's targets name them.
#ifndef PIPELOOM_SERVICE_GUARD_LISTENER_H_
#define PIPELOOM_SERVICE_GUARD_LISTENER_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pipeloom::service {

// Closes its sockets, and deletes the file of a Unix socket, when it is
// destroyed.
class Listener {
 public:
  // Takes HOST:PORT (a name or an address, IPv6 in brackets; 0.0.0.0 and [::]
  // are all addresses of both kinds; port 0 is a free one), unix:PATH or
  // unix-abstract:NAME. A name may have several addresses: it listens on all
  // that the machine has, with one port. A Unix socket's file that nobody
  // listens on is replaced.
  // InvalidArgument: no such address. Unavailable: the port is taken, or the
  // address is not this machine's.
  static absl::StatusOr<Listener> Open(const std::string& address);
  // Returns InvalidArgument if an address has none of these forms.
  static absl::Status Check(const std::string& address);
  Listener() = default;
  ~Listener() { Close(); }
  Listener(Listener&& other) noexcept { *this = std::move(other); }
  Listener& operator=(Listener&& other) noexcept;

  void Close();

  // Non-blocking sockets.
  const std::vector<int>& sockets() const { return sockets_; }
  int port() const { return port_; }  // 1 for a Unix socket.

 private:
  absl::Status OpenUnix(const std::string& address);
  absl::Status OpenHost(const std::string& address);

  std::vector<int> sockets_{};
  int port_ = 0;
  std::string path_{};  // A file to delete at the end.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_LISTENER_H_
