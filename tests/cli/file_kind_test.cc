#include "cli/console/file_kind.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom::cli {
namespace {

using ::testing::ElementsAre;

TEST(MemberNamesTest, AreThoseOfTheFirstObjectOnly) {
  EXPECT_THAT(MemberNames(R"({"a": {"x": [1, {"y": 2}]}, "b": "c, \"d\": {",
                              "e": []} {"f": 1})"),
              ElementsAre("a", "b", "e"));
  EXPECT_THAT(MemberNames(R"({"a": 1, "b)"), ElementsAre("a"));
  EXPECT_THAT(MemberNames(R"({"a\)"), ElementsAre());
  EXPECT_THAT(MemberNames(""), ElementsAre());
  EXPECT_THAT(MemberNames("]]}}{\"a\":1}"), ElementsAre());
}

TEST(GuessFileKindTest, KnowsEveryKind) {
  const std::pair<std::string, FileKind> cases[] = {
      {R"({"model": "m", "cluster": "c"})", FileKind::kJob},
      {R"({"name": "m", "modules": [], "edges": []})", FileKind::kModel},
      {R"({"name": "c", "device": {}, "num_nodes": 1})", FileKind::kCluster},
      {R"({"version": 1, "device": "d", "rates": {}})", FileKind::kProfile},
      {R"({"text_tokens": 1})", FileKind::kBatch},
      {"\n {\"images\": []}", FileKind::kBatch},
      {"{}\n{\"text_tokens\": 1}", FileKind::kBatch},
      {"{ }\n", FileKind::kUnknown},
      {"", FileKind::kUnknown},
      {R"({"ranks": [], "tasks": []})", FileKind::kTaskGraph},
      {R"({"format": "pipeloom.partition", "num_ranks": 1, "modules": []})",
       FileKind::kPartition},
      {R"({"something": 1})", FileKind::kUnknown},
      {R"({"name": "m", "moduls": [], "edges": []})", FileKind::kUnknown},
      {"# Title\n\nplans are made\n", FileKind::kUnknown},
      {"[1, 2]", FileKind::kUnknown},
      {"# of a step\nplan 1\n", FileKind::kPlanText},
      {"plan 1\nrank 0\n", FileKind::kPlanText},
      {std::string("\x0a\x03\x01\x02", 4), FileKind::kPlanBytes},
  };
  for (const auto& [content, kind] : cases) {
    EXPECT_EQ(GuessFileKind(content), kind) << content;
  }
}

}  // namespace
}  // namespace pipeloom::cli
