// Tests of `whatif` and `explain`: sweeps, journals, suggestions that hold.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "studies/whatif/whatif_case.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class WhatIfTest : public ::testing::Test {
 protected:
  WhatIfTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-whatif-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~WhatIfTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  static std::vector<std::string> WhatIf(std::vector<std::string> more) {
    std::vector<std::string> args = {"whatif",        "dip-vlm-s",  "--batch",
                                     "image_text",    "--schedule", "1f1b",
                                     "--evaluations", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // Returns the path of a batch whose samples fill a microbatch of llama3-8b.
  std::string EqualTexts() const {
    std::string lines;
    for (int i = 0; i < 40; ++i) lines += "{\"text_tokens\": 8192}\n";
    EXPECT_THAT(WriteFileAtomically(Path("b.jsonl"), lines), IsOk());
    return Path("b.jsonl");
  }
  std::string folder_;
};

TEST_F(WhatIfTest, SaysWhatIsWrongWithAPath) {
  const struct {
    const char* set;
    const char* says;
  } cases[] = {
      {"training.microbatchs=3", "training.microbatchs"},
      {"training.microbatches=-3", "must be in [1, 1000000]"},
      {"training.microbatches=many", "\"many\""},
      {"model.modules[nothing].precision=PRECISION_FP8", "no item \"nothing\""},
      {"model.modules[0.name=x", "lacks a \"]\""},
      {"parallel.pp.x=3", "no field \"x\""},
      {"cluster=moon", "there is no such cluster"},
      {"name=*2", "the factor *2 cannot be put on"},
      {"parallel.pp=4096", "GPUs"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.set);
    const Outcome outcome = Pipeloom(WhatIf({"--set", c.set}));
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr(c.says));
  }
}

TEST_F(WhatIfTest, ASweepOfNoFieldIsRefusedBeforePlanning) {
  const struct {
    const char* sweep;
    const char* says;
  } cases[] = {
      {"parallel.ppp=2,4",
       "--sweep: dip-vlm-s with parallel.ppp=2: field \"parallel.ppp\" is not "
       "known"},
      {"parallel.pp=2,four", "with parallel.pp=four: field"},
      {"parallel.pp=", "--sweep parallel.pp= has an empty value; give values"},
      {"parallel.pp", "--sweep: \"parallel.pp\" is no change of a field"},
      {"cluster=moon", "--sweep: cluster=moon: there is no such cluster"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.sweep);
    const Outcome outcome = Pipeloom(WhatIf({"--sweep", c.sweep}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(c.says));
  }
  // Values that do not fit the job have their reason in their rows.
  const Outcome large = Pipeloom(WhatIf({"--sweep", "parallel.pp=4096"}));
  EXPECT_EQ(large.code, 1);
  EXPECT_THAT(large.out, HasSubstr("as it is"));
  EXPECT_THAT(large.err,
              HasSubstr("none of the changed configurations can run: dip-vlm-s "
                        "with parallel.pp=4096: parallel: "));
}

TEST_F(WhatIfTest, SettingAFieldGivesThePlanOfAJobThatHasIt) {
  const Outcome set = Pipeloom(
      WhatIf({"--set", "training.microbatches=8", "--format", "json"}));
  ASSERT_EQ(set.code, 0) << set.err;
  const Outcome plan = Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text",
                                 "--schedule", "1f1b", "--evaluations", "1",
                                 "--microbatches", "8", "--format", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(Json::parse(set.out)["configurations"][0]["step_time_us"],
            Json::parse(plan.out)["steps"][0]["step_time_us"]);
}

TEST_F(WhatIfTest, AnInterruptedSweepGoesOnAndLosesNothing) {
  const std::vector<std::string> sweep = {
      "--sweep",   "training.microbatches=4,6,8,10,12",
      "--journal", Path("j"),
      "--format",  "json",
      "--threads", "1"};
  const Outcome whole = Pipeloom(WhatIf(
      {"--sweep", "training.microbatches=4,6,8,10,12", "--format", "json"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  // Ctrl-C before it began: nothing done, nothing broken.
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Pipeloom(WhatIf(sweep), stop.get_token()).code, 130);
  const Outcome first = Pipeloom(WhatIf(sweep));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, whole.out);
  // A process killed in the middle of a line: three done, one torn.
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(Path("j")));
  size_t at = 0;
  for (int i = 0; i < 3; ++i) at = text.find('\n', at) + 1;
  ASSERT_THAT(WriteFileAtomically(Path("j"), text.substr(0, at + 25)), IsOk());
  const Outcome again = Pipeloom(WhatIf(sweep));
  EXPECT_EQ(again.out, whole.out);
  EXPECT_THAT(again.err, HasSubstr("3 of 6 configurations are in"));
  // And nothing is left to do.
  EXPECT_THAT(Pipeloom(WhatIf(sweep)).err, HasSubstr("6 of 6"));
  // Another question shares the job as it is with it, and nothing else.
  EXPECT_THAT(Pipeloom(WhatIf({"--sweep", "training.microbatches=5",
                               "--journal", Path("j")}))
                  .err,
              HasSubstr("1 of 2 configurations are in"));
  // A file that is not a journal stays unchanged.
  ASSERT_THAT(WriteFileAtomically(Path("notes"), "my notes\n"), IsOk());
  const Outcome refused = Pipeloom(WhatIf({"--journal", Path("notes")}));
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("is no journal"));
}

