// Stream sockets between the processes of a run: listening, connecting,
// reading what is there and writing what fits. No call here blocks for longer
// than its deadline. Errors are Unavailable with the system's words.
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

// Owns a file descriptor.
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

// Listens on a free port; of 127.0.0.1 only, or of all addresses.
absl::StatusOr<Socket> Listen(bool loopback_only);
absl::StatusOr<int32_t> PortOf(const Socket& listener);
// This host's addresses as others may reach it, without 127.0.0.1.
std::vector<std::string> HostAddresses();

// DeadlineExceeded: nobody came, or answered.
absl::StatusOr<Socket> Accept(const Socket& listener, WallTime deadline);
absl::StatusOr<Socket> ConnectTo(const std::string& address, int32_t port,
                                 WallTime deadline);

// All of it, until the deadline.
absl::Status WriteAll(const Socket& socket, absl::string_view bytes,
                      WallTime deadline);
absl::StatusOr<std::string> ReadExactly(const Socket& socket, size_t size,
                                        WallTime deadline);

enum class ReadResult { kOpen, kClosed };
// Appends what is there. kClosed: the peer has closed or reset it.
ReadResult ReadSome(const Socket& socket, std::string* into);
// Writes what fits and takes it off the front. kClosed as above.
ReadResult WriteSome(const Socket& socket, std::string* from);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_TCP_SOCKET_H_
