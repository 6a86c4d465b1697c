// The whole service in one object: core, gRPC server with health checking and
// reflection, metrics.
#ifndef PIPELOOM_SERVICE_RPC_SERVER_H_
#define PIPELOOM_SERVICE_RPC_SERVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "service/core/planner_core.h"
#include "service/os/log.h"

namespace pipeloom::service {

struct ServerOptions {
  CoreOptions core{};
  std::string listen = "127.0.0.1:50551";  // Port 0 takes a free one.
  // PEM texts; both or neither. Empty: no TLS.
  std::string tls_certificate{};
  std::string tls_key{};
  std::string token{};        // Empty: callers need none.
  int32_t metrics_port = -1;  // On 127.0.0.1; 0 takes a free one; -1: none.
  Bytes max_message{int64_t{64} << 20};
  LogLevel log_level = LogLevel::kInfo;
  Log::Sink log{};
};

class Server {
 public:
  // Starts a server. Unavailable: a port is taken. InvalidArgument: a
  // certificate without its key, or a key without its certificate.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // Stops without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  int metrics_port() const;  // -1: none.

  // Refuses new work, reports this to health checks, finishes plans that calls
  // wait for within `grace` and stops.
  void Stop(std::chrono::nanoseconds grace);

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_SERVER_H_