TEST_F(WhatIfTest, CtrlCInTheMiddleKeepsEveryOutcomeThatWasKnown) {
  std::string values = "1";
  for (int i = 2; i <= 30; ++i) absl::StrAppend(&values, ",", i);
  const std::vector<std::string> sweep =
      WhatIf({"--sweep", absl::StrCat("search.seed=", values), "--journal",
              Path("j"), "--format", "json", "--threads", "2"});
  const auto lines = [&] {
    const absl::StatusOr<std::string> text = ReadFile(Path("j"));
    return text.ok() ? std::count(text->begin(), text->end(), '\n') : 0;
  };
  std::stop_source stop;
  std::jthread user([&](const std::stop_token& over) {
    while (!over.stop_requested() && lines() < 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop.request_stop();
  });
  const Outcome cut = Pipeloom(sweep, stop.get_token());
  user.request_stop();
  user.join();
  const auto known = lines();
  ASSERT_GE(known, 3);
  EXPECT_EQ(cut.code, known < 31 ? 130 : 0) << cut.err;
  const Outcome rest = Pipeloom(sweep);
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr(absl::StrCat(known, " of 31")));
  EXPECT_EQ(lines(), 31);
  std::vector<std::string> fresh = sweep;
  *std::find(fresh.begin(), fresh.end(), Path("j")) = Path("other");
  EXPECT_EQ(Pipeloom(fresh).out, rest.out);
}

TEST_F(WhatIfTest, AJournalIsNotBelievedOfAnotherJob) {
  // The same name, another value within: nothing is taken over.
  const std::vector<std::string> sweep = {"--sweep", "search.seed=1,2",
                                          "--journal", Path("j")};
  ASSERT_EQ(Pipeloom(WhatIf(sweep)).code, 0);
  std::vector<std::string> other = sweep;
  other.insert(other.end(), {"--assignment", "balanced"});
  const Outcome outcome = Pipeloom(WhatIf(other));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, Not(HasSubstr("configurations are in")));
}

