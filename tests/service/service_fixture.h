// A real server on a free port of 127.0.0.1, and calls to it.
#ifndef PIPELOOM_TESTS_SERVICE_SERVICE_FIXTURE_H_
#define PIPELOOM_TESTS_SERVICE_SERVICE_FIXTURE_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "pipeloom/v1/planner_service.grpc.pb.h"
#include "service/rpc/server.h"

namespace pipeloom::testing {

// A folder that is deleted at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Reads shipped files from the source tree; logs nothing.
service::ServerOptions TestOptions();

// SmallVlmJob with `dp` replicas, its search ending after some evaluations.
v1::OpenJobRequest SmallJobRequest(int32_t dp = 2, int64_t evaluations = 50);

v1::SubmitBatchRequest SmallBatch(const std::string& job, int64_t step,
                                  uint64_t seed, int32_t samples = 24);

class TestService {
 public:
  explicit TestService(service::ServerOptions options = TestOptions());

  service::Server& server() { return *server_; }
  v1::PlannerService::Stub& stub() { return *stub_; }
  std::string target() const;
  void StopServer() { server_.reset(); }

  // Each with a deadline; `metadata` of the last call's answer is kept.
  grpc::Status Open(const v1::OpenJobRequest& request,
                    v1::OpenJobResponse* response);
  grpc::Status Submit(const v1::SubmitBatchRequest& request,
                      v1::SubmitBatchResponse* response = nullptr);
  grpc::Status Get(
      const std::string& job, int64_t step, int32_t replica, int32_t rank,
      v1::RankPlan* response,
      std::chrono::milliseconds deadline = std::chrono::milliseconds(60'000));
  grpc::Status GetWhole(const std::string& job, int64_t step, int32_t replica,
                        v1::GetPlanResponse* response);
  // Id of SmallJobRequest(dp, evaluations), opened.
  std::string OpenSmallJob(int32_t dp = 2, int64_t evaluations = 50);

  // "" where there is none.
  std::string trailer(const std::string& name) const;
  void set_token(std::string token) { token_ = std::move(token); }

  void Prepare(grpc::ClientContext* context,
               std::chrono::milliseconds deadline) const;

 private:
  std::unique_ptr<service::Server> server_{};
  std::unique_ptr<v1::PlannerService::Stub> stub_{};
  std::string token_{};
  std::multimap<std::string, std::string> trailers_{};
};

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SERVICE_SERVICE_FIXTURE_H_
