// A client's socket, with TLS or without.
#ifndef PIPELOOM_SERVICE_GUARD_CLIENT_WIRE_H_
#define PIPELOOM_SERVICE_GUARD_CLIENT_WIRE_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <cstddef>

#include "absl/strings/string_view.h"

namespace pipeloom::service {

// Owns the socket, which must not block. No method blocks; a method that cannot
// go on is called again when the socket is ready for what `wants_write` and the
// caller's own needs say. Threads: one at a time, which ignores or blocks
// SIGPIPE.
class ClientWire {
 public:
  // Results that are no number of bytes.
  static constexpr ssize_t kEnd = 0;     // The client sends no more.
  static constexpr ssize_t kLater = -1;  // When the socket is ready.
  static constexpr ssize_t kBroken = -2;

  // A null context: no TLS.
  ClientWire(int fd, SSL_CTX* context);
  ~ClientWire();
  ClientWire(const ClientWire&) = delete;
  ClientWire& operator=(const ClientWire&) = delete;

  int fd() const { return fd_; }
  // Whether TLS has something to send before it can go on.
  bool wants_write() const { return wants_write_; }

  // Goes on with the handshake. Returns 1 when it is complete, at once without
  // TLS; kLater or kBroken.
  ssize_t Handshake();
  // Reads up to `size` bytes. REQUIRES: the handshake is complete, and `size`
  // is 16 KiB or more.
  ssize_t Read(char* to, size_t size);
  // Writes some of `bytes`, which are not empty. Never returns kEnd.
  ssize_t Write(absl::string_view bytes);
  // Tells the client that nothing more is sent.
  void EndWrites();

 private:
  // Says what a result of the TLS library means.
  ssize_t Meaning(int result);

  const int fd_;
  SSL* ssl_ = nullptr;
  bool broken_ = false;
  bool wants_write_ = false;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_CLIENT_WIRE_H_
