// Changes of a job's fields and when the job is checked.
#include "formats/job/job_overrides.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::HasSubstr;

constexpr char kPath[] = "folder/job.json";

absl::StatusOr<JobTemplate> Load(const std::string& microbatches) {
  return JobTemplate::Load(kPath, kDataDir, [&](const std::string& file) {
    if (file != kPath) return ReadFile(file);
    return absl::StatusOr<std::string>(absl::StrCat(
        R"({"model": "llama3-8b", "cluster": "h100-sxm",
 "parallel": {"tp": 8, "dp": 64},
 "training": {"microbatch_tokens": 8192,
              "microbatches": )",
        microbatches, "}}"));
  });
}

TEST(JobTemplateTest, ChangesAreMadeBeforeTheJobIsChecked) {
  ASSERT_OK_AND_ASSIGN(const JobTemplate job, Load("2"));
  const auto with_nodes = [&](const char* nodes) {
    return job.With({{"cluster.num_nodes", nodes}});
  };
  ASSERT_OK_AND_ASSIGN(const JobSpec cured, with_nodes("128"));
  EXPECT_EQ(cured.cluster.num_nodes, 128);
  EXPECT_EQ(cured.parallel.dp, 64);
  EXPECT_THAT(
      job.With({}).status(),
      FailsWith(absl::StatusCode::kInvalidArgument,
                HasSubstr("needs 512 GPUs; cluster \"h100-sxm\" has 256")));
  EXPECT_THAT(with_nodes("40").status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("has 320 (40 nodes of 8)")));
}

TEST(JobTemplateTest, AMistakeThatStaysIsToldAsOfTheFileWithItsLine) {
  ASSERT_OK_AND_ASSIGN(const JobTemplate job, Load("-3"));
  EXPECT_THAT(job.With({{"cluster.num_nodes", "128"}}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "folder/job.json:4: field \"training.microbatches\" "
                        "is -3; it must be in [1, 1000000]"));
  EXPECT_THAT(Load("2}").status(), FailsWith(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("folder/job.json")));
}

}  // namespace
}  // namespace pipeloom::formats
