// `pipeloom bench` as programs see it: answers of others judged, errors named,
// files written.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "formats/graph/problem_suite.h"
#include "studies/bench/bench_journal.h"
#include "studies/bench/bench_runs.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class BenchCommandTest : public ::testing::Test {
 protected:
  BenchCommandTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-bench-XXXXXX";
    folder_ = mkdtemp(name.data());
    Write("two.json", R"({"name": "two", "ranks": [{}], "tasks": [
      {"id": 7, "kind": "FORWARD", "duration_us": 3},
      {"id": 5, "kind": "BACKWARD", "duration_us": 4}],
      "edges": [{"from": 7, "to": 5}]})");
    Write("suite.json", R"({"problems": [
      {"name": "two", "graph": "two.json", "best_known_us": 7},
      {"name": "gone", "graph": "gone.json"},
      {"name": "pipe", "family": "small", "pipeline": {"ranks": 2,
       "microbatches": 3, "modules": [{"forward_us": 1, "backward_us": 2}]}}
    ]})");
  }
  ~BenchCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), text).ok());
  }
  int Run(std::vector<std::string> args) {
    out_.clear();
    err_.clear();
    Context context;
    context.print = [&](absl::string_view text) {
      absl::StrAppend(&out_, text);
    };
    context.warn = [&](absl::string_view text) {
      absl::StrAppend(&err_, text);
    };
    args.insert(args.begin(), "bench");
    return RunCommandLine(args, context);
  }

  std::string folder_{};
  std::string out_{};
  std::string err_{};
};

TEST_F(BenchCommandTest, JudgesEverySchedulesAndOthersAnswers) {
  std::filesystem::create_directory(Path("right"));
  std::filesystem::create_directory(Path("wrong"));
  Write("right/two.json", R"({"order": [[7, 5]]})");
  Write("wrong/two.json", R"({"order": [[5, 7]]})");
  ASSERT_EQ(Run({"--suite", Path("suite.json"), "--budgets", "5ms",
                 "--strategies", "1f1b,pipeloom", "--answers",
                 absl::StrCat("peer=", Path("right"), ",rival=", Path("wrong")),
                 "--out", Path("made"), "--format", "json"}),
            1);
  EXPECT_THAT(err_, HasSubstr("1 of 3 problems could not be read: gone"));
  const Json json = Json::parse(out_);
  const Json& two = json["problems"][0];
  EXPECT_EQ(two["best_us"], 7);
  EXPECT_EQ(two["rows"].size(), 4u);
  EXPECT_EQ(two["rows"][1]["schedule"], "pipeloom");
  EXPECT_EQ(two["rows"][1]["step_time_us"], 7);
  EXPECT_EQ(two["rows"][2]["schedule"], "peer");
  EXPECT_EQ(two["rows"][2]["step_time_us"], 7);
  EXPECT_TRUE(two["rows"][3].contains("error")) << two["rows"][3];
  EXPECT_THAT(json["problems"][1]["error"].get<std::string>(),
              HasSubstr("gone.json"));
  // 3 microbatches on 2 ranks of 1 + 2: a chain of 6 and two more units of 3.
  EXPECT_EQ(json["problems"][2]["rows"][1]["step_time_us"], 12);
  for (const char* name : {"results.json", "results.md", "index.html"}) {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         ReadFile(absl::StrCat(Path("made/"), name)));
    EXPECT_THAT(text, HasSubstr("pipe")) << name;
  }
}

TEST_F(BenchCommandTest, AProblemThatNobodySolvesHasAReasonAndNoTimes) {
  Write("tight.json", R"({"problems": [
      {"name": "tight", "pipeline": {"ranks": 2, "microbatches": 3,
       "modules": [{"forward_us": 10, "backward_us": 20,
                    "activation_bytes": 5}], "memory_limit_bytes": 4}}]})");
  const std::vector<std::string> args = {
      "--suite", Path("tight.json"), "--budgets", "1ms",
      "--out",   Path("made"),       "--format",  "table"};
  ASSERT_EQ(Run(args), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("tight: no schedule: rank 0: task 0"));
  EXPECT_THAT(out_, HasSubstr("needs 5 B, 1 B over the limit of 4 B"));
  EXPECT_THAT(out_, Not(HasSubstr("0 ns")));
  for (const char* name : {"results.md", "index.html"}) {
    ASSERT_OK_AND_ASSIGN(const std::string text,
                         ReadFile(absl::StrCat(Path("made/"), name)));
    EXPECT_THAT(text, HasSubstr("tight: no schedule: rank 0")) << name;
    EXPECT_THAT(text, AnyOf(HasSubstr("| gpipe | 0 of 1 | - | - | - | - | - |"),
                            HasSubstr("<td>gpipe</td><td>0 of 1</td><td>-<")))
        << name;
    EXPECT_THAT(text, Not(HasSubstr("1 problems"))) << name;
  }
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadFile(Path("made/results.json")));
  const Json problem = Json::parse(text)["problems"][0];
  EXPECT_TRUE(problem["lower_bound_us"].is_null());
  EXPECT_TRUE(problem["best_us"].is_null());
}

