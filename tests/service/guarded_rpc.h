// A server behind a connection guard, for tests: a gRPC server, or none but the
// sockets that the guard hands over.
#ifndef PIPELOOM_TESTS_SERVICE_GUARDED_RPC_H_
#define PIPELOOM_TESTS_SERVICE_GUARDED_RPC_H_

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "service/guard/connection_guard.h"
#include "tests/service/rpc_by_hand.h"

namespace pipeloom::testing {

// Lines of a log. Threads: any.
class Lines {
 public:
  service::Log::Sink sink() {
    return [this](absl::string_view line) {
      const MutexLock lock(&mutex_);
      text_.append(line.data(), line.size());
    };
  }
  std::string text() const {
    const MutexLock lock(&mutex_);
    return text_;
  }

 private:
  mutable Mutex mutex_{};
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

// A gRPC server with the methods that a test gives it, behind a guard.
class GuardedRpc {
 public:
  explicit GuardedRpc(service::RpcLimits limits = {}) : server(limits) {}
  ~GuardedRpc() {
    channel.reset();
    if (guard != nullptr) guard->StopAccepting();
    server.Stop(seconds(0));
    guard.reset();
  }
  void Start(const service::GuardLimits& limits = {},
             const service::TlsOptions& options = {},
             const std::string& address = "127.0.0.1:0") {
    auto contexts = service::TlsContexts::Create(options, &log);
    ASSERT_TRUE(contexts.ok()) << contexts.status();
    tls = *std::move(contexts);
    auto listening =
        service::ConnectionGuard::Listen(address, limits, tls.get(), &log);
    ASSERT_TRUE(listening.ok()) << listening.status();
    guard = *std::move(listening);
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(64 << 20);
    acceptor = service::AddConnections(&builder);
    ASSERT_TRUE(server.Start(&builder));
    guard->Start([this](int fd) { service::HandOver(acceptor.get(), fd); });
    port = guard->port();
    channel = NewChannel(absl::StrCat("127.0.0.1:", port), options.certificate);
  }
  static std::shared_ptr<grpc::Channel> NewChannel(const std::string& target,
                                                   const std::string& roots) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(64 << 20);
    std::shared_ptr<grpc::ChannelCredentials> credentials =
        grpc::InsecureChannelCredentials();
    if (!roots.empty()) {
      arguments.SetSslTargetNameOverride("localhost");
      grpc::SslCredentialsOptions ssl;
      ssl.pem_root_certs = roots;
      credentials = grpc::SslCredentials(ssl);
    }
    return grpc::CreateCustomChannel(target, credentials, arguments);
  }

  int port = 0;
  std::shared_ptr<grpc::Channel> channel{};
  Lines lines{};
  service::Log log{service::LogLevel::kInfo, lines.sink()};
  std::unique_ptr<service::TlsContexts> tls{};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor{};
  std::unique_ptr<service::ConnectionGuard> guard{};
  RpcServer server;  // Last: its handlers may use the test's variables.
};

// A certificate for localhost, which is its own authority.
inline service::TlsOptions SelfSigned() {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      EVP_EC_gen("prime256v1"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> made(X509_new(), X509_free);
  X509_set_version(made.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 30 * 24 * 3600);
  X509_set_pubkey(made.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(made.get());
  X509_NAME_add_entry_by_txt(
      name, "CN", MBSTRING_ASC,
      reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(made.get(), name);
  X509_EXTENSION* const names = X509V3_EXT_conf_nid(
      nullptr, nullptr, NID_subject_alt_name, "DNS:localhost");
  X509_add_ext(made.get(), names, -1);
  X509_EXTENSION_free(names);
  X509_sign(made.get(), key.get(), EVP_sha256());
  const auto text = [](auto write) {
    const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()),
                                                  BIO_free);
    write(bio.get());
    char* data = nullptr;
    const auto size = BIO_get_mem_data(bio.get(), &data);
    return std::string(data, static_cast<size_t>(size));
  };
  service::TlsOptions options;
  options.certificate =
      text([&](BIO* bio) { PEM_write_bio_X509(bio, made.get()); });
  options.key = text([&](BIO* bio) {
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr,
                             nullptr);
  });
  return options;
}

// Passes bytes between one client and a server in chunks of random sizes.
class ChunkingProxy {
 public:
  ChunkingProxy(int server_port, uint32_t seed) : seed_(seed) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    bind(listener_, plain, size);
    listen(listener_, 8);
    getsockname(listener_, plain, &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::jthread([this, server_port] { Serve(server_port); });
  }
  ~ChunkingProxy() {
    stopped_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  int port() const { return port_; }

 private:
  void Serve(int server_port) {
    const int client = accept(listener_, nullptr, nullptr);
    const int server = Connect(server_port);
    {
      // A thread each way: neither end must wait for the other to read.
      const std::jthread back([&] { PassAll(server, client, ~seed_); });
      PassAll(client, server, seed_);
    }
    close(client);
    close(server);
  }
  void PassAll(int from, int to, uint32_t seed) {
    std::mt19937 random(seed);
    while (!stopped_) {
      pollfd ready{from, POLLIN, 0};
      if (poll(&ready, 1, 20) > 0 && !Pass(from, to, &random)) break;
    }
    shutdown(from, SHUT_RDWR);
    shutdown(to, SHUT_RDWR);
  }
  static bool Pass(int from, int to, std::mt19937* random) {
    char bytes[40'000];
    // Now and then a few bytes, so that frames break anywhere.
    const size_t most = (*random)() % 3 == 0 ? 1 + (*random)() % 20
                                             : 1 + (*random)() % sizeof(bytes);
    const ssize_t got = recv(from, bytes, most, 0);
    return got > 0 &&
           send(to, bytes, static_cast<size_t>(got), MSG_NOSIGNAL) == got;
  }

  const uint32_t seed_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::jthread thread_{};
};

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SERVICE_GUARDED_RPC_H_
