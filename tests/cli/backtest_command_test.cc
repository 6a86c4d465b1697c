// `backtest` as programs see it.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Json = nlohmann::json;

std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A folder that is removed with the test.
class BacktestSetTest : public ::testing::Test {
 protected:
  BacktestSetTest() {
    char name[] = "/tmp/pipeloom-backtest-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~BacktestSetTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  std::string Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(
        std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name)) << text;
    return Path(name);
  }

 private:
  std::string folder_;
};

TEST(BacktestCommandTest, FitsNothingUnlessAskedAndIsWhatEmulateAgainstPrints) {
  const std::string table =
      PIPELOOM_SOURCE_DIR "/workloads/validation/simumax_b200.csv";
  const Outcome plain = Pipeloom({"backtest", table, "--format", "json"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("\"fitted_rows\": 0"));
  EXPECT_THAT(plain.out, HasSubstr("\"peak_memory\""));
  const Outcome alias =
      Pipeloom({"emulate", "--against", table, "--format", "json"});
  EXPECT_EQ(alias.out, plain.out);
  const Outcome fitted =
      Pipeloom({"backtest", table, "--fit", "--format", "json"});
  EXPECT_THAT(fitted.out, Not(HasSubstr("\"fitted_rows\": 0")));
}

TEST_F(BacktestSetTest, AFitThatCannotBeOrEndsAtItsGridSaysSo) {
  const auto rows = [](const std::string& setup, const std::string& step_ms,
                       const std::string& split) {
    std::string text =
        "framework,run,cluster,shape,layout,setup,microbatch,global_batch,"
        "sequence,step_ms,peak_gib,split\n";
    for (const std::string dp : {"1", "2"}) {
      text += "mine,r" + dp +
              ",h100-sxm,layers=8 hidden=1024 heads=8 ffn=4096 gated=1 "
              "vocab=32000,tp=2 pp=2 dp=" +
              dp + "," + setup + ",1,16,1024," + step_ms + ",," + split + "\n";
    }
    return text;
  };
  const Outcome one = Pipeloom(
      {"backtest", Write("a.csv", rows("precision=bf16", "500", "")), "--fit"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out,
              HasSubstr("x 1.000, not fitted: 1 configuration; needs 5, or "
                        "rows with split fit"));
  const Outcome plain =
      Pipeloom({"backtest", Write("a.csv", rows("precision=bf16", "500", ""))});
  EXPECT_THAT(plain.out, Not(HasSubstr("needs 5")));
  const Outcome host = Pipeloom(
      {"backtest",
       Write("b.csv", rows("precision=bf16 scalar=host", "90000", "fit")),
       "--fit"});
  ASSERT_EQ(host.code, 0) << host.err;
  EXPECT_THAT(host.out, HasSubstr("63.00 us a kernel"));
  EXPECT_THAT(host.out, HasSubstr("an end of what is tried, 0 to 63 us"));
}

TEST_F(BacktestSetTest, SeveralTablesHaveALineEachAndTheWhole) {
  const std::vector<std::string> args = {"backtest", "primus", "torchtitan"};
  const Outcome table = Pipeloom(args);
  ASSERT_EQ(table.code, 0) << table.err;
  const Outcome json = Pipeloom({"backtest", "primus", "torchtitan", "--format",
                                 "json", "--csv", Path("all.csv")});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json both = Json::parse(json.out);
  ASSERT_EQ(both["tables"].size(), 2u);
  double sum = 0;
  double worst = 0;
  int runs = 0;
  for (const Json& one : both["tables"]) {
    // As that table alone.
    const Outcome alone =
        Pipeloom({"backtest", one["table"], "--format", "json"});
    const Json single = Json::parse(alone.out);
    EXPECT_EQ(one["runs"], single["runs"]);
    EXPECT_EQ(one["frameworks"], single["frameworks"]);
    EXPECT_EQ(one["step_time"]["rows"], one["runs"].size());
    sum += one["step_time"]["mean"].get<double>() *
           one["step_time"]["rows"].get<double>();
    worst = std::max(worst, one["step_time"]["worst"].get<double>());
    runs += one["step_time"]["rows"].get<int>();
  }
  const Json& all = both["all"];
  EXPECT_EQ(all["step_time"]["rows"], runs);
  EXPECT_NEAR(all["step_time"]["mean"].get<double>(), sum / runs, 1e-12);
  EXPECT_EQ(all["step_time"]["worst"].get<double>(), worst);
  EXPECT_EQ(all["peak_memory"], both["tables"][1]["peak_memory"]);

  std::istringstream lines(table.out);
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 5u) << table.out;
  EXPECT_THAT(rows[2], AllOf(StartsWith("primus "), HasSubstr(" 6 ")));
  EXPECT_THAT(rows[3], AllOf(StartsWith("torchtitan "), HasSubstr(" 5 ")));
  EXPECT_THAT(rows[4], AllOf(StartsWith("all "), HasSubstr(" 11 ")));
  const std::string csv = ReadAll(Path("all.csv"));
  EXPECT_THAT(csv, StartsWith("table,line,framework,run,"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 12);
  EXPECT_THAT(csv, HasSubstr("\n\"torchtitan\",4,torchtitan,"));
}

TEST_F(BacktestSetTest, WithoutATableThereAreAllThatShip) {
  // A data folder with two tables of runs and a file of another kind.
  const std::string workloads = PIPELOOM_SOURCE_DIR "/workloads";
  for (const char* name : {"jobs", "models", "clusters", "profiles"}) {
    std::filesystem::create_directory_symlink(workloads + "/" + name,
                                              Path(name));
  }
  std::filesystem::create_directory(Path("validation"));
  for (const char* name : {"primus.csv", "mi300x.json", "llama32_h200.csv",
                           "pipeline_replay_pp8.csv"}) {
    std::filesystem::copy(workloads + "/validation/" + name,
                          Path(std::string("validation/") + name));
  }
  const Outcome all =
      Pipeloom({"backtest", "--data-dir", Path(""), "--format", "json"});
  ASSERT_EQ(all.code, 0) << all.err;
  const Json json = Json::parse(all.out);
  ASSERT_EQ(json["tables"].size(), 2u);
  EXPECT_EQ(json["tables"][0]["table"], "llama32_h200");
  EXPECT_EQ(json["tables"][1]["table"], "primus");
  EXPECT_EQ(json["all"]["step_time"]["rows"], 15);

  std::filesystem::remove_all(Path("validation"));
  const Outcome none = Pipeloom({"backtest", "--data-dir", Path("")});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("validation has no table of measured runs"));
}

TEST_F(BacktestSetTest, ATableThatIsWrongIsNamedAndNothingIsPrinted) {
  const std::string primus =
      ReadAll(PIPELOOM_SOURCE_DIR "/workloads/validation/primus.csv");
  std::string cluster = primus;
  cluster.replace(cluster.find("mi300x.json"), 11, "mi301x.json");
  const struct {
    std::string table;
    std::string says;
  } cases[] = {
      {Path("none.csv"), "none.csv: No such file"},
      {Write("empty.csv", ""), "empty.csv:1: is empty"},
      {Write("c.csv", cluster), "c.csv:4: cannot open " + Path("mi301x.json")},
      {"primsu", "no table \"primsu\"; there is bloom, bridge_cards, "},
  };
  for (const auto& c : cases) {
    for (const bool first : {false, true}) {
      const Outcome outcome =
          first ? Pipeloom({"backtest", c.table, "torchtitan"})
                : Pipeloom({"backtest", "torchtitan", c.table});
      EXPECT_EQ(outcome.code, 2);
      EXPECT_THAT(outcome.err, HasSubstr(c.says));
      EXPECT_EQ(outcome.out, "");
    }
  }
}

TEST_F(BacktestSetTest, ScalarsThatAFitWouldSetAreNamed) {
  const Outcome open = Pipeloom({"backtest", "vtrain_single", "primus"});
  EXPECT_THAT(open.out, HasSubstr("to launch a kernel in vtrain_single, "));
  const Outcome fitted =
      Pipeloom({"backtest", "vtrain_single", "primus", "--fit"});
  EXPECT_THAT(fitted.out, Not(HasSubstr("to launch a kernel in")));
  EXPECT_THAT(fitted.out,
              HasSubstr("vtrain_single, vtrain-single: 40.00 us a kernel"));
}

TEST_F(BacktestSetTest, PredictionsOfOthersCountInNoMean) {
  const Outcome alone =
      Pipeloom({"backtest", "primus", "torchtitan", "--format", "json"});
  const std::vector<std::string> both = {"backtest", "primus", "torchtitan",
                                         "vtrain_single"};
  std::vector<std::string> as_json = both;
  as_json.insert(as_json.end(), {"--format", "json"});
  const Json with = Json::parse(Pipeloom(as_json).out);
  EXPECT_EQ(with["all"], Json::parse(alone.out)["all"]);
  EXPECT_EQ(with["tables"][2]["step_time"]["rows"], 557);
  EXPECT_THAT(Pipeloom(both).out, HasSubstr("not among all: vtrain_single.\n"));
}

size_t CountOf(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; ++at) ++count;
  return count;
}

