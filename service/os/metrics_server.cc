#include "service/os/metrics_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::service {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{5};
constexpr size_t kMaxConnections = 64;
constexpr size_t kMaxRequest = 8192;

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& address, int port, std::function<std::string()> text) {
  sockaddr_in bound{};
  bound.sin_family = AF_INET;
  bound.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address.c_str(), &bound.sin_addr) != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the metrics' address is \"%s\"; it must be an IPv4 address, such as "
        "127.0.0.1 or 0.0.0.0",
        address));
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int on = 1;
  socklen_t size = sizeof(bound);
  auto* plain = reinterpret_cast<sockaddr*>(&bound);
  if (fd < 0 || wake < 0 ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, plain, size) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, plain, &size) != 0) {
    const std::string reason = strerror(errno);
    if (fd >= 0) close(fd);
    if (wake >= 0) close(wake);
    return absl::UnavailableError(absl::StrFormat(
        "cannot listen on %s:%d for metrics: %s", address, port, reason));
  }
  return std::unique_ptr<MetricsServer>(
      new MetricsServer(fd, wake, ntohs(bound.sin_port), std::move(text)));
}

MetricsServer::MetricsServer(int socket, int wake, int port,
                             std::function<std::string()> text)
    : socket_(socket),
      wake_(wake),
      port_(port),
      text_(std::move(text)),
      thread_([this](const std::stop_token& stop) { Serve(stop); }) {}

MetricsServer::~MetricsServer() {
  thread_.request_stop();
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  for (const Connection& connection : connections_) close(connection.fd);
  close(socket_);
  close(wake_);
}

void MetricsServer::Accept() {
  while (connections_.size() < kMaxConnections) {
    const int fd =
        accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    connections_.push_back({.fd = fd, .until = Clock::now() + kPatience});
  }
}

void MetricsServer::Serve(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    // Callers beyond the limit wait in the listener's queue.
    const bool full = connections_.size() >= kMaxConnections;
    std::vector<pollfd> ready = {
        {wake_, POLLIN, 0},
        {socket_, static_cast<short>(full ? 0 : POLLIN), 0}};
    for (const Connection& c : connections_) {
      ready.push_back(
          {c.fd, static_cast<short>(c.answer.empty() ? POLLIN : POLLOUT), 0});
    }
    // Deadlines are looked at once a second.
    poll(ready.data(), ready.size(), connections_.empty() ? -1 : 1000);
    const Clock::time_point now = Clock::now();
    auto entry = ready.begin() + 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++entry) {
      const bool goes_on =
          now < it->until && (entry->revents == 0 || GoOn(&*it));
      if (goes_on) {
        ++it;
      } else {
        close(it->fd);
        it = connections_.erase(it);
      }
    }
    if (ready[1].revents != 0) {
      Accept();
      // Without free descriptors, accepting fails at once, again and again.
      if (errno == EMFILE || errno == ENFILE) poll(nullptr, 0, 100);
    }
  }
}

bool MetricsServer::GoOn(Connection* connection) const {
  if (connection->answer.empty()) {
    char buffer[2048];
    const ssize_t got = recv(connection->fd, buffer, sizeof(buffer), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection->request.append(buffer, static_cast<size_t>(got));
    const bool whole =
        connection->request.find("\r\n\r\n") != std::string::npos;
    if (!whole && connection->request.size() < kMaxRequest) return true;
    connection->answer = Answer(connection->request);
  }
  const ssize_t sent = send(connection->fd, connection->answer.data(),
                            connection->answer.size(), MSG_NOSIGNAL);
  if (sent < 0) return errno == EAGAIN || errno == EINTR;
  connection->answer.erase(0, static_cast<size_t>(sent));
  return !connection->answer.empty();
}

std::string MetricsServer::Answer(const std::string& request) const {
  const bool known = absl::StartsWith(request, "GET /metrics ") ||
                     absl::StartsWith(request, "GET / ");
  const std::string body = known ? text_() : "see /metrics\n";
  return absl::StrCat("HTTP/1.0 ", known ? "200 OK" : "404 Not Found",
                      "\r\nContent-Type: text/plain; version=0.0.4\r\n"
                      "Content-Length: ",
                      body.size(), "\r\nConnection: close\r\n\r\n", body);
}

}  // namespace pipeloom::service
