// A minimal HTTP server that answers GET /metrics with text, one request per
// connection, on one thread. Clients that send nothing are disconnected after
// two seconds, so that a half-open connection blocks others only briefly.
#ifndef PIPELOOM_SERVICE_OS_METRICS_SERVER_H_
#define PIPELOOM_SERVICE_OS_METRICS_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace pipeloom::service {

class MetricsServer {
 public:
  // Starts a server on 127.0.0.1; port 0 takes a free port. Unavailable: the
  // port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      int port, std::function<std::string()> text);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  MetricsServer(int socket, int port, std::function<std::string()> text);
  void Serve(const std::stop_token& stop) const;
  void Answer(int connection) const;

  int socket_;
  int port_;
  std::function<std::string()> text_;
  std::jthread thread_{};  // Last, as it uses all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_METRICS_SERVER_H_
