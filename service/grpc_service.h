// pipeloom.v1.PlannerService on gRPC's callback interface: no thread waits
// while a call does.
#ifndef PIPELOOM_SERVICE_GRPC_SERVICE_H_
#define PIPELOOM_SERVICE_GRPC_SERVICE_H_

#include <memory>
#include <string>

#include "pipeloom/v1/planner_service.grpc.pb.h"
#include "service/metrics.h"
#include "service/planner_core.h"
#include "service/worker_pool.h"

namespace pipeloom::service {

// GetRankPlan takes and gives bytes: a share is serialised once, and not copied
// on its way out.
class GrpcService final
    : public v1::PlannerService::WithRawCallbackMethod_GetRankPlan<
          v1::PlannerService::CallbackService> {
 public:
  // `core` and `metrics` must outlive it. An empty token: none is asked for.
  GrpcService(PlannerCore* core, Metrics* metrics, std::string token);

  grpc::ServerUnaryReactor* OpenJob(grpc::CallbackServerContext* context,
                                    const v1::OpenJobRequest* request,
                                    v1::OpenJobResponse* response) override;
  grpc::ServerUnaryReactor* SubmitBatch(
      grpc::CallbackServerContext* context,
      const v1::SubmitBatchRequest* request,
      v1::SubmitBatchResponse* response) override;
  grpc::ServerReadReactor<v1::SubmitBatchRequest>* SubmitBatches(
      grpc::CallbackServerContext* context,
      v1::SubmitBatchesResponse* response) override;
  grpc::ServerUnaryReactor* GetRankPlan(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context,
                                    const v1::GetPlanRequest* request,
                                    v1::GetPlanResponse* response) override;
  grpc::ServerUnaryReactor* ReportTrace(
      grpc::CallbackServerContext* context,
      const v1::ReportTraceRequest* request,
      v1::ReportTraceResponse* response) override;
  grpc::ServerUnaryReactor* Emulate(grpc::CallbackServerContext* context,
                                    const v1::EmulateRequest* request,
                                    v1::EmulateResponse* response) override;
  grpc::ServerUnaryReactor* WhatIf(grpc::CallbackServerContext* context,
                                   const v1::WhatIfRequest* request,
                                   v1::WhatIfResponse* response) override;
  grpc::ServerWriteReactor<v1::PlanStatistics>* Watch(
      grpc::CallbackServerContext* context,
      const v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* CloseJob(grpc::CallbackServerContext* context,
                                     const v1::CloseJobRequest* request,
                                     v1::CloseJobResponse* response) override;

 private:
  class UnaryCall;
  class SubmitStream;
  class WatchStream;

  absl::Status Authorize(const grpc::CallbackServerContext& context) const;
  // Runs `work(stop)`, which fills in the response, on the pool.
  UnaryCall* OnPool(grpc::CallbackServerContext* context, const char* method,
                    std::function<absl::Status(std::stop_token)> work);
  // Waits for a plan, then calls `use`, which fills in the response.
  UnaryCall* OnPlan(
      grpc::CallbackServerContext* context, const char* method,
      const planner::PlanKey& key, int32_t rank,
      std::function<absl::Status(const std::shared_ptr<const ReadyPlan>&)> use);

  PlannerCore* core_;
  Metrics* metrics_;
  std::string token_;
  WorkerPool pool_;  // Last: its threads use the others.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GRPC_SERVICE_H_