TEST_F(WhatIfTest, QuestionsGoTheWayTheyMust) {
  const auto ask = [&](const char* question) {
    const Outcome outcome =
        Pipeloom(WhatIf({"--ask", question, "--format", "json"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["configurations"];
  };
  const auto time = [](const Json& row) {
    return row["step_time_us"].get<double>();
  };
  const Json frozen = ask("frozen");
  EXPECT_LT(time(frozen[1]), time(frozen[0]));
  // Both plans use memory that is there; one may hold a little more.
  EXPECT_LT(frozen[1]["peak_bytes"].get<double>(),
            1.02 * frozen[0]["peak_bytes"].get<double>());
  const Json padded = ask("padded");
  EXPECT_GT(time(padded[1]), time(padded[0]));
  // The order of the cases is 0.25, 0.5, 2 and 4 times the bandwidth.
  const Json network = ask("network");
  EXPECT_GE(time(network[1]), time(network[2]));
  EXPECT_GE(time(network[2]), time(network[3]));
  EXPECT_GE(time(network[3]), time(network[4]));
  EXPECT_GE(time(network[5]), time(network[0]));
  const Json sparse = ask("sparse");
  EXPECT_LT(time(sparse[1]), time(sparse[0]));
  EXPECT_LT(time(sparse[2]), time(sparse[1]));
  EXPECT_LT(time(sparse[3]), time(sparse[2]));
  const Json recompute = ask("recompute");
  EXPECT_GT(time(recompute[2]), time(recompute[0]));
}

// The rule cuts the generator into single instances for the faster networks
// alone, which are then 16 % faster, as the job as it is would be.
TEST_F(WhatIfTest, ChangesAreNotCreditedWithOtherPartitions) {
  const Outcome outcome =
      Pipeloom({"whatif", "dip-t2v-s", "--batch", "video", "--partition",
                "rule", "--evaluations", "8", "--format", "json", "--sweep",
                "cluster.inter_node.bandwidth_bytes_per_second=*2,*4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["configurations"];
  const double as_it_is = rows[0]["step_time_us"];
  for (const size_t row : {1, 2}) {
    const double faster = rows[row]["step_time_us"];
    EXPECT_LE(faster, as_it_is);
    EXPECT_GT(faster, 0.98 * as_it_is);
  }
}

TEST_F(WhatIfTest, MoreShapesForGraphsPadLess) {
  const Outcome outcome = Pipeloom(
      WhatIf({"--ask", "graphs", "--evaluations", "1", "--format", "json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["configurations"];
  ASSERT_GE(rows.size(), 4u);
  EXPECT_THAT(rows[1]["label"].get<std::string>(),
              HasSubstr("the host launches kernels"));
  double least = 0;
  for (size_t i = 2; i < rows.size(); ++i) {
    const Json& set = rows[i]["set"];
    EXPECT_EQ(set["setup.graphs"], "CUDA_GRAPHS_LAYERS");
    EXPECT_THAT(set["training.shape_buckets"].get<std::string>(),
                HasSubstr("\"module\":\"backbone\""));
    const double bound = rows[i]["lower_bound_us"];
    if (i > 2) {
      EXPECT_LT(bound, 1.001 * least);
    }
    least = bound;
  }
}

TEST_F(WhatIfTest, EveryQuestionHasAnAnswer) {
  for (const studies::WhatIfQuestion& question : studies::WhatIfQuestions()) {
    SCOPED_TRACE(question.name);
    std::vector<std::string> asked = {"--ask", question.name, "--format",
                                      "json"};
    if (question.name == "budget") {
      asked.insert(asked.end(),
                   {"--budget", "80", "--prices", "h100-sxm=2.5,b200-sxm=5"});
    }
    const Outcome outcome = Pipeloom(WhatIf(asked));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json rows = Json::parse(outcome.out)["configurations"];
    // An image batch has no clips, but the question is still asked.
    ASSERT_GE(rows.size(), 2u);
    int ran = 0;
    for (const Json& row : rows) ran += row.contains("error") ? 0 : 1;
    EXPECT_GE(ran, 2) << outcome.out.substr(0, 2000);
  }
  const Outcome tables = Pipeloom(WhatIf({"--ask", "domains,compress"}));
  EXPECT_EQ(tables.code, 0) << tables.err;
  EXPECT_THAT(tables.out, HasSubstr("a switch of 72"));
  EXPECT_THAT(tables.out, HasSubstr("8 bit"));
}

TEST_F(WhatIfTest, LayoutsOfOtherGpusUseThemAll) {
  const Outcome outcome =
      Pipeloom(WhatIf({"--ask", "layout", "--gpus", "32", "--format", "json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["configurations"];
  ASSERT_GE(rows.size(), 4u);
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].contains("error")) continue;
    EXPECT_EQ(rows[i]["gpus"], 32) << rows[i];
  }
}

TEST_F(WhatIfTest, StepsOfOtherNumbersOfSamplesAreComparedByTheSample) {
  std::vector<std::string> sweep = {
      "whatif",         "llama3-8b",
      "--batch",        EqualTexts(),
      "--microbatches", "8",
      "--strategy",     "1f1b",
      "--set",          "parallel.pp=4",
      "--evaluations",  "1",
      "--sweep",        "training.microbatches=4"};
  const Outcome table = Pipeloom(sweep);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.err, HasSubstr("compared by the time of a sample"));
  EXPECT_THAT(table.out, Not(HasSubstr(" -"))) << "no row gains";
  sweep.insert(sweep.end(), {"--format", "json"});
  const Json rows = Json::parse(Pipeloom(sweep).out)["configurations"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["samples"].get<int>() * 2, rows[0]["samples"]);
  EXPECT_LT(rows[1]["step_time_us"], rows[0]["step_time_us"]);
  EXPECT_LT(rows[1]["samples_per_second"], rows[0]["samples_per_second"]);
  EXPECT_EQ(rows[0]["best"], true);
}

TEST_F(WhatIfTest, AQuestionWithNothingToTrySaysSo) {
  const Outcome outcome = Pipeloom(
      WhatIf({"--microbatches", "4", "--ask", "layout", "--gpus", "35"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("note: --ask layout has nothing to try for "
                        "this job: DP must divide the "));
}

TEST_F(WhatIfTest, ABudgetBuysNoMoreGpusThanItPaysFor) {
  const Outcome outcome = Pipeloom(
      WhatIf({"--ask", "budget", "--budget", "80", "--prices",
              "h100-sxm=2.5,b200-sxm=5,l40s=1000", "--format", "json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["configurations"];
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_LE(rows[1]["gpus"], 32);
  EXPECT_LE(rows[2]["gpus"], 16);
  EXPECT_THAT(rows[1]["label"].get<std::string>(), HasSubstr("x h100-sxm for"));
  EXPECT_THAT(rows[3]["label"].get<std::string>(),
              HasSubstr("beyond the budget"));
}

TEST_F(WhatIfTest, WhatABudgetNeedsIsAskedFor) {
  const std::pair<std::vector<std::string>, const char*> bad[] = {
      {{"--ask", "budget"}, "needs --budget PRICE"},
      {{"--ask", "budget", "--budget", "-3"}, "a number > 0; it is \"-3\""},
      {{"--ask", "budget", "--budget", "80"}, "needs --prices"},
      {{"--ask", "budget", "--budget", "80", "--prices", "h100-sxm"},
       "is no CLUSTER=PRICE"},
      {{"--ask", "budget", "--budget", "80", "--prices", "h101=2"},
       "there is no cluster \"h101\"; shipped are"},
      {{"--ask", "layout", "--budget", "80"}, "need --ask budget"},
      {{"--ask", "scale", "--gpus", "8"}, "--gpus needs --ask layout"}};
  for (const auto& [flags, says] : bad) {
    const Outcome outcome = Pipeloom(WhatIf(flags));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(says));
  }
}

TEST_F(WhatIfTest, AnotherGpuAloneSaysWhatElseItsClusterHas) {
  const Outcome outcome =
      Pipeloom(WhatIf({"--set", "cluster.device=b200-sxm"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("changes the GPU alone"));
  EXPECT_THAT(outcome.err, HasSubstr("inside nodes (here"));
}

TEST_F(WhatIfTest, AnEfficiencyThatAProfileStandsInForIsSaid) {
  for (const char* option : {"--set", "--sweep"}) {
    const std::vector<std::string> less = {
        "whatif",        "llama3-8b",
        "--batch",       "text",
        "--strategy",    "1f1b",
        "--set",         "training.microbatches=4",
        "--evaluations", "1",
        option,          "cluster.device.attention_efficiency=*0.25"};
    const Outcome measured = Pipeloom(less);
    EXPECT_EQ(measured.code, 0) << measured.err;
    EXPECT_THAT(measured.err,
                HasSubstr("note: cluster.device.attention_efficiency counts "
                          "only for operators that the profile of h100-sxm"));
    std::vector<std::string> peak = less;
    peak.insert(peak.end(), {"--costs", "roofline"});
    const Outcome priced = Pipeloom(peak);
    EXPECT_EQ(priced.code, 0) << priced.err;
    EXPECT_THAT(priced.err, Not(HasSubstr("counts only")));
  }
}

TEST_F(WhatIfTest, MemoryIsJudgedByTheDeviceOfTheRank) {
  std::ifstream file(PIPELOOM_SOURCE_DIR
                     "/workloads/clusters/dip-h800-64.json");
  Json group = {{"first_node", 0}, {"num_nodes", 1}};
  group["device"] = Json::parse(file)["device"];
  // Ranks 0 and 1 have 141 GiB.
  group["device"]["memory_bytes"] = int64_t{141} << 30;
  const Outcome outcome = Pipeloom(
      WhatIf({"--set",
              absl::StrCat("cluster.node_groups=", Json::array({group}).dump()),
              "--set", "training.memory_reserve=0", "--set",
              "training.memory_strategies=[\"MEMORY_STRATEGY_KEEP\"]", "--set",
              "training.microbatch_images=24", "--format", "json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json row = Json::parse(outcome.out)["configurations"][0];
  // Rank 0 keeps most, more than a GPU of the other node could.
  EXPECT_GT(row["peak_bytes"].get<int64_t>(), int64_t{80} << 30);
  EXPECT_EQ(row["limit_bytes"].get<int64_t>(), int64_t{141} << 30);
  EXPECT_TRUE(row["best"].get<bool>());
}

TEST_F(WhatIfTest, ASlowRankIsNoFasterAndPlanningForItNoWorse) {
  const Outcome outcome =
      Pipeloom(WhatIf({"--ask", "slow-rank", "--format", "json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["configurations"];
  const double as_it_is = rows[0]["step_time_us"];
  for (size_t i = 1; i + 1 < rows.size(); i += 2) {
    EXPECT_GE(rows[i]["step_time_us"].get<double>(), as_it_is);
    EXPECT_LE(rows[i + 1]["step_time_us"].get<double>(),
              rows[i]["step_time_us"].get<double>());
  }
}

TEST_F(WhatIfTest, TheBubbleIsThatOfTheChangedTimes) {
  const Outcome outcome = Pipeloom(
      {"whatif", "llama3-8b", "--batch", "text", "--strategy", "1f1b",
       "--evaluations", "1", "--replicas", "1", "--microbatches", "6", "--set",
       "parallel.pp=4", "--ask", "recompute,slow-rank", "--format", "json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json rows = Json::parse(outcome.out)["configurations"];
  ASSERT_EQ(rows.size(), 4u + 8u);
  // The time that ranks compute, on average.
  const auto work = [](const Json& row) {
    return row["step_time_us"].get<double>() *
           (1 - row["bubble_ratio"].get<double>() -
            row["epilogue_ratio"].get<double>());
  };
  const auto bound = [](const Json& row) {
    return row["lower_bound_us"].get<double>();
  };
  for (const Json& row : rows) {
    EXPECT_LE(bound(row), row["step_time_us"].get<double>()) << row;
  }
  // Everything recomputed: another forward.
  EXPECT_GT(work(rows[2]), 1.25 * work(rows[0]));
  EXPECT_LT(work(rows[2]), 1.4 * work(rows[0]));
  EXPECT_GT(bound(rows[2]), 1.2 * bound(rows[0]));
  // Each rank 20 % slower in turn, with the same plan and a new one.
  for (const size_t first : {4, 5}) {
    double more = 0;
    double highest = 0;
    for (size_t i = first; i < rows.size(); i += 2) {
      more += work(rows[i]) - work(rows[0]);
      highest = std::max(highest, bound(rows[i]));
    }
    EXPECT_NEAR(more, 0.2 * work(rows[0]), 1e-4 * work(rows[0]));
    EXPECT_GT(highest, 1.01 * bound(rows[0]));
  }
}

TEST_F(WhatIfTest, EverySuggestionOfExplainGivesTheGainItShows) {
  const std::vector<std::string> job = {
      "dip-vlm-s",     "--batch", "image_text", "--schedule", "1f1b",
      "--evaluations", "4",       "--format",   "json"};
  std::vector<std::string> args = {"explain"};
  args.insert(args.end(), job.begin(), job.end());
  const Outcome explained = Pipeloom(args);
  ASSERT_EQ(explained.code, 0) << explained.err;
  const Json found = Json::parse(explained.out);
  // Up to three; not every job has three changes that help.
  ASSERT_GE(found["suggestions"].size(), 1u);
  ASSERT_LE(found["suggestions"].size(), 3u);
  double last = 1e300;
  for (const Json& suggestion : found["suggestions"]) {
    SCOPED_TRACE(suggestion["label"].get<std::string>());
    std::vector<std::string> apply = {"whatif"};
    apply.insert(apply.end(), job.begin(), job.end());
    for (const Json& set : suggestion["set"]) {
      apply.insert(apply.end(), {"--set", set.get<std::string>()});
    }
    const Outcome applied = Pipeloom(apply);
    ASSERT_EQ(applied.code, 0) << applied.err;
    const double time =
        Json::parse(applied.out)["configurations"][0]["step_time_us"];
    const double gain = suggestion["gain_us"];
    EXPECT_EQ(time, suggestion["step_time_us"].get<double>());
    EXPECT_NEAR(found["step_time_us"].get<double>() - time, gain, 0.01);
    EXPECT_GT(gain, 0);
    EXPECT_LE(gain, last);
    last = gain;
  }
}

TEST_F(WhatIfTest, CuttingSamplesIsNoWayToBeFaster) {
  const std::vector<std::string> job = {
      "llama3-8b",     "--batch",       EqualTexts(), "--microbatches", "4",
      "--format",      "json",          "--strategy", "1f1b",           "--set",
      "parallel.pp=4", "--evaluations", "1"};
  std::vector<std::string> ask = {"whatif", "--ask", "microbatches"};
  ask.insert(ask.end(), job.begin(), job.end());
  const Outcome asked = Pipeloom(ask);
  ASSERT_EQ(asked.code, 0) << asked.err;
  EXPECT_THAT(asked.err, HasSubstr("note: 2 of 5 configurations cut samples"));
  const Json rows = Json::parse(asked.out)["configurations"];
  int cut = 0;
  for (const Json& row : rows) {
    SCOPED_TRACE(row["label"].get<std::string>());
    // A sample fills a microbatch of the job.
    const bool cuts =
        absl::StrContains(row["label"].get<std::string>(), "as many, 1/");
    cut += cuts ? 1 : 0;
    EXPECT_EQ(row["cuts_samples"], cuts);
    if (cuts) {
      EXPECT_EQ(row["best"], false);
    }
  }
  EXPECT_EQ(cut, 2);
  std::vector<std::string> explain = {"explain", "--suggestions", "20"};
  explain.insert(explain.end(), job.begin(), job.end());
  const Outcome explained = Pipeloom(explain);
  ASSERT_EQ(explained.code, 0) << explained.err;
  const Json suggestions = Json::parse(explained.out)["suggestions"];
  ASSERT_GE(suggestions.size(), 1u);
  for (const Json& suggestion : suggestions) {
    EXPECT_THAT(suggestion["label"].get<std::string>(),
                Not(HasSubstr("times as many")));
  }
}

TEST_F(WhatIfTest, CsvHasARowForEachConfigurationAndAColumnForEachPath) {
  const Outcome outcome =
      Pipeloom(WhatIf({"--sweep", "training.microbatches=4,8", "--sweep",
                       "search.seed=1,2", "--csv", Path("t.csv"), "--json",
                       Path("t.json"), "--report", Path("t.html")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream csv(Path("t.csv"));
  std::string line;
  ASSERT_TRUE(std::getline(csv, line));
  EXPECT_THAT(line, HasSubstr("training.microbatches,search.seed,gpus"));
  int rows = 0;
  while (std::getline(csv, line)) ++rows;
  EXPECT_EQ(rows, 5);  // With the job as it is.
  ASSERT_OK_AND_ASSIGN(const std::string json, ReadFile(Path("t.json")));
  EXPECT_EQ(Json::parse(json)["configurations"].size(), 5u);
  ASSERT_OK_AND_ASSIGN(const std::string html, ReadFile(Path("t.html")));
  EXPECT_THAT(html, HasSubstr("<circle"));
}

}  // namespace
}  // namespace pipeloom::cli
