#include "service/rpc/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "service/guard/connection_guard.h"
#include "service/guard/credentials.h"
#include "service/os/descriptor_limit.h"
#include "service/os/metrics_server.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/library_log.h"
#include "service/rpc/rpc_server.h"
#include "service/rpc/standard_services.h"

namespace pipeloom::service {

struct Server::Parts {
  Parts(LogLevel level, Log::Sink sink) : log(level, std::move(sink)) {}

  Log log;
  LibraryLog library_log{&log};
  Metrics metrics{};
  std::unique_ptr<PlannerCore> core{};
  std::unique_ptr<GrpcService> service{};
  std::unique_ptr<HealthService> health{};
  std::unique_ptr<RpcServer> server{};
  std::unique_ptr<MetricsServer> metrics_server{};
  std::unique_ptr<TlsContexts> tls{};
  // Takes connections from the guard, which is destroyed first.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor{};
  std::unique_ptr<ConnectionGuard> guard{};
  int port = 0;
  bool stopped = false;
};

namespace {

constexpr size_t kLeastQuota = size_t{128} << 20;
constexpr int kMaxHeaders = 8192;            // Bytes of one call's headers.
constexpr int kIdleMs = 30 * 60 * 1000;      // 30 minutes.
constexpr int kAgeMs = 24 * 60 * 60 * 1000;  // A day.
constexpr int64_t kFewDescriptors = 4096;

void SetLimits(const ServerOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(
      static_cast<int>(options.max_message.count()));
  builder->SetMaxSendMessageSize(-1);
  // gRPC 1.51 checks a message's size only when all of it has arrived. The
  // quota bounds the memory of incoming messages of all callers together.
  grpc::ResourceQuota quota("requests");
  quota.Resize(std::max<size_t>(
      4 * static_cast<size_t>(options.max_message.count()), kLeastQuota));
  builder->SetResourceQuota(quota);
  // Compression is off, as gRPC unpacks a message before it checks the size:
  // 400 KB on the wire can be 400 MB in memory.
  for (const auto packed : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(packed, false);
  }
  // Half-open connections are detected and closed.
  // The probe of a connection's bandwidth sends a PING for every burst of
  // bytes, so for every call of a rank: two more frames, a timer and a change
  // of thread. Requests are small; a large one widens the window by itself.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(
      GRPC_ARG_MAX_CONCURRENT_STREAMS,
      static_cast<int>(options.limits.calls_of_connection));
  // A caller sends a token and little else. gRPC checks this at the end of a
  // header; the guard bounds one that does not end.
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaders);
  // Connections that never begin, are not used, or are very old are closed;
  // clients connect again by themselves.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kAgeMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 300'000);
}

}  // namespace

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Stop(std::chrono::nanoseconds(0)); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  auto parts = std::make_unique<Parts>(options.log_level, options.log);
  PIPELOOM_ASSIGN_OR_RETURN(parts->tls,
                            TlsContexts::Create(options.tls, &parts->log));
  WarnIfOthersMayRead(options.token_file, &parts->log);
  const int64_t descriptors = RaiseDescriptorLimit();
  if (descriptors < kFewDescriptors) {
    parts->log.Write(LogLevel::kWarning, "few_descriptors",
                     {{"limit", descriptors},
                      {"remedy", "ulimit -Hn, or LimitNOFILE of the unit"}});
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      parts->core,
      PlannerCore::Create(options.core, &parts->log, &parts->metrics));
  parts->server = std::make_unique<RpcServer>(options.limits);
  parts->service = std::make_unique<GrpcService>(
      parts->core.get(), &parts->metrics, options.token, parts->server.get());
  const std::vector<std::string> services = {
      "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
      GrpcService::kName};
  parts->health =
      std::make_unique<HealthService>(services, parts->server.get());
  AddReflection(services, parts->server.get());

  PIPELOOM_ASSIGN_OR_RETURN(
      parts->guard, ConnectionGuard::Listen(options.listen, options.guard,
                                            parts->tls.get(), &parts->log));
  parts->port = parts->guard->port();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  parts->acceptor = AddConnections(&builder);
  if (!parts->server->Start(&builder)) {
    return absl::UnavailableError("gRPC could not start a server");
  }
  parts->guard->Start(
      [acceptor = parts->acceptor.get()](int fd) { HandOver(acceptor, fd); });
  if (options.metrics_port >= 0) {
    Parts* p = parts.get();
    PIPELOOM_ASSIGN_OR_RETURN(
        parts->metrics_server,
        MetricsServer::Start(options.metrics_listen, options.metrics_port, [p] {
          return p->metrics.Text(p->core->gauges());
        }));
  }
  parts->log.Write(LogLevel::kInfo, "listening",
                   {{"address", options.listen},
                    {"port", int64_t{parts->port}},
                    {"tls", int64_t{options.tls.on()}},
                    {"token", int64_t{!options.token.empty()}}});
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

int Server::port() const { return parts_->port; }

int Server::metrics_port() const {
  return parts_->metrics_server == nullptr ? -1
                                           : parts_->metrics_server->port();
}

void Server::Stop(std::chrono::nanoseconds grace) {
  if (parts_->stopped) return;
  parts_->stopped = true;
  parts_->health->SetServing(false);
  parts_->log.Write(LogLevel::kInfo, "stopping");
  parts_->guard->StopAccepting();
  // The last of the grace is for answers on their way, and for ending thousands
  // of connections. Streams have no end of their own, and gRPC waits for
  // clients that do not read.
  using std::chrono::milliseconds;
  const auto last = std::min(
      std::chrono::duration_cast<milliseconds>(grace) / 4, milliseconds(2500));
  parts_->core->Drain(grace - last);
  parts_->guard->CloseAfter(
      std::clamp(last, milliseconds(500), milliseconds(1000)));
  parts_->server->Stop(std::chrono::milliseconds(200));
  parts_->guard->Stop(std::chrono::milliseconds(500));
  parts_->metrics_server.reset();
  parts_->service.reset();
  parts_->server.reset();
  parts_->core.reset();
  parts_->log.Write(LogLevel::kInfo, "stopped");
}

}  // namespace pipeloom::service
