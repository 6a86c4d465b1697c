// Health checking and reflection, for probes and for tools such as grpcurl.
// gRPC's own implementations would start polling threads
// (service/rpc/rpc_server.h).
#ifndef PIPELOOM_SERVICE_RPC_STANDARD_SERVICES_H_
#define PIPELOOM_SERVICE_RPC_STANDARD_SERVICES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "service/rpc/rpc_server.h"

namespace pipeloom::service {

// grpc.health.v1.Health with Check and Watch, for the server and each of its
// services. Threads: any.
class HealthService {
 public:
  // Adds the methods to `server`. `services` are full names. REQUIRES: the
  // object outlives `server`.
  HealthService(const std::vector<std::string>& services, RpcServer* server);
  HealthService(const HealthService&) = delete;
  HealthService& operator=(const HealthService&) = delete;

  // Sets the state of all services, which is true at first, and tells it to all
  // watching callers.
  void SetServing(bool serving);

 private:
  void Check(const std::shared_ptr<RpcCall>& call);
  void Watch(const std::shared_ptr<RpcCall>& call);

  std::vector<std::string> services_{};
  Mutex mutex_{};
  bool serving_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // Calls that watch known services.
  std::map<int64_t, std::shared_ptr<RpcCall>> watching_
      ABSL_GUARDED_BY(mutex_){};
};

// Adds grpc.reflection, v1alpha and v1, for `services`, given by their full
// names, and for every .proto file of this program.
void AddReflection(const std::vector<std::string>& services, RpcServer* server);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_STANDARD_SERVICES_H_
