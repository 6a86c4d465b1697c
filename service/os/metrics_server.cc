#include "service/os/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::service {
namespace {

constexpr int kPatienceMs = 2000;

bool WaitFor(int fd, short events, int milliseconds) {
  pollfd entry{fd, events, 0};
  return poll(&entry, 1, milliseconds) > 0;
}

void SendAll(int connection, absl::string_view text) {
  while (!text.empty() && WaitFor(connection, POLLOUT, kPatienceMs)) {
    const ssize_t sent =
        send(connection, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    text.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    int port, std::function<std::string()> text) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("socket: ", strerror(errno)));
  }
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, plain, size) != 0 || listen(fd, 16) != 0 ||
      getsockname(fd, plain, &size) != 0) {
    const std::string reason = strerror(errno);
    close(fd);
    return absl::UnavailableError(absl::StrFormat(
        "cannot listen on 127.0.0.1:%d for metrics: %s", port, reason));
  }
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(fd, ntohs(address.sin_port), std::move(text)));
}

MetricsServer::MetricsServer(int socket, int port,
                             std::function<std::string()> text)
    : socket_(socket),
      port_(port),
      text_(std::move(text)),
      thread_([this](const std::stop_token& stop) { Serve(stop); }) {}

MetricsServer::~MetricsServer() {
  thread_.request_stop();
  shutdown(socket_, SHUT_RDWR);
  thread_.join();
  close(socket_);
}

void MetricsServer::Serve(const std::stop_token& stop) const {
  while (!stop.stop_requested()) {
    if (!WaitFor(socket_, POLLIN, 500)) continue;
    const int connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    Answer(connection);
    close(connection);
  }
}

void MetricsServer::Answer(int connection) const {
  std::string request;
  char buffer[2048];
  while (request.find("\r\n\r\n") == std::string::npos &&
         request.size() < 8192) {
    if (!WaitFor(connection, POLLIN, kPatienceMs)) return;
    const ssize_t got = recv(connection, buffer, sizeof(buffer), 0);
    if (got <= 0) return;
    request.append(buffer, static_cast<size_t>(got));
  }
  const bool known = absl::StartsWith(request, "GET /metrics ") ||
                     absl::StartsWith(request, "GET / ");
  const std::string body = known ? text_() : "see /metrics\n";
  SendAll(connection,
          absl::StrCat("HTTP/1.0 ", known ? "200 OK" : "404 Not Found",
                       "\r\nContent-Type: text/plain; version=0.0.4\r\n"
                       "Content-Length: ",
                       body.size(), "\r\nConnection: close\r\n\r\n", body));
}

}  // namespace pipeloom::service
