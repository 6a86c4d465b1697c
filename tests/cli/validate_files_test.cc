// Tests of `validate` with partitions and with files of no known kind.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class ValidateFilesTest : public ::testing::Test {
 protected:
  ValidateFilesTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-validate-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ValidateFilesTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& contents) {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_TRUE(WriteFileAtomically(path, contents).ok());
    return path;
  }
  std::string folder_;
};

TEST_F(ValidateFilesTest, ChecksPartitions) {
  const std::string path = absl::StrCat(folder_, "/p.json");
  const Outcome made = Pipeloom({"partition", "dip-vlm-s", "--batch",
                                 "image_text", "--rule", "--out", path});
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome alone = Pipeloom({"validate", path});
  EXPECT_EQ(alone.code, 0) << alone.out;
  EXPECT_THAT(alone.out,
              AllOf(HasSubstr("p.json: OK, partition of dip-vlm-s: "),
                    HasSubstr(" stages on 4 ranks; its modules and layers are "
                              "checked with --job and --batch")));
  const auto with_job = [](const std::string& file) {
    return Pipeloom(
        {"validate", file, "--job", "dip-vlm-s", "--batch", "image_text"});
  };
  EXPECT_EQ(with_job(path).code, 0) << with_job(path).out;
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(path));
  const std::string other = Write(
      "other.json", absl::StrReplaceAll(text, {{"\"backbone\"", "\"spine\""}}));
  EXPECT_EQ(Pipeloom({"validate", other}).code, 0);
  const Outcome wrong = with_job(other);
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out, AllOf(HasSubstr("is \"spine\""),
                               HasSubstr("(read as a partition)")));
  const Outcome typo = Pipeloom(
      {"validate", Write("typo.json", absl::StrReplaceAll(
                                          text, {{"\"rank\"", "\"rnk\""}}))});
  EXPECT_EQ(typo.code, 1);
  EXPECT_THAT(typo.out, HasSubstr("rnk\" is not known"));
}

TEST_F(ValidateFilesTest, RefusesFilesOfNoKnownKind) {
  const std::pair<std::string, const char*> cases[] = {
      {Write("e.json", "{}"),
       "e.json is a file of no known kind: it is an empty object; jobs have"},
      {Write("README.md", "# Plans\n\nPipeloom plans.\n"),
       "README.md is a file of no known kind; jobs have the member \"model\""},
      {Write("m.json", R"({"name": "m", "moduls": [], "edges": []})"),
       "m.json is a file of no known kind: its members are name, moduls, "
       "edges; jobs have"},
      {Write("none", "\n"), "none is empty"},
  };
  for (const auto& [file, message] : cases) {
    SCOPED_TRACE(message);
    const Outcome outcome = Pipeloom({"validate", file});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr(message), Not(HasSubstr("read as"))));
  }
  // A batch may have an empty sample.
  EXPECT_EQ(Pipeloom({"validate", Write("b.jsonl", "{}\n")}).code, 0);
}

TEST_F(ValidateFilesTest, SaysWhatABadFileWasReadAs) {
  const std::string file = Write("m.json", R"({"modules": [], "colour": 1})");
  EXPECT_THAT(Pipeloom({"validate", file}).out, HasSubstr("(read as a model)"));
  const Json json =
      Json::parse(Pipeloom({"validate", file, "--format", "json"}).out);
  EXPECT_EQ(json["files"][0]["kind"], "model");
  EXPECT_EQ(json["files"][0]["ok"], false);
}

}  // namespace
}  // namespace pipeloom::cli
