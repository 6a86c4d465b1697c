#include "formats/job/partition_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "formats/job/spec_loader.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

constexpr char kFile[] = R"({
  "format": "pipeloom.partition",
  "job": "small-vlm",
  "comment": "by hand",
  "num_ranks": 4,
  "modules": [{"module": "encoder", "sub_microbatch": 3}],
  "stages": [
    {"module": "encoder", "first_layer": 0, "layers": 10, "rank": 0},
    {"module": "backbone", "first_layer": 0, "layers": 4, "rank": 1},
    {"module": "backbone", "first_layer": 4, "layers": 3, "rank": 2},
    {"module": "backbone", "first_layer": 7, "layers": 3, "rank": 3,
     "segment": 1}
  ]
})";

absl::StatusOr<Partition> Parse(const std::string& from,
                                const std::string& to) {
  return ParsePartition(absl::StrReplaceAll(kFile, {{from, to}}), "p.json",
                        SmallVlmJob());
}

TEST(ParsePartitionTest, ReadsStagesAndSizes) {
  ASSERT_OK_AND_ASSIGN(const Partition p,
                       ParsePartition(kFile, "p.json", SmallVlmJob()));
  EXPECT_EQ(p.num_ranks, 4);
  EXPECT_EQ(p.num_segments, 2);
  ASSERT_EQ(p.stages.size(), 4);
  EXPECT_EQ(p.stages[StageId(2)], (Stage{.module = ModuleId(1),
                                         .first_layer = LayerId(4),
                                         .num_layers = 3,
                                         .rank = RankId(2),
                                         .segment = SegmentId(0)}));
  EXPECT_EQ(p.sub_microbatch_instances[ModuleId(0)], 3);
  EXPECT_EQ(p.sub_microbatch_instances[ModuleId(1)], 0);
}

TEST(ParsePartitionTest, ReadsTheLayoutWhereThereIsOne) {
  ASSERT_OK_AND_ASSIGN(const auto none, ParsePartitionLayout(kFile, "p.json"));
  EXPECT_FALSE(none.has_value());
  const auto with = [](const std::string& layout) {
    return absl::StrReplaceAll(
        kFile, {{"\"num_ranks\"", layout + ",\n  \"num_ranks\""}});
  };
  const std::string text =
      with(R"("layout": {"tp": 2, "pp": 4, "dp": 8, "microbatches": 16})");
  ASSERT_OK_AND_ASSIGN(const auto layout, ParsePartitionLayout(text, "p.json"));
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->parallel, (ParallelLayout{.tp = 2, .pp = 4, .dp = 8}));
  EXPECT_EQ(layout->microbatches, 16);
  ASSERT_OK_AND_ASSIGN(const Partition p,
                       ParsePartition(text, "p.json", SmallVlmJob()));
  EXPECT_EQ(p.num_ranks, 4);
  EXPECT_TRUE(layout->modules.empty());
  ASSERT_OK_AND_ASSIGN(
      const auto own,
      ParsePartitionLayout(
          with(R"("layout": {"tp": 2, "modules": [{"module": "encoder",
                                                   "tp": 1}]})"),
          "p.json"));
  EXPECT_EQ(own->modules, (std::vector<ModuleParallelism>{
                              {.module = "encoder", .tp = 1, .cp = 0}}));
  EXPECT_THAT(ParsePartitionLayout(with(R"("layout": {"tp": 0})"), "p.json"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("field \"layout.tp\" is 0")));
}

TEST(ParsePartitionTest, ErrorsNameTheLineAndWhatIsAllowed) {
  const auto refuses = [](const std::string& from, const std::string& to,
                          const std::string& message) {
    EXPECT_THAT(Parse(from, to), FailsWith(absl::StatusCode::kInvalidArgument,
                                           HasSubstr(message)));
  };
  refuses("pipeloom.partition", "something",
          "p.json:2: field \"format\" is \"something\"");
  refuses("\"num_ranks\": 4", "\"num_ranks\": 8",
          "\"num_ranks\" is 8; it must be 4, parallel.pp of job small-vlm");
  refuses("\"encoder\", \"first", "\"decoder\", \"first",
          "a module of the model: encoder, backbone");
  refuses("\"layers\": 10", "\"layers\": 9",
          "module \"encoder\": 9 of its 10 layers are on a stage");
  refuses("\"rank\": 2", "\"rank\": 4", "rank 4 is not in [0, 4)");
  refuses("\"rank\": 2}", "\"rank\": 2, \"gpu\": 1}", "gpu");
  refuses("\"layers\": 4", "\"layers\": 0", "field \"stages[1].layers\" is 0");
  refuses("]\n}", "]", "p.json");
}

TEST(ParseJobTest, ReadsPartitionRulesAndAssignment) {
  const std::string data = PIPELOOM_SOURCE_DIR "/workloads";
  const auto read = [](const std::string& path) -> absl::StatusOr<std::string> {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) return absl::NotFoundError(path);
    return text.str();
  };
  const std::string text = R"({
    "model": "dip-vlm-s", "cluster": "dip-h800-64",
    "parallel": {"tp": 4, "pp": 4},
    "training": {"microbatches": 4, "microbatch_tokens": 8192,
                 "assignment": "SAMPLE_ASSIGNMENT_BALANCED"},
    "partition": {
      "together": [
        {"layers": [{"module": "vision_encoder", "first": -1},
                    {"module": "backbone", "count": 4}]},
        {"layers": [{"module": "backbone", "first": -1}], "rank": -1}],
      "own_ranks": [{"module": "vision_encoder", "first_rank": 1,
                     "num_ranks": 2}]}})";
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ParseJob(text, "job.json", data, read));
  EXPECT_EQ(job.training.assignment, SampleAssignment::kBalanced);
  const PartitionRules expected = {
      .together = {{.layers = {{.module = "vision_encoder", .first = -1},
                               {.module = "backbone", .first = 0, .count = 4}}},
                   {.layers = {{.module = "backbone", .first = -1}},
                    .rank = -1}},
      .own_ranks = {
          {.module = "vision_encoder", .first_rank = 1, .num_ranks = 2}}};
  EXPECT_EQ(job.partition, expected);
  EXPECT_THAT(
      ParseJob(absl::StrReplaceAll(text, {{"\"rank\": -1", "\"rank\": 4"}}),
               "job.json", data, read),
      FailsWith(absl::StatusCode::kInvalidArgument,
                HasSubstr("partition.together[1] has rank 4")));
}

}  // namespace
}  // namespace pipeloom::formats
