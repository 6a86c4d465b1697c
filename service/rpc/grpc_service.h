// pipeloom.v1.PlannerService, implemented with service/rpc/rpc_server.h: no
// thread is blocked while a call waits.
#ifndef PIPELOOM_SERVICE_RPC_GRPC_SERVICE_H_
#define PIPELOOM_SERVICE_RPC_GRPC_SERVICE_H_

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "service/core/planner_core.h"
#include "service/os/metrics.h"
#include "service/os/worker_pool.h"
#include "service/rpc/rpc_server.h"

namespace pipeloom::service {

// The server's thread handles calls that only fetch or look up: shares are
// bytes already and are not copied. All other calls are parsed, done and
// serialised by threads of low priority, and answered by a thread of usual
// priority, so that no call waits for another call's work.
class GrpcService final {
 public:
  static constexpr char kName[] = "pipeloom.v1.PlannerService";

  // Adds the service's methods to `server`. An empty `token` means that callers
  // need none. REQUIRES: `core` and `metrics` outlive the service.
  GrpcService(PlannerCore* core, Metrics* metrics, std::string token,
              RpcServer* server);
  GrpcService(const GrpcService&) = delete;
  GrpcService& operator=(const GrpcService&) = delete;

 private:
  struct Call;
  struct Submissions;
  using CallPtr = std::shared_ptr<Call>;
  using Answer = absl::StatusOr<grpc::ByteBuffer>;
  using Work = std::function<Answer(std::stop_token)>;

  // Returns what asks calls for the token; empty if there is none.
  RpcServer::Admission AdmissionTo(const char* method);
  CallPtr Begin(const std::shared_ptr<RpcCall>& rpc, const char* method);
  void End(const CallPtr& call, const Answer& answer);
  // Runs `work` on the pool and ends the call with what it returns.
  void EndOnPool(const CallPtr& call, WorkerPool* pool, Work work);
  // Adds a method with one request and one answer, parsed and made on a pool;
  // null: `pool_`.
  template <typename Request>
  void AddOnPool(
      RpcServer* server, const char* method,
      std::function<Answer(const Request&, const std::stop_token&)> work,
      WorkerPool* pool = nullptr);
  // Waits for a plan; `use` ends the call, on a pool if `long_use`.
  void OnPlan(
      const CallPtr& call, const PlanKey& key, int32_t rank, bool long_use,
      std::function<Answer(const std::shared_ptr<const ReadyPlan>&)> use);

  void OpenJob(const CallPtr& call,
               const std::shared_ptr<const v1::OpenJobRequest>& request,
               PlannerCore::Clock::time_point deadline);
  void SubmitBatch(const CallPtr& call);
  void GetRankPlan(const CallPtr& call);
  void GetPlan(const CallPtr& call);
  void Emulate(const CallPtr& call);
  void ReadSubmission(const CallPtr& call,
                      const std::shared_ptr<Submissions>& all);
  Answer Submit(const CallPtr& call, const grpc::ByteBuffer& bytes,
                Submissions* all);
  void Watch(const CallPtr& call);

  PlannerCore* core_;
  Metrics* metrics_;
  std::string token_;
  WorkerPool answers_;
  // Last, as their threads use the other members.
  WorkerPool pool_;     // Calls that trainers wait for.
  WorkerPool opening_;  // Opens jobs, which may search for a partition.
  WorkerPool tools_;    // WhatIf, Emulate and whole plans.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_GRPC_SERVICE_H_
