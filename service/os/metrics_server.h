// A minimal HTTP server that answers GET /metrics with text, one request per
// connection, on one thread. No connection waits for another: a caller that is
// slow to ask or to read is disconnected after five seconds.
#ifndef PIPELOOM_SERVICE_OS_METRICS_SERVER_H_
#define PIPELOOM_SERVICE_OS_METRICS_SERVER_H_

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace pipeloom::service {

class MetricsServer {
 public:
  // Starts a server on `address`, an IPv4 address such as 127.0.0.1, or 0.0.0.0
  // for all; port 0 takes a free port. InvalidArgument: it is no such address.
  // Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(
      const std::string& address, int port, std::function<std::string()> text);
  // Ends at once, whatever callers do.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  struct Connection {
    int fd = -1;
    std::chrono::steady_clock::time_point until{};
    std::string request{};
    std::string answer{};  // Not empty: what is left to send.
  };

  MetricsServer(int socket, int wake, int port,
                std::function<std::string()> text);
  void Serve(const std::stop_token& stop);
  void Accept();
  // Goes on with a connection that is ready; false if it is over.
  bool GoOn(Connection* connection) const;
  std::string Answer(const std::string& request) const;

  const int socket_;
  const int wake_;  // An eventfd that ends the waiting.
  const int port_;
  const std::function<std::string()> text_;
  std::list<Connection> connections_{};  // Used by the thread only.
  std::jthread thread_{};                // Last, as it uses all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_METRICS_SERVER_H_
