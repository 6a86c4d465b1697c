#include "service/guard/client_wire.h"

#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace pipeloom::service {
namespace {

constexpr size_t kRecord = size_t{16}
                           << 10;  // A record of TLS has at most this.

ssize_t Result(ssize_t bytes) {
  if (bytes >= 0) return bytes;
  return errno == EAGAIN || errno == EINTR ? ClientWire::kLater
                                           : ClientWire::kBroken;
}

}  // namespace

ClientWire::ClientWire(int fd, SSL_CTX* context) : fd_(fd) {
  if (context == nullptr) return;
  ssl_ = SSL_new(context);
  broken_ = ssl_ == nullptr || SSL_set_fd(ssl_, fd) != 1;
  if (!broken_) SSL_set_accept_state(ssl_);
}

ClientWire::~ClientWire() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  close(fd_);
}

ssize_t ClientWire::Meaning(int result) {
  wants_write_ = false;
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return kLater;
    case SSL_ERROR_WANT_WRITE:
      wants_write_ = true;
      return kLater;
    case SSL_ERROR_ZERO_RETURN:
      return kEnd;
    default:
      // The library must not be used any more for this connection.
      broken_ = true;
      ERR_clear_error();
      return kBroken;
  }
}

ssize_t ClientWire::Handshake() {
  if (broken_) return kBroken;
  if (ssl_ == nullptr) return 1;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result != 1) {
    const ssize_t meaning = Meaning(result);
    return meaning == kLater ? kLater : kBroken;
  }
  wants_write_ = false;
  // A client that names no protocol at all is not refused by the library.
  const unsigned char* name = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_, &name, &size);
  return size == 2 && name[0] == 'h' && name[1] == '2' ? 1 : kBroken;
}

ssize_t ClientWire::Read(char* to, size_t size) {
  if (broken_) return kBroken;
  if (ssl_ == nullptr) return Result(recv(fd_, to, size, 0));
  // This takes one record in full. The library reads none of the next one, so
  // that the socket stays ready for it.
  ERR_clear_error();
  const int got = SSL_read(ssl_, to, static_cast<int>(size));
  return got > 0 ? got : Meaning(got);
}

ssize_t ClientWire::Write(absl::string_view bytes) {
  if (broken_) return kBroken;
  if (ssl_ == nullptr) {
    return Result(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }
  size_t sent = 0;
  while (sent < bytes.size()) {
    ERR_clear_error();
    const int done =
        SSL_write(ssl_, bytes.data() + sent,
                  static_cast<int>(std::min(bytes.size() - sent, kRecord)));
    if (done <= 0) {
      const ssize_t meaning = Meaning(done);
      if (sent > 0) break;
      return meaning == kLater ? kLater : kBroken;
    }
    sent += static_cast<size_t>(done);
  }
  return static_cast<ssize_t>(sent);
}

void ClientWire::EndWrites() {
  if (ssl_ != nullptr && !broken_) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
    ERR_clear_error();
  }
  shutdown(fd_, SHUT_WR);
}

}  // namespace pipeloom::service
