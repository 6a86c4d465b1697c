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
#include "service/os/metrics_server.h"
#include "service/rpc/grpc_service.h"
#include "service/rpc/rpc_server.h"
#include "service/rpc/standard_services.h"

namespace pipeloom::service {

struct Server::Parts {
  Parts(LogLevel level, Log::Sink sink) : log(level, std::move(sink)) {}

  Log log;
  Metrics metrics{};
  std::unique_ptr<PlannerCore> core{};
  std::unique_ptr<GrpcService> service{};
  std::unique_ptr<HealthService> health{};
  std::unique_ptr<RpcServer> server{};
  std::unique_ptr<MetricsServer> metrics_server{};
  int port = 0;
  bool stopped = false;
};

namespace {

constexpr size_t kLeastQuota = size_t{128} << 20;

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
  // A second service on the same port is refused instead of sharing it.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Half-open connections are detected and closed.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4096);
}

}  // namespace

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() { Stop(std::chrono::nanoseconds(0)); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "TLS needs a certificate and its key; one of them is missing");
  }
  auto parts = std::make_unique<Parts>(options.log_level, options.log);
  PIPELOOM_ASSIGN_OR_RETURN(
      parts->core,
      PlannerCore::Create(options.core, &parts->log, &parts->metrics));
  parts->server = std::make_unique<RpcServer>();
  parts->service = std::make_unique<GrpcService>(
      parts->core.get(), &parts->metrics, options.token, parts->server.get());
  const std::vector<std::string> services = {
      "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
      GrpcService::kName};
  parts->health =
      std::make_unique<HealthService>(services, parts->server.get());
  AddReflection(services, parts->server.get());

  std::shared_ptr<grpc::ServerCredentials> credentials =
      grpc::InsecureServerCredentials();
  if (!options.tls_certificate.empty()) {
    grpc::SslServerCredentialsOptions tls;
    tls.pem_key_cert_pairs.push_back(
        {options.tls_key, options.tls_certificate});
    credentials = grpc::SslServerCredentials(tls);
  }
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  builder.AddListeningPort(options.listen, credentials, &parts->port);
  if (!parts->server->Start(&builder) || parts->port == 0) {
    return absl::UnavailableError(absl::StrFormat(
        "cannot listen on %s: the port is taken, the address is not this "
        "machine's, or the certificate and key do not fit",
        options.listen));
  }
  if (options.metrics_port >= 0) {
    Parts* p = parts.get();
    PIPELOOM_ASSIGN_OR_RETURN(parts->metrics_server,
                              MetricsServer::Start(options.metrics_port, [p] {
                                return p->metrics.Text(p->core->gauges());
                              }));
  }
  parts->log.Write(LogLevel::kInfo, "listening",
                   {{"address", options.listen},
                    {"port", int64_t{parts->port}},
                    {"tls", int64_t{!options.tls_key.empty()}},
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
  parts_->core->Drain(grace);
  // Streams have no end of their own.
  parts_->server->Stop(std::chrono::milliseconds(200));
  parts_->metrics_server.reset();
  parts_->service.reset();
  parts_->server.reset();
  parts_->core.reset();
  parts_->log.Write(LogLevel::kInfo, "stopped");
}

}  // namespace pipeloom::service
