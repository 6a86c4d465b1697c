#include "service/jobs/job_request.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "service/jobs/job_store.h"
#include "service/jobs/served_job.h"

namespace pipeloom::service {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Refuses paths: callers may not read files of the service's machine.
absl::Status RefusePath(const char* field, const std::string& name) {
  if (!absl::StrContains(name, "/") && !absl::StrContains(name, "\\") &&
      !absl::EndsWith(name, ".json")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is \"%s\"; it must be the name of a shipped one, not "
                      "a path",
                      field, name));
}

absl::Status NoValue(const std::string& path, const std::string& value,
                     absl::string_view type) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is \"%s\"; it must be %s", path, value, type));
}

absl::Status SetScalar(const std::string& path, const std::string& value,
                       const FieldDescriptor* field, Message* message) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      int32_t number = 0;
      if (!absl::SimpleAtoi(value, &number)) {
        return NoValue(path, value, "a whole number");
      }
      reflection->SetInt32(message, field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t number = 0;
      if (!absl::SimpleAtoi(value, &number)) {
        return NoValue(path, value, "a whole number");
      }
      reflection->SetInt64(message, field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      uint64_t number = 0;
      if (!absl::SimpleAtoi(value, &number)) {
        return NoValue(path, value, "a whole number");
      }
      reflection->SetUInt64(message, field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double number = 0;
      if (!absl::SimpleAtod(value, &number) || !std::isfinite(number)) {
        return NoValue(path, value, "a number");
      }
      reflection->SetDouble(message, field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      bool truth = false;
      if (!absl::SimpleAtob(value, &truth)) {
        return NoValue(path, value, "true or false");
      }
      reflection->SetBool(message, field, truth);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto* chosen = field->enum_type()->FindValueByName(value);
      if (chosen == nullptr) {
        std::string names;
        for (int i = 1; i < field->enum_type()->value_count(); ++i) {
          absl::StrAppend(&names, i == 1 ? "" : ", ",
                          field->enum_type()->value(i)->name());
        }
        return NoValue(path, value, absl::StrCat("one of ", names));
      }
      reflection->SetEnum(message, field, chosen);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      reflection->SetString(message, field, value);
      return absl::OkStatus();
    default:
      return NoValue(path, value, "a field that holds one value");
  }
}

// Returns an id made from the job's name and a hash of the content.
std::string IdFor(const std::string& name, const Fingerprint& request) {
  std::string id;
  for (const char c : name.substr(0, 40)) {
    id += IsJobId(std::string("x") + c) ? c : '-';
  }
  if (id.empty() || id[0] == '.') id = "job";
  return absl::StrFormat("%s-%012x", id, request.high & 0xffffffffffff);
}

}  // namespace

absl::StatusOr<JobSpec> JobFromProto(const v1::Job& proto,
                                     const ShippedFiles& files) {
  PIPELOOM_RETURN_IF_ERROR(RefusePath("job.model", proto.model()));
  PIPELOOM_RETURN_IF_ERROR(RefusePath("job.cluster", proto.cluster()));
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed =
      google::protobuf::util::MessageToJsonString(proto, &json, options);
  if (!printed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job: ", printed.ToString()));
  }
  absl::StatusOr<JobSpec> job =
      formats::ParseJob(json, "job", files.data_dir, files.read);
  if (job.ok() || absl::IsNotFound(job.status())) return job;
  return absl::InvalidArgumentError(job.status().message());
}

absl::StatusOr<JobSpec> ShippedJob(const std::string& name,
                                   const ShippedFiles& files) {
  PIPELOOM_RETURN_IF_ERROR(RefusePath("shipped_job", name));
  return formats::LoadJob(name, files.data_dir, files.read);
}

absl::Status SetField(const std::string& path, const std::string& value,
                      v1::Job* job) {
  Message* message = job;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field =
        message->GetDescriptor()->FindFieldByName(names[i]);
    if (field == nullptr || field->is_repeated()) {
      std::string known;
      for (int f = 0; f < message->GetDescriptor()->field_count(); ++f) {
        const FieldDescriptor* one = message->GetDescriptor()->field(f);
        if (one->is_repeated()) continue;
        absl::StrAppend(&known, known.empty() ? "" : ", ", one->name());
      }
      return absl::InvalidArgumentError(absl::StrFormat(
          "path is \"%s\"; \"%s\" must be one of %s", path, names[i], known));
    }
    const bool last = i + 1 == names.size();
    if (last) return SetScalar(path, value, field, message);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "path is \"%s\"; \"%s\" has no fields", path, names[i]));
    }
    message = message->GetReflection()->MutableMessage(message, field);
  }
  return absl::OkStatus();
}

v1::Partition ToProto(const Partition& partition, const ModelSpec& model) {
  v1::Partition proto;
  proto.set_num_ranks(partition.num_ranks);
  proto.set_num_segments(partition.num_segments);
  for (const Stage& stage : partition.stages) {
    v1::PartitionStage& s = *proto.add_stages();
    s.set_module(model.modules[stage.module].name);
    s.set_first_layer(stage.first_layer.value());
    s.set_num_layers(stage.num_layers);
    s.set_rank(stage.rank.value());
    s.set_segment(stage.segment.value());
  }
  for (const ModuleId m : partition.sub_microbatch_instances.ids()) {
    if (partition.sub_microbatch_instances[m] == 0) continue;
    v1::SubMicrobatchSize& size = *proto.add_sub_microbatch_sizes();
    size.set_module(model.modules[m].name);
    size.set_instances(partition.sub_microbatch_instances[m]);
  }
  return proto;
}

