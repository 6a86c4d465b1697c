// The commands as programs see them, in one process: what they print, which
// keys their JSON has, which exit code they give.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

Json Parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text.substr(0, 300);
  return json;
}

std::set<std::string> Keys(const Json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

class CommandsTest : public ::testing::Test {
 protected:
  CommandsTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-commands-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~CommandsTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  std::string Write(const std::string& name, const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(Path(name), contents).ok());
    return Path(name);
  }

  std::string folder_;
};

constexpr char kGraph[] = R"({"name": "two ranks",
  "ranks": [{"memory_limit_bytes": 0, "static_bytes": 7},
            {"memory_limit_bytes": 100, "static_bytes": 0}],
  "tasks": [
   {"id": 30, "rank": 0, "kind": "FORWARD", "duration_us": 2.5,
    "alloc_bytes": 10, "free_bytes": 0},
   {"id": 10, "rank": 1, "kind": "FORWARD", "duration_us": 1,
    "alloc_bytes": 50, "free_bytes": 50},
   {"id": 20, "rank": 0, "kind": "BACKWARD", "duration_us": 4,
    "alloc_bytes": 0, "free_bytes": 10}],
  "edges": [{"from": 30, "to": 10, "delay_us": 0.25},
            {"from": 10, "to": 20, "delay_us": 0.25}]})";