TEST_F(BacktestSetTest, ThePageHasEveryRunAndWorksWithoutANetwork) {
  const Outcome outcome = Pipeloom(
      {"backtest", "primus", "torchtitan", "--report", Path("page.html")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = ReadAll(Path("page.html"));
  // 11 step times and 5 peaks, each a mark and a row.
  EXPECT_EQ(CountOf(page, "<circle"), 16u);
  EXPECT_EQ(CountOf(page, "<tr><th scope=\"row\""), 16u);
  EXPECT_EQ(CountOf(page, "http://") + CountOf(page, "https://"), 0u);
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("width=device-width"));
}

TEST_F(BacktestSetTest, ThePageGroupsErrorsByCause) {
  const Outcome outcome = Pipeloom({"backtest", "simumax_b200", "bridge_cards",
                                    "--report", Path("page.html")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = ReadAll(Path("page.html"));
  for (const char* cause :
       {"By table", "By GPU", "By precision of products", "By kind of model"}) {
    EXPECT_THAT(page, HasSubstr(cause));
  }
  for (const char* group :
       {"<span>dense</span>", "<span>experts</span>", "<span>B200</span>",
        "<span>GB300</span>", "<span>16 bits</span>", "<span>mxfp8</span>"}) {
    EXPECT_THAT(page, HasSubstr(group));
  }
}

TEST_F(BacktestSetTest, ThePageOfOneTableMarksTheRunsOfAFit) {
  const std::vector<std::string> args = {"backtest", "simumax_b200", "--report",
                                         Path("page.html")};
  ASSERT_EQ(Pipeloom(args).code, 0);
  const std::string plain = ReadAll(Path("page.html"));
  EXPECT_THAT(plain, Not(HasSubstr("By table")));
  EXPECT_THAT(plain, Not(HasSubstr("class=\"hollow\"")));
  EXPECT_THAT(plain, HasSubstr("with no scalar fitted"));
  std::vector<std::string> fit = args;
  fit.push_back("--fit");
  ASSERT_EQ(Pipeloom(fit).code, 0);
  const std::string fitted = ReadAll(Path("page.html"));
  EXPECT_EQ(CountOf(fitted, "class=\"hollow\""), 3u);
  EXPECT_EQ(CountOf(fitted, ", used to fit)"), 3u);
  EXPECT_EQ(CountOf(fitted, "<td>fit</td>"), 3u);
  EXPECT_THAT(fitted, HasSubstr("of 10 runs"));
}

}  // namespace
}  // namespace pipeloom::cli