absl::StatusOr<Partition> PartitionFromProto(const v1::Partition& proto,
                                             const JobSpec& job) {
  const auto module_of =
      [&](const std::string& field,
          const std::string& name) -> absl::StatusOr<ModuleId> {
    std::string known;
    for (const ModuleId m : job.model.modules.ids()) {
      if (job.model.modules[m].name == name) return m;
      absl::StrAppend(&known, known.empty() ? "" : ", ",
                      job.model.modules[m].name);
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "partition.%s is \"%s\"; it must be one of %s", field, name, known));
  };
  if (proto.num_ranks() != job.parallel.pp) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "partition.num_ranks is %d; it must be %d, the job's parallel.pp",
        proto.num_ranks(), job.parallel.pp));
  }
  Partition partition;
  partition.num_ranks = proto.num_ranks();
  partition.num_segments = proto.num_segments();
  for (int i = 0; i < proto.stages_size(); ++i) {
    const v1::PartitionStage& s = proto.stages(i);
    PIPELOOM_ASSIGN_OR_RETURN(
        const ModuleId module,
        module_of(absl::StrFormat("stages[%d].module", i), s.module()));
    partition.stages.push_back({.module = module,
                                .first_layer = LayerId(s.first_layer()),
                                .num_layers = s.num_layers(),
                                .rank = RankId(s.rank()),
                                .segment = SegmentId(s.segment())});
  }
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  for (int i = 0; i < proto.sub_microbatch_sizes_size(); ++i) {
    const v1::SubMicrobatchSize& size = proto.sub_microbatch_sizes(i);
    const std::string field = absl::StrFormat("sub_microbatch_sizes[%d]", i);
    PIPELOOM_ASSIGN_OR_RETURN(
        const ModuleId module,
        module_of(absl::StrCat(field, ".module"), size.module()));
    if (size.instances() < 1 || size.instances() > 1'000'000) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "partition.%s.instances is %d; it must be in [1, 1000000]", field,
          size.instances()));
    }
    partition.sub_microbatch_instances[module] = size.instances();
  }
  const absl::Status valid = ValidatePartition(partition, job.model);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition: ", valid.message()));
  }
  return partition;
}

Fingerprint PrintOf(const std::string& close_key) {
  if (close_key.empty()) return {};
  return FingerprintBuilder().Add(close_key).Build();
}

absl::StatusOr<JobRequest> ReadJobRequest(const v1::OpenJobRequest& request,
                                          const ShippedFiles& files,
                                          const convert::BatchLimits& limits) {
  if (request.partition_time_us() < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("partition_time_us is %d; it must be >= 0",
                        request.partition_time_us()));
  }
  if (!request.job_id().empty() && !IsJobId(request.job_id())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "job_id is \"%s\"; it must be 1 to 64 of a-z A-Z 0-9 . _ -, not with a "
        "dot in front",
        request.job_id()));
  }
  JobRequest read;
  if (request.has_job()) {
    PIPELOOM_ASSIGN_OR_RETURN(read.spec, JobFromProto(request.job(), files));
  } else if (request.source_case() == v1::OpenJobRequest::kShippedJob) {
    PIPELOOM_ASSIGN_OR_RETURN(read.spec,
                              ShippedJob(request.shipped_job(), files));
  } else {
    return absl::InvalidArgumentError(
        "source is not set; it must be `job` or `shipped_job`");
  }
  absl::StatusOr<BatchMetadata> sample =
      convert::FromProto(request.sample(), limits);
  if (!sample.ok()) {
    return absl::Status(sample.status().code(),
                        absl::StrCat("sample.", sample.status().message()));
  }
  read.sample = *std::move(sample);
  if (request.has_partition()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        read.given, PartitionFromProto(request.partition(), read.spec));
  }
  if (request.has_resume()) {
    absl::StatusOr<Partition> partition =
        PartitionFromProto(request.resume(), read.spec);
    if (!partition.ok()) {
      return absl::Status(
          partition.status().code(),
          absl::StrCat("resume: ", partition.status().message()));
    }
    read.resumed = *std::move(partition);
  }
  FingerprintBuilder content;
  content.Add(FingerprintOf(read.spec))
      .Add(convert::ToProto(read.sample).SerializeAsString())
      .Add(request.partition().SerializeAsString());
  if (request.has_partition_time_us()) {
    content.Add(request.partition_time_us() > 0 ? "searched" : "by rule");
  }
  if (request.defer_surplus()) content.Add("deferred");
  read.content = content.Build();
  read.id = request.job_id().empty() ? IdFor(read.spec.name, read.content)
                                     : request.job_id();
  read.close_key = PrintOf(request.close_key());
  if (request.has_partition_time_us()) {
    read.partition_time =
        std::chrono::microseconds(request.partition_time_us());
  }
  read.defer_surplus = request.defer_surplus();
  return read;
}

}  // namespace pipeloom::service