TEST_F(BenchCommandTest, ProblemsThatCannotBeReadFailAfterTheOthersAreShown) {
  Write("some.json", R"({"problems": [
      {"name": "two", "graph": "two.json"}, {"name": "gone", "graph": "gone.json"},
      {"name": "none", "job": "no-such-job", "batch": "image_text"}]})");
  EXPECT_EQ(Run({"--suite", Path("some.json"), "--budgets", "1ms",
                 "--strategies", "pipeloom"}),
            1);
  EXPECT_THAT(out_, HasSubstr("two"));
  EXPECT_THAT(out_, HasSubstr("no-such-job"));
  EXPECT_THAT(err_, HasSubstr("2 of 3 problems could not be read: gone, none"));
}

TEST_F(BenchCommandTest, OneGraphAloneIsProblemEnough) {
  ASSERT_EQ(Run({"--graphs", Path("two.json"), "--budgets", "1ms"}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("two"));
  EXPECT_THAT(out_, HasSubstr("pipeloom 1 ms"));
}

TEST_F(BenchCommandTest, MisuseIsExplainedWithExitCodeTwo) {
  EXPECT_EQ(Run({"--budgets", "soon"}), 2);
  EXPECT_THAT(err_, HasSubstr("soon"));
  EXPECT_EQ(Run({"--answers", "peer=" + Path("no_such_folder")}), 2);
  EXPECT_EQ(Run({"--answers", "peer"}), 2);
  EXPECT_THAT(err_, HasSubstr("NAME=DIR"));
  EXPECT_EQ(Run({"--suite", Path("suite.json"), "--problems", "nothing"}), 2);
  EXPECT_THAT(err_, HasSubstr("\"nothing\""));
  EXPECT_EQ(Run({"--strategies", "fastest"}), 2);
  EXPECT_EQ(Run({"extra"}), 2);
}

TEST_F(BenchCommandTest, AnswersThatDoNotCountAreExplained) {
  std::filesystem::create_directory(Path("wrong"));
  std::filesystem::create_directory(Path("other"));
  Write("wrong/two.json", R"({"order": [[5, 7]]})");
  Write("other/2.json", R"({"order": [[7, 5]]})");
  const auto run = [&](const std::string& answers) {
    return Run({"--graphs", Path("two.json"), "--budgets", "1ms",
                "--strategies", "pipeloom", "--answers", answers});
  };
  ASSERT_EQ(run(absl::StrCat("rival=", Path("wrong"), ",peer=", Path("other"))),
            0)
      << err_;
  EXPECT_THAT(out_, HasSubstr("two: the answer of rival does not count: "));
  EXPECT_THAT(err_, HasSubstr(absl::StrCat(
                        "note: ", Path("other"),
                        " has no answer of peer to any problem; files would "
                        "be named two.json")));
  EXPECT_THAT(err_, Not(HasSubstr("of rival")));
  EXPECT_EQ(run("pipeloom=" + Path("wrong")), 2);
  EXPECT_THAT(err_, HasSubstr("pipeloom is a schedule of Pipeloom's own"));
  EXPECT_EQ(run(absl::StrCat("a=", Path("wrong"), ",a=", Path("other"))), 2);
  EXPECT_THAT(err_, HasSubstr("--answers has a twice"));
}

TEST_F(BenchCommandTest, AnInterruptedRunGoesOnFromItsJournal) {
  const std::vector<std::string> args = {
      "--suite",      Path("suite.json"),    "--budgets", "2ms,5ms",
      "--strategies", "1f1b,gpipe,pipeloom", "--threads", "1",
      "--out",        Path("made"),          "--format",  "json"};
  ASSERT_EQ(Run(args), 1) << err_;  // One problem cannot be read.
  EXPECT_FALSE(FileExists(Path("made/journal")));
  // The journal of a run that was interrupted after some outcomes, while it
  // wrote the next.
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(Path("suite.json")));
  ASSERT_OK_AND_ASSIGN(const formats::ProblemSuite suite,
                       formats::ParseProblemSuite(text, "suite.json"));
  studies::BenchOptions options;
  options.schedules = {"1f1b", "gpipe", "pipeloom"};
  options.budgets = {Milliseconds(2), Milliseconds(5)};
  options.most_of_others = Seconds(1);
  const studies::StudyContext quiet;
  const auto read = [](const std::string& path) { return ReadFile(path); };
  ASSERT_OK_AND_ASSIGN(studies::BenchJournal journal,
                       studies::BenchJournal::Open(Path("made/journal"), read));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<studies::BenchResult> first,
      studies::RunBench({suite.problems[2]}, options, quiet, &journal));
  ASSERT_OK_AND_ASSIGN(std::string lines, ReadFile(Path("made/journal")));
  const size_t second = lines.find('\n', lines.find('\n') + 1) + 1;
  Write("made/journal", lines.substr(0, second + 40));
  ASSERT_EQ(Run(args), 1) << err_;
  EXPECT_THAT(err_, HasSubstr("2 outcomes of an interrupted run"));
  const Json rows = Json::parse(out_)["problems"][2]["rows"];
  for (size_t i = 0; i < 2; ++i) {
    // To the nanosecond: it was not run again.
    EXPECT_NEAR(rows[i]["search_us"].get<double>(),
                ToMicroseconds(first[0].rows[i].search_time), 1e-3);
  }
  EXPECT_FALSE(FileExists(Path("made/journal")));
  Write("made/journal", "notes of mine\n");
  EXPECT_EQ(Run(args), 1);
  EXPECT_THAT(err_, HasSubstr("is no journal of bench"));
}

}  // namespace
}  // namespace pipeloom::cli
