#include "formats/text/json_reader.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::HasSubstr;

TEST(ParseJsonTest, EveryValueKnowsItsLine) {
  ASSERT_OK_AND_ASSIGN(const JsonValue json, ParseJson(R"({
  "a": 1,
  "b": [
    true, null,
    -2.5
  ],
  "c":
    {"d": "text"},
  "e": 18446744073709551615
})",
                                                       "f.json"));
  ASSERT_EQ(json.kind, JsonValue::Kind::kObject);
  EXPECT_THAT(json.keys, ::testing::ElementsAre("a", "b", "c", "e"));
  EXPECT_EQ(json.line, 1);
  EXPECT_EQ(json.items[0].line, 2);
  EXPECT_EQ(json.items[0].integer, 1);
  const JsonValue& list = json.items[1];
  EXPECT_EQ(list.line, 3);
  ASSERT_EQ(list.items.size(), 3u);
  EXPECT_EQ(list.items[0].line, 4);
  EXPECT_EQ(list.items[0].kind, JsonValue::Kind::kBool);
  EXPECT_EQ(list.items[1].kind, JsonValue::Kind::kNull);
  EXPECT_EQ(list.items[2].line, 5);
  EXPECT_EQ(list.items[2].number, -2.5);
  EXPECT_EQ(json.items[2].line, 8);
  EXPECT_EQ(json.items[2].items[0].string, "text");
  EXPECT_EQ(json.items[3].kind, JsonValue::Kind::kUnsigned);
  EXPECT_EQ(json.items[3].line, 9);
}

TEST(ParseJsonTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string name;
    std::string text;
    std::string expected;
  };
  const Case cases[] = {
      {"empty", "", "f.json:1: not valid JSON: "},
      {"blank", "\n\n  \n", "not valid JSON: "},
      {"truncated", "{\"a\": 1,\n\"b\": [1, 2",
       "f.json:2: not valid JSON: syntax error"},
      {"two values", "{}\n{}", "f.json:2: not valid JSON: "},
      {"comment", "// no\n{}", "f.json:1: not valid JSON: "},
      {"not UTF-8", "{\n\"a\": \"\xff\xfe\"}", "f.json:2: not valid JSON: "},
      {"raw bytes", "\x80\x80", "f.json:1: not valid JSON: "},
      {"same key twice", "{\"a\": 1,\n\"a\": 2}",
       "f.json:2: field \"a\" is given twice"},
      {"same key twice inside", "[{\"b\": 1},\n{\"a\": [], \"a\": 2}]",
       "f.json:2: field \"a\" is given twice"},
      {"number too large", "[1e999]", "f.json:1: not valid JSON: "},
      {"not a number", "[NaN]", "f.json:1: not valid JSON: "},
      {"deep", std::string(65, '['), "nested deeper than 64 levels"},
      {"very deep", std::string(1'000'000, '['),
       "nested deeper than 64 levels"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto json = ParseJson(c.text, "f.json");
    EXPECT_THAT(json, FailsWith(absl::StatusCode::kInvalidArgument,
                                HasSubstr(c.expected)));
    for (const char ch : std::string(json.status().message())) {
      EXPECT_TRUE(ch >= ' ' && ch <= '~');
    }
  }
}

TEST(ParseJsonTest, ReadsNestingUpToTheLimit) {
  EXPECT_TRUE(ParseJson(std::string(64, '[') + std::string(64, ']'), "f").ok());
}

}  // namespace
}  // namespace pipeloom::formats
