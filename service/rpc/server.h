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
#include "service/guard/connection_guard.h"
#include "service/guard/credentials.h"
#include "service/os/log.h"
#include "service/rpc/rpc_server.h"

namespace pipeloom::service {

struct ServerOptions {
  CoreOptions core{};
  std::string listen = "127.0.0.1:50551";  // Port 0 takes a free one.
  TlsOptions tls{};
  std::string token{};       // Empty: callers need none.
  std::string token_file{};  // Where it is from, if others must not read it.
  // An IPv4 address, and a port: 0 takes a free one; -1: no metrics.
  std::string metrics_listen = "127.0.0.1";
  int32_t metrics_port = -1;
  Bytes max_message{int64_t{64} << 20};
  RpcLimits limits{};
  GuardLimits guard{};
  LogLevel log_level = LogLevel::kInfo;
  Log::Sink log{};
};

class Server {
 public:
  // Starts a server. Raises the process's limit of open descriptors.
  // Unavailable: a port is taken, or the state folder cannot be read.
  // InvalidArgument: `listen` is no address, or certificate and key do not fit
  // together, or one is missing.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // Stops without grace.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  int metrics_port() const;  // -1: none.

  // Accepts no connection any more, refuses new work, reports this to health
  // checks, finishes plans that calls wait for within `grace` and stops.
  void Stop(std::chrono::nanoseconds grace);

 private:
  struct Parts;
  explicit Server(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_SERVER_H_
