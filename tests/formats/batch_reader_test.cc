#include <string>
#include <vector>

#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseBatchTest, ReadsEveryFieldAndLeavesUnknownOnesAtZero) {
  std::vector<std::string> warnings;
  ASSERT_OK_AND_ASSIGN(
      const BatchMetadata batch,
      ParseBatch(
          R"({"text_tokens": 312, "images": [[1024, 768], [28, 28]]}

{"videos": [{"frames": 64, "width": 640, "height": 360, "seconds": 4.5}, {}]})"
          "\r\n"
          R"({"audio_seconds": [12.5, 3]}
{})",
          "b.jsonl", &warnings));
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("1 of 2 videos have no width and height"),
                          HasSubstr("1 of 2 videos have neither")));
  ASSERT_EQ(batch.samples.size(), 4);
  EXPECT_EQ(
      batch.samples[SampleId(0)],
      (SampleMetadata{.text_tokens = 312, .images = {{1024, 768}, {28, 28}}}));
  EXPECT_EQ(batch.samples[SampleId(1)],
            (SampleMetadata{.videos = {{64, 640, 360, 4.5}, {}}}));
  EXPECT_EQ(batch.samples[SampleId(2)],
            (SampleMetadata{.audio_seconds = {12.5, 3}}));
  EXPECT_EQ(batch.samples[SampleId(3)], SampleMetadata());
}

TEST(ParseBatchTest, WarnsOnceOfFieldsItDoesNotUse) {
  std::vector<std::string> warnings;
  ASSERT_OK_AND_ASSIGN(
      const BatchMetadata batch,
      ParseBatch("{\"text_tokens\": 1}\n{\"turns\": 2, \"source\": \"x\"}\n"
                 "{\"turns\": 3}\n",
                 "b.jsonl", &warnings));
  EXPECT_EQ(batch.samples.size(), 3);
  EXPECT_THAT(warnings, ElementsAre("b.jsonl:2: field \"turns\" is not used, "
                                    "the first of 3 fields that are not"));
  EXPECT_TRUE(ParseBatch("{\"turns\": 2}", "b.jsonl", nullptr).ok());
}

TEST(ParseBatchTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string name;
    std::string line;  // The second of the file.
    std::string expected;
  };
  const Case cases[] = {
      {"negative tokens", R"({"text_tokens": -3})",
       "b.jsonl:2: field \"text_tokens\" is -3; it must be in [0, 100000000]"},
      {"absurd tokens", R"({"text_tokens": 1e15})",
       "b.jsonl:2: field \"text_tokens\" is 1e+15; it must be in [0, "
       "100000000]"},
      {"tokens as text", R"({"text_tokens": "many"})",
       "b.jsonl:2: field \"text_tokens\" is \"many\"; it must be an integer "
       "in [0, 100000000]"},
      {"half a token", R"({"text_tokens": 1.5})",
       "field \"text_tokens\" is 1.5; it must be an integer in"},
      {"negative width", R"({"images": [[3, 4], [-1, 4]]})",
       "field \"images[1][0]\" is -1; it must be in [1, 100000]"},
      {"absurd height", R"({"images": [[3, 400000]]})",
       "field \"images[0][1]\" is 400000; it must be in [1, 100000]"},
      {"one number", R"({"images": [[3]]})",
       "field \"images[0]\" is a list; it must be [width, height] in pixels"},
      {"no list", R"({"images": 4})",
       "field \"images\" is 4; it must be a list"},
      {"negative frames", R"({"videos": [{"frames": -1}]})",
       "field \"videos[0].frames\" is -1; it must be in [0, 100000000]"},
      {"misspelt in a video", R"({"videos": [{"fps": 3}]})",
       "field \"videos[0].fps\" is not known; it must be one of frames, "
       "height, height_px, seconds, width, width_px"},
      {"negative seconds", R"({"audio_seconds": [1, -0.5]})",
       "field \"audio_seconds[1]\" is -0.5; it must be in [0, 1e+07]"},
      {"no object", "[1, 2]", "b.jsonl:2: holds a list; it must be an object"},
      {"truncated", R"({"text_tokens": 3)", "b.jsonl:2: not valid JSON: "},
      {"two on a line", R"({} {})", "b.jsonl:2: not valid JSON: "},
      {"not UTF-8", "{\"text\xff\": 3}", "b.jsonl:2: not valid JSON: "},
      {"twice", R"({"text_tokens": 3, "text_tokens": 3})",
       "b.jsonl:2: field \"text_tokens\" is given twice"},
      {"deep", "{\"images\": " + std::string(100, '['),
       "b.jsonl:2: nested deeper than 64 levels"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(
        ParseBatch("{}\n" + c.line + "\n{}\n", "b.jsonl", nullptr),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.expected)));
  }
}

TEST(ParseBatchTest, AnEmptyBatchIsAnError) {
  for (const char* text : {"", "\n", " \r\n\t\n"}) {
    EXPECT_THAT(ParseBatch(text, "b.jsonl", nullptr),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          HasSubstr("b.jsonl: holds no samples")));
  }
}

TEST(ParseBatchTest, ReadsAHundredThousandSamples) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) {
    text += "{\"text_tokens\": " + std::to_string(i) +
            ", \"images\": [[640, 480], [320, 240]]}\n";
  }
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                       ParseBatch(text, "b.jsonl", nullptr));
  ASSERT_EQ(batch.samples.size(), 100'000);
  EXPECT_EQ(batch.samples[SampleId(99'999)].text_tokens, 99'999);
}

TEST(ParseBatchTest, SidesOfVideosMayHaveTheNamesOfTheProtobuf) {
  ASSERT_OK_AND_ASSIGN(
      const BatchMetadata batch,
      ParseBatch("{\"videos\": [{\"frames\": 8, \"width_px\": 64, "
                 "\"height_px\": 32}, {\"frames\": 8, \"width\": 64, "
                 "\"height\": 32}]}",
                 "b.jsonl", nullptr));
  const SampleMetadata& sample = batch.samples[SampleId(0)];
  ASSERT_EQ(sample.videos.size(), 2);
  EXPECT_EQ(sample.videos[0], sample.videos[1]);
  EXPECT_EQ(sample.videos[0].width, 64);
  EXPECT_THAT(
      ParseBatch(R"({"videos": [{"width": 3, "width_px": 3}]})", "b.jsonl",
                 nullptr),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("width_px")));
}

TEST(ParseBatchTest, VideosWithoutSizeOrLengthAreCounted) {
  std::vector<std::string> warnings;
  ASSERT_OK_AND_ASSIGN(
      const BatchMetadata batch,
      ParseBatch("{\"videos\": [{\"frames\": 8}, {\"width\": 64, \"height\": "
                 "32}, {\"seconds\": 2, \"width\": 64, \"height\": 32}]}",
                 "b.jsonl", &warnings));
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("1 of 3 videos have no width and height"),
                          HasSubstr("1 of 3 videos have neither frames nor")));
}

}  // namespace
}  // namespace pipeloom::formats
