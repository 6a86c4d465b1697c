// gRPC's own health checking and reflection over this project's messages, on a
// free port, which is printed; until it is killed. A program of its own: who
// links gRPC's reflection has it in every server.
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstdio>

#include "pipeloom/v1/planner_service.grpc.pb.h"

int main() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  pipeloom::v1::PlannerService::Service planner;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&planner);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->GetHealthCheckService()->SetServingStatus(
      pipeloom::v1::PlannerService::service_full_name(), true);
  std::printf("%d\n", port);
  std::fflush(stdout);
  server->Wait();
  return 0;
}