TEST_F(CommandsTest, HelpOfEveryCommandNamesItsOptionsAndSucceeds) {
  for (const auto& command : AllCommands()) {
    const std::string name = command->text().name;
    SCOPED_TRACE(name);
    const Outcome help = Pipeloom({name, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.err, IsEmpty());
    for (const Flag& flag : command->Flags()) {
      EXPECT_THAT(help.out, HasSubstr("--" + flag.name));
      EXPECT_THAT(flag.help, Not(IsEmpty()));
    }
    EXPECT_EQ(Pipeloom({"help", name}).out, help.out);
  }
  EXPECT_EQ(Pipeloom({"--help"}).code, 0);
  EXPECT_THAT(Pipeloom({"--version"}).out, HasSubstr("pipeloom 0."));
}

TEST_F(CommandsTest, MisuseIsTwoAndSaysWhatIsRight) {
  const struct {
    std::vector<std::string> args;
    std::string message;
  } cases[] = {
      {{}, "usage: pipeloom COMMAND"},
      {{"plna"}, "did you mean \"plan\"?"},
      {{"plan"}, "JOB is missing"},
      {{"plan", "dip-vlm-s"}, "--batch is missing"},
      {{"plan", "a", "b", "--batch=x"}, "unexpected argument \"b\""},
      {{"plan", "dip-vlm-s", "--schedule=pipelom"}, "did you mean"},
      {{"plan", "dip-vlm-s", "--batch=text", "--replicas=900"},
       "--replicas 900"},
      {{"compare", "dip-vlm-s", "--batch=text", "--schedules=gpipe,x"},
       "there is no \"x\""},
      {{"search"}, "GRAPH is missing"},
      {{"emulate"}, "either PLAN or JOB"},
      {{"run", "dip-vlm-s", "--plan=p.pb"}, "either PLAN or JOB"},
      {{"run", "--plan=p.pb", "--batch=text"}, "a plan takes no --batch"},
      {{"validate"}, "FILE is missing"},
      {{"export", "p.pb"}, "--to FORMAT is missing"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    const Outcome outcome = Pipeloom(c.args);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(c.message));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST_F(CommandsTest, SearchAnswersInTheFilesOwnIds) {
  const std::string graph = Write("g.json", kGraph);
  const Outcome outcome =
      Pipeloom({"search", "--graph", graph, "--out", Path("s.json"), "--format",
                "json", "--evaluations", "50"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json answer = Parse(outcome.out);
  EXPECT_THAT(Keys(answer),
              ElementsAre("bound_source", "evaluations", "lower_bound_us",
                          "makespan_us", "order", "peak_bytes",
                          "proven_optimal", "search_us", "start_us"));
  EXPECT_EQ(answer["order"].dump(), "[[30,20],[10]]");
  // Ordered by increasing id: 10, 20, 30.
  EXPECT_EQ(answer["start_us"].dump(), "[2.75,4.0,0.0]");
  EXPECT_EQ(answer["makespan_us"], 8);
  EXPECT_EQ(answer["lower_bound_us"], 8);
  EXPECT_EQ(answer["peak_bytes"].dump(), "[17,50]");
  EXPECT_EQ(answer["proven_optimal"], true);
  ASSERT_OK_AND_ASSIGN(const std::string file, ReadFile(Path("s.json")));
  EXPECT_EQ(file, outcome.out);
  EXPECT_THAT(Pipeloom({"search", graph}).out, HasSubstr("proven optimal"));
}

TEST_F(CommandsTest, PlanAndCompareHaveTheKeysOfTheContract) {
  const Outcome plan = Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text",
                                 "--steps", "2", "--schedule", "1f1b",
                                 "--evaluations", "20", "--format", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const Json planned = Parse(plan.out);
  EXPECT_THAT(
      Keys(planned),
      ElementsAre("flops_per_second_per_gpu", "job", "mean_step_time_us",
                  "samples_per_second", "steps", "tokens_per_second"));
  EXPECT_EQ(planned["job"], "dip-vlm-s");
  ASSERT_EQ(planned["steps"].size(), 2u);
  double sum = 0;
  int64_t taken = 0;
  for (const Json& step : planned["steps"]) {
    EXPECT_THAT(Keys(step),
                ElementsAre("any_partition_bound_us", "any_partition_gap_ratio",
                            "bound_source", "bubble_ratio", "epilogue_ratio",
                            "evaluations", "gap_ratio", "lower_bound_us", "mfu",
                            "microbatches", "peak_bytes", "replicas", "samples",
                            "schedule", "search_us", "step", "step_time_us",
                            "strategy"));
    EXPECT_EQ(step["peak_bytes"].size(), 4u);
    EXPECT_GE(step["step_time_us"], step["lower_bound_us"]);
    EXPECT_GT(step["any_partition_bound_us"], 0);
    EXPECT_GE(step["step_time_us"], step["any_partition_bound_us"]);
    EXPECT_GT(step["mfu"], 0);
    EXPECT_LT(step["mfu"], 1);
    sum += step["step_time_us"].get<double>();
    // Every sample of the step is in a microbatch of one replica.
    std::set<int64_t> fed;
    for (const Json& replica : step["replicas"]) {
      const Json& samples = replica["microbatch_samples"];
      EXPECT_EQ(samples.size(), step["microbatches"].get<size_t>());
      for (const Json& of_one : samples) {
        EXPECT_FALSE(of_one.empty());
        for (const Json& sample : of_one) fed.insert(sample.get<int64_t>());
      }
    }
    EXPECT_EQ(static_cast<int64_t>(fed.size()), step["samples"]);
    EXPECT_EQ(*fed.begin(), taken);
    taken += static_cast<int64_t>(fed.size());
    EXPECT_EQ(*fed.rbegin() + 1, taken);
  }
  EXPECT_NEAR(planned["mean_step_time_us"].get<double>(), sum / 2, 0.002);

  const Outcome compare =
      Pipeloom({"compare", "dip-vlm-s", "--batch", "image_text", "--schedules",
                "1f1b,megatron", "--evaluations", "20", "--format", "json"});
  ASSERT_EQ(compare.code, 0) << compare.err;
  const Json rows = Parse(compare.out)["rows"];
  ASSERT_EQ(rows.size(), 2u);
  for (const Json& row : rows) {
    EXPECT_THAT(
        Keys(row),
        ElementsAre("any_partition_gap_ratio", "bound_sources", "bubble_ratio",
                    "epilogue_ratio", "gap_ratio", "mean_lower_bound_us",
                    "mean_step_time_us", "mfu", "partition", "peak_bytes",
                    "schedule", "search_us", "speedup_vs_best_static",
                    "speedup_vs_megatron", "strategy"));
    EXPECT_EQ(row["strategy"], row["schedule"]);
    EXPECT_EQ(row["partition"], "own");
  }
  // Both are static; the faster one is what ratios are to.
  const Json best = Parse(compare.out)["best_static"];
  EXPECT_TRUE(Parse(compare.out)["same_partition"].is_null());
  for (const Json& row : rows) {
    EXPECT_EQ(row["speedup_vs_best_static"] == 1, row["schedule"] == best);
    EXPECT_LE(row["speedup_vs_best_static"].get<double>(), 1);
  }
  // The same first step, with the same strategy, is the same.
  EXPECT_EQ(rows[0]["mean_step_time_us"], planned["steps"][0]["step_time_us"]);
  EXPECT_EQ(rows[1]["speedup_vs_megatron"], 1);
  EXPECT_NEAR(rows[0]["speedup_vs_megatron"].get<double>(),
              rows[1]["mean_step_time_us"].get<double>() /
                  rows[0]["mean_step_time_us"].get<double>(),
              1e-9);
}

TEST_F(CommandsTest, AStrategyThatCannotRunSaysWhyAndTheOthersGoOn) {
  // So little memory that not even the weights fit.
  const Outcome none =
      Pipeloom({"compare", "dip-vlm-s", "--batch", "image_text",
                "--memory-limit", "2GiB", "--format", "json"});
  EXPECT_EQ(none.code, 1);
  const Json rows = Parse(none.out)["rows"];
  // All but the three rows that only the ablation is made of.
  EXPECT_EQ(rows.size(), planner::StrategyNames().size() - 3);
  for (const Json& row : rows) {
    EXPECT_THAT(Keys(row),
                ElementsAre("error", "partition", "schedule", "strategy"));
    EXPECT_THAT(row["error"].get<std::string>(), Not(IsEmpty()));
  }
}

TEST_F(CommandsTest, AMemoryLimitAboveTheGpusIsRemarkedOn) {
  const auto plan = [](const std::string& limit) {
    return Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text", "--replicas",
                     "1", "--strategy", "1f1b", "--evaluations", "2",
                     "--memory-limit", limit})
        .err;
  };
  const std::string note = "memory_limit_bytes is 96 GiB, but device";
  EXPECT_THAT(plan("96GiB"), HasSubstr(note));
  EXPECT_THAT(plan("80GiB"), Not(HasSubstr("memory_limit_bytes is")));
}

TEST_F(CommandsTest, TheReserveIsTakenFromTheDeviceAndShown) {
  const auto plan = [](std::vector<std::string> more) {
    std::vector<std::string> args = {
        "plan", "dip-vlm-s",  "--batch", "image_text",    "--replicas",
        "1",    "--strategy", "1f1b",    "--evaluations", "2"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  };
  EXPECT_THAT(plan({}).out, HasSubstr("memory limit 77.60 GiB a GPU, reserve "
                                      "2.40 GiB (3 %)"));
  EXPECT_THAT(plan({"--reserve", "10%"}).out,
              HasSubstr("memory limit 72.00 GiB a GPU, reserve 8.00 GiB "
                        "(10 %)"));
  // A limit is taken as it is.
  const Outcome both = plan({"--memory-limit", "70GiB", "--reserve", "10%"});
  EXPECT_THAT(both.out, HasSubstr("memory limit 70.00 GiB a GPU\n"));
  EXPECT_THAT(both.err, HasSubstr("--reserve changes nothing"));
  const Outcome wrong = plan({"--reserve", "100%"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--reserve: \"100%\" must be at least 0 "
                                   "and less than 100%"));
  for (const char* command : {"plan", "compare", "partition", "emulate", "run",
                              "whatif", "explain"}) {
    EXPECT_THAT(Pipeloom({command, "--help"}).out, HasSubstr("--reserve SHARE"))
        << command;
  }
}

TEST_F(CommandsTest, OneKindOfPartitionForAllSaysWhoIsNotForIt) {
  const Outcome same =
      Pipeloom({"compare", "dip-vlm-s", "--batch", "image_text", "--schedules",
                "1f1b,megatron,dip,pipeloom", "--same-partition", "pipeloom",
                "--evaluations", "400", "--format", "json"});
  ASSERT_EQ(same.code, 0) << same.err;
  const Json all = Parse(same.out);
  EXPECT_EQ(all["same_partition"], "pipeloom");
  EXPECT_EQ(all["best_static"], "megatron");
  const Json& rows = all["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (const Json& row : rows) EXPECT_EQ(row["partition"], "given");
  EXPECT_THAT(rows[0]["error"].get<std::string>(),
              HasSubstr("1f1b is for 1 segment"));
  EXPECT_GE(rows[3]["speedup_vs_best_static"].get<double>(), 1);
  EXPECT_LE(rows[3]["mean_step_time_us"].get<double>(),
            rows[2]["mean_step_time_us"].get<double>());

  const Outcome both =
      Pipeloom({"compare", "dip-vlm-s", "--batch", "image_text", "--partition",
                "dip", "--same-partition", "megatron"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("leave out --partition"));
}

TEST_F(CommandsTest, TheAblationAddsOneLevelARow) {
  const Outcome ladder =
      Pipeloom({"compare", "dip-vlm-s", "--batch", "image_text", "--steps", "1",
                "--ablation", "--evaluations", "3", "--format", "json"});
  ASSERT_EQ(ladder.code, 0) << ladder.err;
  std::vector<std::string> names;
  const Json answer = Parse(ladder.out);
  for (const Json& row : answer["rows"]) {
    names.push_back(row["schedule"].get<std::string>());
    EXPECT_GT(row["mean_step_time_us"].get<double>(), 0);
  }
  EXPECT_THAT(names, ElementsAre("megatron", "dip-partition", "dip-interleave",
                                 "dip-order", "dip", "pipeloom"));
  EXPECT_EQ(Pipeloom({"compare", "dip-vlm-s", "--batch", "image_text",
                      "--ablation", "--schedules", "gpipe"})
                .code,
            2);
}

TEST_F(CommandsTest, ABatchWithoutWorkOrSamplesIsAnError) {
  const struct {
    std::string contents;
    std::string message;
  } cases[] = {
      {"", "samples"},
      {"\n\n", "samples"},
      {"{\"audio_seconds\": [3.5]}\n", "has no work for job dip-vlm-s"},
      {"{}\n{}\n", "has no work for job dip-vlm-s"},
      {"{\"text_tokens\": -3}\n", ":1"},
      {"{\"text_tokens\": 5}\n{\"text_tokens\":", ":2"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.contents);
    const std::string batch = Write("b.jsonl", c.contents);
    const Outcome outcome = Pipeloom({"plan", "dip-vlm-s", "--batch", batch});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(c.message));
    EXPECT_THAT(outcome.err, HasSubstr("b.jsonl"));
  }
  // Text alone is work for the encoders, but no part of a microbatch, which
  // would take millions of samples.
  const Outcome endless =
      Pipeloom({"plan", "step-video-t2v", "--batch", "text"});
  EXPECT_EQ(endless.code, 1);
  EXPECT_THAT(endless.err,
              HasSubstr("batch text never fills a microbatch of job "
                        "step-video-t2v: training.microbatch_tokens, 82944, "
                        "counts tokens of generator, and none of its 3000 "
                        "samples has any"));
  const Outcome counted = Pipeloom({"plan", "step-video-t2v", "--batch", "text",
                                    "--replicas", "1", "--schedule", "1f1b",
                                    "--set", "training.microbatch_samples=64"});
  EXPECT_EQ(counted.code, 0) << counted.err;
  const std::string one = Write("one.jsonl", "{\"text_tokens\": 50}\n");
  const Outcome few =
      Pipeloom({"plan", "dip-vlm-s", "--batch", one, "--steps", "3"});
  EXPECT_EQ(few.code, 1);
  EXPECT_THAT(few.err, HasSubstr("enough for 1 steps; --steps asks for 3"));
}

// Many steps that are alike are one line.
TEST_F(CommandsTest, NotesOnStepsAreFoldedAfterTheFirst) {
  const auto notes = [&](const std::string& steps) {
    const Outcome outcome =
        Pipeloom({"plan", "qwen2.5-vl-72b", "--batch", "mixed", "--schedule",
                  "gpipe", "--shuffle", "1", "--replicas", "1", "--steps",
                  steps, "--partition", "rule", "--evaluations", "1"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string eight = notes("8");
  EXPECT_THAT(eight, HasSubstr("step 4 is short: the samples of mixed make 31 "
                               "of its 32 microbatches\n"));
  EXPECT_THAT(eight, HasSubstr("note: 1 more of 8 steps are short; the "
                               "shortest has 31 microbatches\n"));
  EXPECT_THAT(eight, HasSubstr("step 0 has 9 samples longer than a "));
  EXPECT_THAT(eight, HasSubstr("note: 7 more of 8 steps have samples as long, "
                               "at most 12\n"));
  EXPECT_THAT(eight, Not(HasSubstr("step 1 ")));
  const std::string one = notes("1");
  EXPECT_THAT(one, HasSubstr("step 0 has 9 samples longer than a "));
  EXPECT_THAT(one, Not(HasSubstr(" more of ")));
}

TEST_F(CommandsTest, ValidateTellsFilesApartByTheirContent) {
  const struct {
    std::string name;
    std::string contents;
    int code;
    std::string message;
  } cases[] = {
      {"graph", kGraph, 0, "OK, task graph of 3 tasks on 2 ranks"},
      {"batch", "{\"text_tokens\": 5}\n{\"images\": [[28, 28]]}\n", 0,
       "OK, batch of 2 samples"},
      {"bad_graph.json", "{\"tasks\": [{\"rank\": 3}], \"ranks\": []}", 1,
       "bad_graph.json"},
      {"cycle.json",
       R"({"ranks": [{}], "tasks": [{"id": 0}, {"id": 1}],
           "edges": [{"from": 0, "to": 1}, {"from": 1, "to": 0}]})",
       1, "cycle.json"},
      {"job.json",
       "{\"model\": \"dip-vlm-s\", \"cluster\": \"dip-h800-64\",\n "
       "\"trainin\": 1}",
       1, "job.json:2"},
      {"broken.json", "{\"model\": ", 1, "broken.json"},
      {"empty", "", 1, "empty"},
      {"noise", std::string("\x00\x01\x02\xff", 4), 1, "noise"},
      {"words", "to be or not to be\n", 1, "words"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const Outcome outcome = Pipeloom({"validate", Write(c.name, c.contents)});
    EXPECT_EQ(outcome.code, c.code) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(c.message));
  }
  const Outcome names = Pipeloom({"validate", "dip-vlm-s", "no-such-job"});
  EXPECT_EQ(names.code, 1);
  EXPECT_THAT(names.out, AllOf(HasSubstr("dip-vlm-s: OK, job dip-vlm-s"),
                               HasSubstr("no-such-job")));
  const Outcome as_json =
      Pipeloom({"validate", "dip-vlm-s", "no-such-job", "--format", "json"});
  const Json files = Json::parse(as_json.out)["files"];
  EXPECT_GT(files[0]["parameters"], 12'000'000'000);
  EXPECT_EQ(files[0]["modules"].size(), 2u);
  EXPECT_FALSE(files[1].contains("parameters"));
}

}  // namespace
}  // namespace pipeloom::cli
