#include "service/rpc/standard_services.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "service/rpc/rpc_messages.h"

namespace pipeloom::service {
namespace {

namespace health = grpc::health::v1;
namespace reflection = grpc::reflection::v1alpha;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;

// Most unread answers of one stream: a caller has to read answers before it
// asks for more.
constexpr size_t kMaxUnread = 16;
// Callers need no token, so few may watch at a time.
constexpr size_t kMaxWatching = 1024;

grpc::Status NoMessage(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      std::string(status.message()));
}

grpc::ByteBuffer Health(health::HealthCheckResponse::ServingStatus status) {
  health::HealthCheckResponse response;
  response.set_status(status);
  return ToBytes(response);
}

auto StatusOf(bool serving) {
  return serving ? health::HealthCheckResponse::SERVING
                 : health::HealthCheckResponse::NOT_SERVING;
}

// Appends `file` and all files that it imports, each once.
void AppendFiles(const FileDescriptor* file, std::set<std::string>* seen,
                 reflection::FileDescriptorResponse* response) {
  if (!seen->insert(file->name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) {
    AppendFiles(file->dependency(i), seen, response);
  }
}

// Returns the file that the request asks for, or null if there is none.
const FileDescriptor* FindFile(
    const reflection::ServerReflectionRequest& request) {
  const DescriptorPool* pool = DescriptorPool::generated_pool();
  if (request.has_file_by_filename()) {
    return pool->FindFileByName(request.file_by_filename());
  }
  if (request.has_file_containing_symbol()) {
    return pool->FindFileContainingSymbol(request.file_containing_symbol());
  }
  const auto& extension = request.file_containing_extension();
  const auto* type = pool->FindMessageTypeByName(extension.containing_type());
  if (type == nullptr) return nullptr;
  const auto* field =
      pool->FindExtensionByNumber(type, extension.extension_number());
  return field == nullptr ? nullptr : field->file();
}

reflection::ServerReflectionResponse Reflect(
    const reflection::ServerReflectionRequest& request,
    const std::vector<std::string>& services) {
  reflection::ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const auto error = [&](grpc::StatusCode code, const std::string& message) {
    response.mutable_error_response()->set_error_code(code);
    response.mutable_error_response()->set_error_message(message);
  };
  if (request.has_list_services()) {
    for (const std::string& name : services) {
      response.mutable_list_services_response()->add_service()->set_name(name);
    }
  } else if (request.has_all_extension_numbers_of_type()) {
    const std::string& name = request.all_extension_numbers_of_type();
    const DescriptorPool* pool = DescriptorPool::generated_pool();
    if (const auto* type = pool->FindMessageTypeByName(name)) {
      auto* numbers = response.mutable_all_extension_numbers_response();
      numbers->set_base_type_name(name);
      std::vector<const google::protobuf::FieldDescriptor*> all;
      pool->FindAllExtensions(type, &all);
      for (const auto* e : all) numbers->add_extension_number(e->number());
    } else {
      error(grpc::StatusCode::NOT_FOUND,
            absl::StrCat("there is no message ", name));
    }
  } else if (request.message_request_case() ==
             reflection::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET) {
    // gRPC's own implementation returns the same code.
    error(grpc::StatusCode::UNIMPLEMENTED, "message_request is not set");
  } else if (const FileDescriptor* file = FindFile(request)) {
    std::set<std::string> seen;
    AppendFiles(file, &seen, response.mutable_file_descriptor_response());
  } else {
    error(grpc::StatusCode::NOT_FOUND, "there is no such file or symbol");
  }
  return response;
}

void ReflectAll(const std::shared_ptr<RpcCall>& call,
                const std::vector<std::string>& services) {
  // The function keeps the call only until it is called.
  call->ReadInTime([call, services](bool ok, const grpc::ByteBuffer& bytes) {
    if (!ok) {
      call->Finish(grpc::Status::OK);
      return;
    }
    const auto request =
        ReadMessage<reflection::ServerReflectionRequest>(call.get(), bytes);
    if (!request.ok()) {
      call->Finish(NoMessage(request.status()));
    } else if (call->Send(ToBytes(Reflect(request->message, services))) >
               kMaxUnread) {
      call->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                "answers are not read"));
    } else {
      ReflectAll(call, services);
    }
  });
}

}  // namespace

HealthService::HealthService(const std::vector<std::string>& services,
                             RpcServer* server)
    : services_(services) {
  services_.emplace_back();  // The empty name is the server as a whole.
  server->Add("/grpc.health.v1.Health/Check",
              [this](const auto& call) { Check(call); });
  server->Add("/grpc.health.v1.Health/Watch",
              [this](const auto& call) { Watch(call); });
}

void HealthService::Check(const std::shared_ptr<RpcCall>& call) {
  const auto request =
      ReadMessage<health::HealthCheckRequest>(call.get(), call->request());
  if (!request.ok()) {
    call->Finish(NoMessage(request.status()));
    return;
  }
  const std::string& service = request->message.service();
  if (std::ranges::find(services_, service) == services_.end()) {
    call->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND,
                              absl::StrCat("service is \"", service,
                                           "\"; there is none "
                                           "of that name")));
    return;
  }
  bool serving = false;
  {
    const MutexLock lock(&mutex_);
    serving = serving_;
  }
  call->Finish(Health(StatusOf(serving)));
}

void HealthService::Watch(const std::shared_ptr<RpcCall>& call) {
  const auto request =
      ReadMessage<health::HealthCheckRequest>(call.get(), call->request());
  if (!request.ok()) {
    call->Finish(NoMessage(request.status()));
    return;
  }
  const std::string& service = request->message.service();
  if (std::ranges::find(services_, service) == services_.end()) {
    // The protocol keeps the stream open, as the service may be added later.
    call->Send(Health(health::HealthCheckResponse::SERVICE_UNKNOWN));
    return;
  }
  int64_t id = 0;
  {
    const MutexLock lock(&mutex_);
    if (watching_.size() >= kMaxWatching) {
      call->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                "too many callers watch"));
      return;
    }
    id = next_id_++;
    watching_.emplace(id, call);
    call->Send(Health(StatusOf(serving_)));
  }
  call->OnCancel([this, id] {
    const MutexLock lock(&mutex_);
    watching_.erase(id);
  });
}

void HealthService::SetServing(bool serving) {
  const MutexLock lock(&mutex_);
  if (serving_ == serving) return;
  serving_ = serving;
  for (const auto& [id, call] : watching_) {
    call->Send(Health(StatusOf(serving)));
  }
}

void AddReflection(const std::vector<std::string>& services,
                   RpcServer* server) {
  for (const char* version : {"v1alpha", "v1"}) {
    server->AddStream(
        absl::StrCat("/grpc.reflection.", version,
                     ".ServerReflection/ServerReflectionInfo"),
        [services](const auto& call) { ReflectAll(call, services); });
  }
}

}  // namespace pipeloom::service
