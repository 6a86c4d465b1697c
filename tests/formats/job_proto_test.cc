// The shipped files are proto3 JSON of pipeloom.v1, as their readers claim.

#include <google/protobuf/util/json_util.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "formats/job/spec_loader.h"
#include "gtest/gtest.h"
#include "pipeloom/v1/cluster.pb.h"
#include "pipeloom/v1/job.pb.h"
#include "pipeloom/v1/model.pb.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

template <typename Message>
void ExpectFilesAre(const std::string& folder,
                    const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    SCOPED_TRACE(absl::StrCat(folder, "/", name));
    ASSERT_OK_AND_ASSIGN(
        const std::string text,
        ReadFile(absl::StrCat(kDataDir, "/", folder, "/", name, ".json")));
    Message message;
    const auto status =
        google::protobuf::util::JsonStringToMessage(text, &message);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(message.name(), name);
  }
}

TEST(JobProtoTest, EveryShippedFileIsProtoJson) {
  ExpectFilesAre<v1::Job>("jobs", ShippedJobNames());
  ExpectFilesAre<v1::ModelSpec>("models", ShippedModelNames());
  ExpectFilesAre<v1::ClusterSpec>("clusters", ShippedClusterNames());
}

// Protobuf's JSON of a job, in its own spelling (camelCase, 64-bit integers as
// strings) or in that of job files, is read as the same job.
TEST(JobProtoTest, JobsPrintedByProtobufLoadEqual) {
  for (const std::string& name : ShippedJobNames()) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const JobSpec expected,
                         LoadJob(name, kDataDir, ReadFile));
    v1::Job job;
    const auto read = [&](const std::string& folder, const std::string& file,
                          google::protobuf::Message* message) {
      const auto text =
          ReadFile(absl::StrCat(kDataDir, "/", folder, "/", file, ".json"));
      ASSERT_TRUE(text.ok());
      ASSERT_TRUE(
          google::protobuf::util::JsonStringToMessage(*text, message).ok());
    };
    read("jobs", name, &job);
    v1::ModelSpec model;
    read("models", job.model(), &model);
    v1::ClusterSpec cluster;
    read("clusters", job.cluster(), &cluster);
    *job.mutable_model_spec() = model;
    *job.mutable_cluster_spec() = cluster;
    JobSpec own = expected;
    own.module_parallelism = {
        {.module = model.modules(0).name(), .tp = 1, .cp = 0}};
    v1::ModuleParallelism& sizes = *job.mutable_parallel()->add_modules();
    sizes.set_module(model.modules(0).name());
    sizes.set_tp(1);
    for (const bool snake_case : {false, true}) {
      google::protobuf::util::JsonPrintOptions options;
      options.preserve_proto_field_names = snake_case;
      std::string printed;
      ASSERT_TRUE(
          google::protobuf::util::MessageToJsonString(job, &printed, options)
              .ok());
      ASSERT_OK_AND_ASSIGN(
          const JobSpec actual,
          ParseJob(printed, "printed.json", kDataDir, ReadFile));
      EXPECT_EQ(actual, own);
    }
  }
}

}  // namespace
}  // namespace pipeloom::formats
