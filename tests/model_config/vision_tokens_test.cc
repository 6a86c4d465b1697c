// Tokens of an image by the rules that configurations give, and by the real
// processors (real_tokens.py).
#include <cstdint>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/token_count.h"
#include "tests/model_config/fixtures.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::nlohmann::json;

constexpr ModuleId kVision(0);

// Returns the differences in tokens between the rules of a configuration and
// column `column` of tokens.json.
struct Differences {
  int images = 0;
  int different = 0;
  std::string first{};
};

absl::StatusOr<Differences> Compare(const std::string& config,
                                    const std::string& processor,
                                    const std::string& column) {
  absl::StatusOr<ConfigModel> read =
      ParseModelConfig({.config_name = "config.json",
                        .config = ReadFixture("configs.json")[config].dump(),
                        .processor_name = "preprocessor_config.json",
                        .processor = processor},
                       "model");
  if (!read.ok()) return read.status();
  const json tokens = ReadFixture("tokens.json");
  size_t at = 0;
  while (tokens["columns"][at] != column) ++at;
  Differences result;
  for (const json& row : tokens["images"]) {
    SampleMetadata sample;
    sample.images = {{.width = row[0], .height = row[1]}};
    const int64_t ours =
        partition::SampleWork(read->model, sample)[kVision].output_tokens;
    ++result.images;
    if (ours == row[at].get<int64_t>()) continue;
    if (++result.different == 1) {
      result.first = absl::StrCat(row.dump(), ": ", ours);
    }
  }
  return result;
}

TEST(VisionTokensTest, QwenImagesHaveTheTokensOfTheRealProcessor) {
  struct Case {
    std::string config;
    std::string processor;
    std::string column;
  };
  const Case cases[] = {
      {"qwen2.5-vl-7b", "", "qwen2.5-vl"},
      {"qwen2-vl-2b", R"({"min_pixels": 3136, "max_pixels": 12845056})",
       "qwen2.5-vl"},
      {"qwen2.5-vl-3b", R"({"min_pixels": 200704, "max_pixels": 1003520})",
       "qwen2.5-vl-small"},
      {"qwen3-vl-8b",
       R"({"size": {"shortest_edge": 65536, "longest_edge": 16777216}})",
       "qwen3-vl"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.config);
    ASSERT_OK_AND_ASSIGN(const Differences found,
                         Compare(c.config, c.processor, c.column));
    EXPECT_EQ(found.images, 1000);
    EXPECT_EQ(found.different, 0) << found.first;
  }
}

TEST(VisionTokensTest, InternVlImagesHaveTheTokensOfTheRealProcessor) {
  ASSERT_OK_AND_ASSIGN(const Differences found,
                       Compare("internvl3-8b", "", "internvl3"));
  EXPECT_EQ(found.images, 1000);
  EXPECT_EQ(found.different, 0) << found.first;
}

TEST(VisionTokensTest, OneVisionImagesHaveTheTokensOfTheRealProcessor) {
  ASSERT_OK_AND_ASSIGN(const Differences found,
                       Compare("llava-onevision-7b", "", "llava-onevision"));
  EXPECT_EQ(found.images, 1000);
  EXPECT_EQ(found.different, 0) << found.first;
}

TEST(VisionTokensTest, LlavaImagesHaveTheTokensOfTheRealProcessor) {
  ASSERT_OK_AND_ASSIGN(const Differences found,
                       Compare("llava-1.5-7b", "", "llava-1.5"));
  EXPECT_EQ(found.images, 1000);
  EXPECT_EQ(found.different, 0) << found.first;
}

}  // namespace
}  // namespace pipeloom::formats
