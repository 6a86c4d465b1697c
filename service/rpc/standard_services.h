// Health checking and reflection, for probes and for tools such as grpcurl.
// gRPC's own bring threads that poll (service/rpc/rpc_server.h).
#ifndef PIPELOOM_SERVICE_RPC_STANDARD_SERVICES_H_
#define PIPELOOM_SERVICE_RPC_STANDARD_SERVICES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "service/rpc/rpc_server.h"

namespace pipeloom::service {

// grpc.health.v1.Health: Check and Watch, for the server and each of its
// services. Must outlive the server. Any thread.
class HealthService {
 public:
  // `services`: full names.
  HealthService(const std::vector<std::string>& services, RpcServer* server);
  HealthService(const HealthService&) = delete;
  HealthService& operator=(const HealthService&) = delete;

  // Of all; true at first. Those who watch are told.
  void SetServing(bool serving);

 private:
  void Check(const std::shared_ptr<RpcCall>& call);
  void Watch(const std::shared_ptr<RpcCall>& call);

  std::vector<std::string> services_{};
  std::mutex mutex_{};
  bool serving_ = true;
  int64_t next_id_ = 0;
  std::map<int64_t, std::shared_ptr<RpcCall>> watching_{};  // Known services.
};

// grpc.reflection, v1alpha and v1: `services`, by their full names, and every
// .proto file of this program.
void AddReflection(const std::vector<std::string>& services, RpcServer* server);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_STANDARD_SERVICES_H_
