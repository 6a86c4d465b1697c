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

// GetRankPlan and GetPlan take and give bytes: a share is serialised once, and
// not copied on its way out; a whole plan is serialised by a thread of the
// pool. What takes long is done by threads of low priority and answered by one
// of usual priority, so that no call waits for another's work.
class GrpcService final
    : public v1::PlannerService::WithRawCallbackMethod_GetRankPlan<
          v1::PlannerService::WithRawCallbackMethod_GetPlan<
              v1::PlannerService::CallbackService>> {
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
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
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
  // On its pool; again when another call has ended that opens the same job.
  void Open(UnaryCall* call, const v1::OpenJobRequest* request,
            PlannerCore::Clock::time_point deadline,
            v1::OpenJobResponse* response);
  // Runs `work(stop)`, which fills in the response, on the pool.
  UnaryCall* OnPool(grpc::CallbackServerContext* context, const char* method,
                    std::function<absl::Status(std::stop_token)> work);
  // Runs `work` on the pool and ends the call with what it returns.
  void EndOnPool(UnaryCall* call,
                 std::function<absl::Status(std::stop_token)> work);
  // Waits for a plan, then calls `use`, which fills in the response; on the
  // pool if `long_use`.
  UnaryCall* OnPlan(
      grpc::CallbackServerContext* context, const char* method,
      const planner::PlanKey& key, int32_t rank, bool long_use,
      std::function<absl::Status(const std::shared_ptr<const ReadyPlan>&)> use);
  // Of a call that is refused before anything is done for it.
  UnaryCall* Refuse(grpc::CallbackServerContext* context, const char* method,
                    const absl::Status& status);

  PlannerCore* core_;
  Metrics* metrics_;
  std::string token_;
  WorkerPool answers_;
  WorkerPool pool_;     // Last: their threads use the others.
  WorkerPool opening_;  // Jobs; they may take as long as a partition search.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GRPC_SERVICE_H_
