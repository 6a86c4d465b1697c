// The server's certificate and key, and warnings about files with secrets.
#ifndef PIPELOOM_SERVICE_GUARD_CREDENTIALS_H_
#define PIPELOOM_SERVICE_GUARD_CREDENTIALS_H_

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "service/os/log.h"

namespace pipeloom::service {

// PEM texts, or the files that hold them; both or neither. All empty: no TLS.
struct TlsOptions {
  std::string certificate{};  // The chain, the server's own first.
  std::string key{};
  // Files are read again and again, so that a new certificate is used without a
  // restart.
  std::string certificate_file{};
  std::string key_file{};
  std::chrono::seconds reload_period{60};

  bool on() const { return !certificate.empty() || !certificate_file.empty(); }
};

// Contexts for TLS 1.2 and 1.3 with HTTP/2. Threads: any.
class TlsContexts {
 public:
  using Context = std::shared_ptr<SSL_CTX>;

  // Logs a warning if the certificate is not valid at present or ends within 14
  // days, and if others may read the key's file. Returns null if TLS is off.
  // InvalidArgument: the certificate or the key is missing or cannot be read,
  // or they do not fit together.
  static absl::StatusOr<std::unique_ptr<TlsContexts>> Create(
      const TlsOptions& options, Log* log);
  TlsContexts(const TlsContexts&) = delete;
  TlsContexts& operator=(const TlsContexts&) = delete;

  // Returns the context for a new connection: that of the newest certificate
  // and key which could be read and fit together.
  Context current() const {
    const MutexLock lock(&mutex_);
    return current_;
  }

 private:
  TlsContexts(const TlsOptions& options, Context context,
              const std::string& texts, Log* log);
  // Reads the files again and again, on a thread of its own.
  void Reload(const std::stop_token& stop, std::string texts);

  const TlsOptions options_;
  Log* const log_;
  mutable Mutex mutex_{};
  CondVar stopped_{};
  Context current_ ABSL_GUARDED_BY(mutex_);
  std::jthread thread_{};
};

// Logs a warning if others than the owner may read the file. An empty path, and
// one that cannot be looked at, is left alone.
void WarnIfOthersMayRead(const std::string& path, Log* log);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_CREDENTIALS_H_
