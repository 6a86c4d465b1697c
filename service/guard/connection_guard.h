// Accepts the connections of clients and stands between them and gRPC, which in
// release 1.51 can be brought down by one connection: it keeps a header that
// never ends (CVE-2023-33953), and stops accepting for good once descriptors
// ran out (CVE-2023-4785).
//
// One thread listens, ends TLS, looks at frames (service/guard/frame_walker.h)
// and passes bytes on (service/guard/guarded_connection.h). A connection that
// has sent its preface is given to gRPC as one end of a socket pair. gRPC thus
// gets no header above the limit, accepts nothing and encrypts nothing. It sees
// each connection under a name of its own, "unix-abstract:pipeloom:...", which
// ends with the client's address.
#ifndef PIPELOOM_SERVICE_GUARD_CONNECTION_GUARD_H_
#define PIPELOOM_SERVICE_GUARD_CONNECTION_GUARD_H_

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "service/guard/call_turns.h"
#include "service/guard/credentials.h"
#include "service/guard/frame_walker.h"
#include "service/guard/guarded_connection.h"
#include "service/guard/listener.h"
#include "service/os/log.h"

namespace pipeloom::service {

struct GuardLimits {
  // At a time; fewer if the process may not have three descriptors for each.
  int64_t connections = 16'384;
  // Those of one IPv4 address, or of 2^64 IPv6 addresses with one beginning; 0:
  // half of all. Unix sockets have no address and no such limit.
  int64_t connections_of_address = 0;
  FrameLimits frames{};
  GuardTimes times{};
  TurnLimits turns{};
};

// Threads: any, one at a time.
class ConnectionGuard {
 public:
  using HandOver = std::function<void(int fd)>;

  // Begins to listen, without accepting yet. A null `tls`: none. Errors are
  // those of Listener::Open. REQUIRES: `tls` and `log` outlive the guard.
  static absl::StatusOr<std::unique_ptr<ConnectionGuard>> Listen(
      const std::string& address, const GuardLimits& limits,
      const TlsContexts* tls, Log* log);
  ~ConnectionGuard();
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;

  int port() const { return port_; }

  // Begins to accept. `hand_over` gets a socket and its ownership for each
  // connection, on the guard's thread. REQUIRES: called once.
  void Start(HandOver hand_over);
  // Closes the listening sockets; connections go on.
  void StopAccepting();
  // Closes connections that are still open after this time, so that a server
  // which waits for its clients has an end.
  void CloseAfter(std::chrono::milliseconds time);
  // Stops accepting, waits at most `patience` until all that the server sent
  // has been passed on and it has closed its connections, and closes all.
  void Stop(std::chrono::milliseconds patience);

  // Connections at present.
  int64_t connections() const {
    const MutexLock lock(&mutex_);
    return open_;
  }

 private:
  using Clock = GuardedConnection::Clock;
  using Side = GuardedConnection::Side;
  enum class Want { kAccept, kServe, kEnd };

  ConnectionGuard(Listener listener, const GuardLimits& limits,
                  const TlsContexts* tls, Log* log);
  void Serve();
  void WatchListeners(bool accepts);
  void Accept(int listener, Clock::time_point now);
  // Takes and closes a connection with the spare descriptor. Returns false if
  // that cannot be done.
  bool Shed(int listener);
  void Admit(int fd, const sockaddr_storage& from);
  void Remove(GuardedConnection* connection);
  // Logs that a connection was ended, at most ten times a second.
  void Tell(const std::string& peer, absl::string_view reason);
  // Does what other threads want, and tells them how far it is.
  void Report(Clock::time_point now);
  void SetWant(Want want);

  const GuardLimits limits_;
  const TlsContexts* const tls_;
  Log* const log_;
  Listener listener_;
  const int port_;
  int64_t most_ = 0;
  int64_t most_of_address_ = 0;
  int wake_ = -1;
  Side wake_side_{};

  // Used by the guard's thread alone, once it runs.
  CallTurns turns_;
  GuardedConnection::Guard guard_{};
  std::vector<char> buffer_;
  std::vector<Side> listeners_{};
  int spare_ = -1;  // A descriptor to have when there are no others.
  bool accepts_ = false;
  Clock::time_point pause_{};  // Until then nothing is accepted.
  std::vector<std::unique_ptr<GuardedConnection>> all_{};
  std::vector<std::unique_ptr<GuardedConnection>> removed_{};
  std::map<std::string, int64_t> of_address_{};
  int64_t next_name_ = 0;
  Clock::time_point second_{};
  int64_t told_ = 0;
  int64_t left_out_ = 0;

  mutable Mutex mutex_{};
  CondVar changed_{};
  Want want_ ABSL_GUARDED_BY(mutex_) = Want::kAccept;
  Clock::time_point close_at_ ABSL_GUARDED_BY(mutex_) =
      Clock::time_point::max();
  bool listens_ ABSL_GUARDED_BY(mutex_) = true;
  bool has_answers_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::jthread thread_{};  // Last.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_CONNECTION_GUARD_H_
