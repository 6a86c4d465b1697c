// Stream sockets between the processes of a run: listening, connecting,
// reading what is there and writing what fits. No call blocks for longer than
// its deadline. Errors are Unavailable with the system's message, unless a
// function says otherwise.
#ifndef PIPELOOM_RUNTIME_PROCESS_TCP_SOCKET_H_
#define PIPELOOM_RUNTIME_PROCESS_TCP_SOCKET_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// The owner of a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Socket();

  int file() const { return file_; }
  bool is_open() const { return file_ >= 0; }
  void Close();

 private:
  int file_ = -1;
};

// Listens on a free port, on 127.0.0.1 only or on all addresses.
absl::StatusOr<Socket> Listen(bool loopback_only);
absl::StatusOr<int32_t> PortOf(const Socket& listener);
// Returns the IPv4 addresses at which others may reach this host, without those
// of the loopback interface.
std::vector<std::string> HostAddresses();

// Accept and open a connection. DeadlineExceeded: nobody connected, or nobody
// answered.
absl::StatusOr<Socket> Accept(const Socket& listener, WallTime deadline);
absl::StatusOr<Socket> ConnectTo(const std::string& address, int32_t port,
                                 WallTime deadline);

// Write or read all bytes. DeadlineExceeded: the other side was silent.
absl::Status WriteAll(const Socket& socket, absl::string_view bytes,
                      WallTime deadline);
absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t size,
                                        WallTime deadline);

enum class ReadResult { kOpen, kClosed };
// Appends all bytes that are there to `into`. kClosed: the peer has closed or
// reset the connection.
ReadResult ReadSome(const Socket& socket, std::string* into);
// Writes as many bytes as fit and removes them from the front of `from`.
// kClosed: as for ReadSome.
ReadResult WriteSome(const Socket& socket, std::string* from);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_TCP_SOCKET_H_
