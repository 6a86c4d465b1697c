// `pipeloom model` as a whole.
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/run_command.h"
#include "tests/model_config/fixtures.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Tests run at the same time.
    folder_ = absl::StrCat(
        ::testing::TempDir(), "pipeloom_model_command_",
        ::testing::UnitTest::GetInstance()->current_test_info()->name(), "/");
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(Path("qwen"));
    Write("qwen/config.json",
          formats::ReadFixture("configs.json")["qwen2.5-vl-7b"].dump());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, name);
  }

  std::string folder_{};
};

TEST_F(ModelCommandTest, WritesAFileThatThePlannerTakes) {
  const std::string out = Path("model.json");
  const Outcome made = Pipeloom({"model", Path("qwen"), "--out", out});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(
      made.out,
      AllOf(HasSubstr("model qwen (qwen2_5_vl)"), HasSubstr("vision_encoder"),
            HasSubstr("8,292,166,656"), HasSubstr("assumed: ")));
  const Outcome checked = Pipeloom({"validate", out});
  EXPECT_EQ(checked.code, 0) << checked.out;
  EXPECT_THAT(checked.out, HasSubstr("model qwen: 8.29B parameters"));
  Write("tiny.json", R"({"name": "tiny", "modules": [{"name": "text",
      "role": "MODULE_ROLE_BACKBONE", "layers": [{"layer": {
      "kind": "LAYER_KIND_EMBEDDING", "hidden": 8, "vocab": 100}}]}]})");
  EXPECT_THAT(Pipeloom({"validate", Path("tiny.json")}).out,
              HasSubstr("model tiny: 0.0008M parameters in 1 module\n"));
  const Outcome as_json =
      Pipeloom({"validate", out, Path("tiny.json"), "--format", "json"});
  EXPECT_EQ(as_json.code, 0) << as_json.out;
  const nlohmann::json files = nlohmann::json::parse(as_json.out)["files"];
  EXPECT_EQ(files[0]["parameters"], 8292166656);
  int64_t sum = 0;
  for (const auto& module : files[0]["modules"]) {
    sum += module["parameters"].get<int64_t>();
  }
  EXPECT_EQ(sum, 8292166656);
  EXPECT_EQ(files[1]["parameters"], 800);
  EXPECT_EQ(files[1]["modules"][0]["name"], "text");
}

TEST_F(ModelCommandTest, NamesTheModelAfterItsFolder) {
  for (const char* path :
       {"qwen", "qwen/", "qwen/.", "qwen/../qwen/config.json"}) {
    const Outcome made = Pipeloom({"model", Path(path)});
    EXPECT_THAT(made.out, HasSubstr("model qwen (")) << path;
  }
}

TEST_F(ModelCommandTest, PrintsJson) {
  const Outcome made = Pipeloom({"model", Path("qwen/config.json"), "--format",
                                 "json", "--name", "mine"});
  EXPECT_EQ(made.code, 0) << made.err;
  const nlohmann::json json = nlohmann::json::parse(made.out);
  EXPECT_EQ(json["name"], "mine");
  EXPECT_EQ(json["parameters"], 8292166656);
  EXPECT_EQ(json["modules"].size(), 2u);
  EXPECT_TRUE(json["missing"].empty());
  EXPECT_TRUE(json["out"].is_null());
}

TEST_F(ModelCommandTest, AnUnknownArchitectureFailsAndWritesWhatIsKnown) {
  nlohmann::json config = formats::ReadFixture("configs.json")["llama3-8b"];
  config["model_type"] = "llama9";
  Write("config.json", config.dump());
  const std::string out = Path("model.json");
  const Outcome made = Pipeloom({"model", Path("config.json"), "--out", out});
  EXPECT_EQ(made.code, 1);
  EXPECT_THAT(made.out, HasSubstr("missing: "));
  EXPECT_THAT(made.err, HasSubstr("the model is incomplete: 2 things are "
                                  "missing; "));
  EXPECT_TRUE(std::filesystem::exists(out));
}

TEST_F(ModelCommandTest, RefusesWhatItCannotReadOrWrite) {
  EXPECT_EQ(Pipeloom({"model"}).code, 2);
  const Outcome absent = Pipeloom({"model", Path("nothing")});
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err,
              HasSubstr("there is no file or folder " + Path("nothing")));
  const Outcome unwritable = Pipeloom(
      {"model", Path("nothing"), "--out", Path("no/such/folder.json")});
  EXPECT_EQ(unwritable.code, 2) << "before the configuration is read";
  EXPECT_THAT(unwritable.err, HasSubstr("--out"));
}

}  // namespace
}  // namespace pipeloom::cli
