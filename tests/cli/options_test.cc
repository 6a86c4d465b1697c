// Tests of all commands: JSON for programs, the options of a job,
// the names of options, outputs that are checked before the work.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;
using Args = std::vector<std::string>;

constexpr char kGraph[] = R"({"ranks": [{}, {}], "tasks": [
  {"id": 0, "rank": 0, "kind": "FORWARD", "duration_us": 2},
  {"id": 1, "rank": 1, "kind": "FORWARD", "duration_us": 1}],
  "edges": [{"from": 0, "to": 1}]})";

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-options-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~OptionsTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  std::string Write(const std::string& name, const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(Path(name), contents).ok());
    return Path(name);
  }
  // A job that is planned at once.
  static Args Small(const std::string& command) {
    return {command,         "dip-vlm-s", "--batch",    "image_text",
            "--evaluations", "1",         "--replicas", "1"};
  }
  // Returns the same plan for all that need one.
  std::string Plan() {
    if (!FileExists(Path("plan.pb"))) {
      const Outcome made =
          Pipeloom(Small("plan") + Args{"--strategy", "1f1b", "--microbatches",
                                        "4", "--out", Path("plan.pb")});
      EXPECT_EQ(made.code, 0) << made.err;
    }
    return Path("plan.pb");
  }
  std::string Measurements() {
    std::string csv = "op,device,dtype,pass,m,n,k,time_us\n";
    for (const int64_t n : {1024, 2048, 4096, 8192}) {
      for (const int64_t k : {1024, 4096, 16384}) {
        for (int64_t m = 128; m <= 16384; m *= 2) {
          const double flops = 2.0 * static_cast<double>(m * n * k);
          absl::StrAppendFormat(&csv,
                                "gemm,h100-sxm,bf16,forward,%d,%d,%d,%.3f\n", m,
                                n, k, 3 + flops / (0.8 * 989e6));
        }
      }
    }
    return Write("gemm.csv", csv);
  }

  std::string folder_;
};

TEST_F(OptionsTest, EveryCommandPrintsPureJson) {
  ASSERT_EQ(Pipeloom({"run", Plan(), "--time-scale", "0.002", "--trace",
                      Path("measured.json")})
                .code,
            0);
  const std::string graph = Write("graph.json", kGraph);
  const Args quick = {"--microbatches", "4"};
  const std::map<std::string, Args> commands = {
      {"plan", Small("plan") + quick},
      {"compare",
       {"compare", "dip-vlm-s", "--batch", "image_text", "--strategies",
        "gpipe,1f1b", "--evaluations", "1"}},
      {"partition",
       {"partition", "dip-vlm-s", "--batch", "image_text", "--partition", "dip",
        "--out", Path("p.json")}},
      {"search", {"search", graph}},
      {"run", {"run", Plan(), "--time-scale", "0.002"}},
      {"explain", {"explain", Plan()}},
      {"whatif", Small("whatif") + quick},
      {"emulate", {"emulate", Plan()}},
      {"cost",
       {"cost",
        Write("q", "{\"op\": \"gemm\", \"m\": 64, \"n\": 64, \"k\": 64}"),
        "--device", "h100-sxm"}},
      {"trace", {"trace", Path("measured.json")}},
      {"calibrate",
       {"calibrate", Measurements(), "--device", "h100-sxm", "--out",
        Path("profile.json")}},
      {"backtest",
       {"backtest",
        PIPELOOM_SOURCE_DIR "/workloads/validation/simumax_b200.csv"}},
      {"bench",
       {"bench", graph, "--strategies", "pipeloom", "--budgets", "1ms"}},
      {"model",
       {"model", Write("config.json",
                       "{\"model_type\": \"llama\", \"hidden_size\": 64, "
                       "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                       "\"intermediate_size\": 256, \"vocab_size\": 100}")}},
      {"validate", {"validate", Plan(), graph}},
      {"export", {"export", Plan(), "--to", "text"}},
      {"import",
       {"import", Write("s.csv", "0F0,0B0\n1F0,1B0\n"), "--from", "torch-csv",
        "--dialect", "2.6", "--out", Path("i.pb")}},
  };
  for (const auto& command : AllCommands()) {
    const std::string name = command->text().name;
    // Programs of their own, which need a service.
    if (name == "serve" || name == "loadgen") continue;
    SCOPED_TRACE(name);
    ASSERT_TRUE(commands.count(name) > 0) << "add the command to this test";
    const Outcome outcome =
        Pipeloom(commands.at(name) + Args{"--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    EXPECT_TRUE(json.is_object()) << outcome.out.substr(0, 300);
  }
}

TEST_F(OptionsTest, JsonOfFilesAndPricesHasTheirValues) {
  const std::string bad = Write("bad.json", "{\"tasks\": 3}");
  const Outcome checked =
      Pipeloom({"validate", Write("g.json", kGraph), bad, "--format", "json"});
  EXPECT_EQ(checked.code, 1);
  const Json files = Json::parse(checked.out)["files"];
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0]["ok"], true);
  EXPECT_EQ(files[0]["kind"], "task graph");
  EXPECT_EQ(files[1]["ok"], false);
  EXPECT_THAT(files[1]["error"].get<std::string>(), HasSubstr("bad.json"));

  // The lines before a bad one are answered, and the object is whole.
  const std::string queries =
      Write("q.jsonl",
            "{\"op\": \"gemm\", \"m\": 64, \"n\": 64, \"k\": 64}\n"
            "{\"op\": \"gemm\", \"m\": 0}\n");
  const Outcome prices =
      Pipeloom({"cost", queries, "--device", "h100-sxm", "--format", "json"});
  EXPECT_EQ(prices.code, 1);
  const Json answers = Json::parse(prices.out)["answers"];
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_GT(answers[0]["time_us"].get<double>(), 0);

  const Outcome text =
      Pipeloom({"export", Plan(), "--to", "text", "--format", "json"});
  EXPECT_EQ(Json::parse(text.out)["text"],
            Pipeloom({"export", Plan(), "--to", "text"}).out);

  const Outcome imported = Pipeloom(
      {"import", Write("s.csv", "0F0,0B0\n1F0,1B0\n"), "--from", "torch-csv",
       "--dialect", "2.6", "--forward", "2ms", "--format", "json"});
  EXPECT_EQ(Json::parse(imported.out)["ranks"], 2);
  // Forward, input and weight gradient on each of two ranks: 2 x (2 + 1 + 1).
  EXPECT_EQ(Json::parse(imported.out)["step_time_us"], 8000);
}

TEST_F(OptionsTest, AnEditedPartitionIsShownAndUsedByEveryCommandThatPlans) {
  const Outcome made = Pipeloom({"partition", "dip-vlm-s", "--batch",
                                 "image_text", "--partition", "dip", "--out",
                                 Path("p.json"), "--format", "json"});
  ASSERT_EQ(made.code, 0) << made.err;
  Json file = Json::parse(*ReadFile(Path("p.json")));
  Write("dip.json", file.dump());
  EXPECT_EQ(Json::parse(made.out)["stages"], file["stages"]);
  ASSERT_NE(file["modules"][0]["sub_microbatch"], 1);
  file["modules"][0]["sub_microbatch"] = 1;
  Write("p.json", file.dump());
  const Outcome again =
      Pipeloom({"partition", "dip-vlm-s", "--batch", "image_text",
                "--partition", Path("p.json"), "--format", "json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(Json::parse(again.out)["stages"], file["stages"]);
  EXPECT_EQ(Json::parse(again.out)["modules"], file["modules"]);

  const auto time = [&](const std::string& command, const Args& more) {
    const Outcome outcome = Pipeloom(Small(command) +
                                     Args{"--microbatches", "4", "--strategy",
                                          "pipeloom", "--format", "json"} +
                                     more);
    EXPECT_EQ(outcome.code, 0) << command << ": " << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    if (command == "plan") return json["steps"][0]["step_time_us"];
    if (command == "whatif") return json["configurations"][0]["step_time_us"];
    if (command == "run") return json["predicted_us"];
    return json["step_time_us"];
  };
  const Args given = {"--partition", Path("p.json")};
  const Json by_dip = time("plan", {"--partition", Path("dip.json")});
  const Json planned = time("plan", given);
  EXPECT_NE(planned, by_dip);
  EXPECT_EQ(time("plan", {"--partition", "dip"}), by_dip);
  EXPECT_EQ(time("emulate", given), planned);
  EXPECT_EQ(time("whatif", given), planned);
  EXPECT_EQ(time("explain", Args{"--suggestions", "0"} + given), planned);
  EXPECT_EQ(time("run", Args{"--time-scale", "0.002"} + given), planned);
}

TEST_F(OptionsTest, SetChangesTheJobForEveryCommandThatPlans) {
  for (const std::string command : {"plan", "compare", "explain", "emulate",
                                    "whatif", "run", "partition"}) {
    SCOPED_TRACE(command);
    const std::string help = Pipeloom({command, "--help"}).out;
    for (const char* option : {"--set PATH=VALUE", "--partition SOURCE",
                               "--assignment HOW", "--reserve SHARE"}) {
      EXPECT_THAT(help, HasSubstr(option));
    }
    const Args job = {command, "dip-vlm-s", "--batch", "image_text"};
    const Outcome no_value = Pipeloom(job + Args{"--set", "parallel.pp"});
    EXPECT_EQ(no_value.code, 2);
    EXPECT_THAT(no_value.err,
                AllOf(HasSubstr("--set"), HasSubstr("\"parallel.pp\""),
                      HasSubstr("training.microbatches=32")));
    const Outcome no_field = Pipeloom(job + Args{"--set", "parallel.px=3"});
    EXPECT_EQ(no_field.code, 2);
    EXPECT_THAT(no_field.err,
                AllOf(HasSubstr("--set parallel.px=3"), HasSubstr("px")));
    const Outcome no_file = Pipeloom(job + Args{"--partition", "none.json"});
    EXPECT_EQ(no_file.code, 2);
    EXPECT_THAT(no_file.err, AllOf(HasSubstr("--partition none.json"),
                                   HasSubstr("dip, search or a file")));
    const Outcome no_way = Pipeloom(job + Args{"--assignment", "best"});
    EXPECT_EQ(no_way.code, 2);
    EXPECT_THAT(no_way.err,
                AllOf(HasSubstr("--assignment"), HasSubstr("\"best\""),
                      HasSubstr("in-order, balanced, deferred")));
  }
  const auto plan = [](const Args& more) {
    return Pipeloom(Small("plan") + Args{"--format", "json"} + more).out;
  };
  const auto time = [](const std::string& out) {
    return Json::parse(out)["steps"][0]["step_time_us"];
  };
  EXPECT_EQ(time(plan({"--set", "training.microbatches=4"})),
            time(plan({"--microbatches", "4"})));
  // An option of its own goes before --set, in every command.
  const Args both = {"--set", "training.microbatches=8", "--microbatches", "4"};
  EXPECT_EQ(time(plan(both)), time(plan({"--microbatches", "4"})));
  const Outcome whatif =
      Pipeloom(Small("whatif") + Args{"--format", "json"} + both);
  EXPECT_EQ(Json::parse(whatif.out)["configurations"][0]["step_time_us"],
            time(plan(both)));
}

TEST_F(OptionsTest, EmulateAndRunDeferWhereThePlanDoes) {
  const auto time = [](const Args& args, const char* key) {
    const Outcome outcome =
        Pipeloom(args + Args{"--assignment", "deferred", "--strategy",
                             "pipeloom", "--format", "json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out, nullptr, false);
    return json.contains("steps") && json["steps"][0].contains(key)
               ? json["steps"][0][key]
               : json[key];
  };
  const Json planned = time(Small("plan"), "step_time_us");
  EXPECT_EQ(time(Small("emulate"), "step_time_us"), planned);
  EXPECT_EQ(time(Small("run") + Args{"--time-scale", "0.001"}, "predicted_us"),
            planned);
}

TEST_F(OptionsTest, OldNamesWorkSilentlyAndErrorsNameWhatWasTyped) {
  const Args quick = {"--microbatches", "4", "--format", "json"};
  Outcome now = Pipeloom(Small("plan") + quick + Args{"--strategy", "1f1b"});
  Outcome before = Pipeloom(Small("plan") + quick + Args{"--schedule", "1f1b"});
  EXPECT_EQ(before.code, 0);
  EXPECT_EQ(before.err, now.err);
  EXPECT_EQ(Json::parse(before.out)["steps"][0]["step_time_us"],
            Json::parse(now.out)["steps"][0]["step_time_us"]);
  EXPECT_EQ(Json::parse(now.out)["steps"][0]["strategy"], "1f1b");
  EXPECT_THAT(Pipeloom({"plan", "--help"}).out, Not(HasSubstr("--schedule")));
  const Outcome wrong = Pipeloom({"plan", "dip-vlm-s", "--schedule", "1f2b"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--schedule: there is no \"1f2b\""));

  const std::string graph = Write("g.json", kGraph);
  const std::string queries =
      Write("q", "{\"op\": \"gemm\", \"m\": 64, \"n\": 64, \"k\": 64}");
  const struct {
    Args before;
    Args now;
  } same[] = {
      {{"cost", "--device", "h100-sxm", "--queries", queries},
       {"cost", queries, "--device", "h100-sxm"}},
      {{"partition", "dip-vlm-s", "--batch", "image_text", "--rule"},
       {"partition", "dip-vlm-s", "--batch", "image_text", "--partition",
        "dip"}},
  };
  for (const auto& c : same) {
    EXPECT_EQ(Pipeloom(c.before).out, Pipeloom(c.now).out) << c.now[0];
  }
  EXPECT_EQ(
      Json::parse(Pipeloom({"search", "--graph", graph, "--format", "json"})
                      .out)["order"],
      Json::parse(
          Pipeloom({"search", graph, "--format", "json"}).out)["order"]);
  EXPECT_EQ(
      Json::parse(Pipeloom({"emulate", "--plan", Plan(), "--format", "json"})
                      .out)["step_time_us"],
      Json::parse(Pipeloom({"emulate", Plan(), "--format", "json"})
                      .out)["step_time_us"]);
}

TEST_F(OptionsTest, APlanTakesNoOptionsOfAJob) {
  for (const std::string command : {"emulate", "run", "explain"}) {
    SCOPED_TRACE(command);
    const Outcome set = Pipeloom(
        {command, Plan(), "--set", "parallel.pp=2", "--strategy", "gpipe"});
    EXPECT_EQ(set.code, 2);
    EXPECT_THAT(set.err,
                AllOf(HasSubstr("a plan takes no --set, --strategy"),
                      HasSubstr("plan.pb"), HasSubstr("JOB --batch FILE")));
    for (const Args& option :
         {Args{"--costs", "roofline"}, Args{"--deadline", "1s"},
          Args{"--evaluations", "5"}, Args{"--threads", "1"},
          Args{"--workers", "3"}}) {
      const Outcome search = Pipeloom(Args{command, Plan()} + option);
      EXPECT_EQ(search.code, 2);
      EXPECT_THAT(search.err,
                  HasSubstr(absl::StrCat("a plan takes no ", option[0], ": ")));
    }
    const Outcome job = Pipeloom({command, "dip-vlm-s"});
    EXPECT_EQ(job.code, 2);
    EXPECT_THAT(job.err, HasSubstr("--batch is missing"));
    const Outcome file =
        Pipeloom({command, Write("j.json", "{\"model\": \"dip-vlm-s\"}")});
    EXPECT_EQ(file.code, 2);
    EXPECT_THAT(file.err, AllOf(HasSubstr("--batch is missing"),
                                HasSubstr("j.json is a job")));
  }
}

TEST_F(OptionsTest, APlanTakesTheOptionsThatItsCommandUses) {
  // Draws of jitter have a seed; factors of a run are on top of those learned.
  const Outcome drawn = Pipeloom(
      {"emulate", Plan(), "--jitter", "0.1", "--samples", "4", "--seed", "3"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  const Outcome learned =
      Pipeloom({"emulate", Plan(), "--learned", "/nonexistent"});
  EXPECT_EQ(learned.code, 2);
  EXPECT_THAT(learned.err, HasSubstr("a plan takes no --learned: "));
  const Outcome run = Pipeloom({"run", Plan(), "--learned", "/nonexistent"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("/nonexistent"));
  for (const std::string command : {"run", "explain"}) {
    const Outcome seed = Pipeloom({command, Plan(), "--seed", "3"});
    EXPECT_EQ(seed.code, 2);
    EXPECT_THAT(seed.err, HasSubstr("a plan takes no --seed: "));
  }
}

TEST_F(OptionsTest, OutputsThatCannotBeWrittenAreFoundBeforeTheWork) {
  const std::string file = Write("file", "x");
  const struct {
    std::string path;
    std::string message;
  } bad[] = {
      {Path("none/x"), "create it or name another"},
      {absl::StrCat(file, "/x"), "is no folder"},
      {folder_, "it is a folder; name a file"},
      {Path("new/"), "it is a folder; name a file"},
      {"/proc/pipeloom.out", "cannot be written"},
  };
  // The job is not there: its error would come first if outputs were checked
  // with the work or after it.
  const Args planned[] = {
      {"plan", "no-job"},    {"compare", "no-job"},   {"partition", "no-job"},
      {"emulate", "no-job"}, {"run", "no-job"},       {"whatif", "no-job"},
      {"trace", "no-file"},  {"search", "no-file"},   {"calibrate", "no-file"},
      {"model", "no-file"},  {"backtest", "no-file"}, {"export", "no-file"},
      {"import", "no-file"}};
  for (const Args& args : planned) {
    SCOPED_TRACE(args[0]);
    int outputs = 0;
    for (const auto& command : AllCommands()) {
      if (command->text().name != args[0]) continue;
      for (const Flag& flag : command->Flags()) {
        if (flag.output == Output::kNone || !flag.needs.empty()) continue;
        ++outputs;
        for (const auto& c : bad) {
          const Outcome outcome =
              Pipeloom(args + Args{absl::StrCat("--", flag.name), c.path});
          EXPECT_EQ(outcome.code, 2) << outcome.err;
          EXPECT_THAT(
              outcome.err,
              AllOf(HasSubstr(absl::StrCat("--", flag.name, " ", c.path)),
                    HasSubstr(c.message)));
          EXPECT_THAT(outcome.out, IsEmpty());
        }
      }
    }
    EXPECT_GT(outputs, 0);
  }
  const Outcome bench = Pipeloom({"bench", "--out", absl::StrCat(file, "/x")});
  EXPECT_EQ(bench.code, 2);
  EXPECT_THAT(bench.err, HasSubstr("--out"));
  const Outcome twice = Pipeloom(
      {"plan", "no-job", "--trace", Path("t"), "--report", Path("./t")});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("--trace writes the same file"));
  // Nothing is left of the checks.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(OptionsTest, OptionsThatWouldBeIgnoredAreRefused) {
  const std::pair<Args, const char*> cases[] = {
      {Small("emulate") + Args{"--csv", Path("a.csv")},
       "--csv needs --against; add it, or leave out --csv"},
      {{"emulate", Plan(), "--fit"}, "--fit needs --against"},
      {{"emulate", Plan(), "--samples", "50"},
       "--samples needs --jitter or --link-jitter above 0"},
      {{"emulate", Plan(), "--against", "primus", "--trace", Path("t")},
       "--against takes no PLAN or JOB, --trace"},
      {{"run", Plan(), "--scale", "4"}, "--scale needs --device torch"},
      {{"run", Plan(), "--precision", "bf16"},
       "--precision needs --device torch"},
      {Small("run") + Args{"--device", "torch", "--repeat", "2"},
       "--repeat needs --device synthetic"},
      {{"run", Plan(), "--start-timeout", "1s"},
       "--start-timeout needs --transport mpi or --transport nccl"},
      {{"run", Plan(), "--token-file", "x"}, "--token-file needs --service"},
      {Small("plan") + Args{"--jitter", "0.05"}, "--jitter needs --robust"},
      {{"trace", Path("t"), "--seed", "3"},
       "--seed needs --evaluations or --deadline"},
      {{"export", Plan(), "--to", "text", "--waits"},
       "--waits needs --to torch-comms"},
      {{"export", Plan(), "--to", "chrome", "--layers", "1"},
       "--layers needs --to megatron-layout"},
      {{"import", Path("t"), "--from", "deepspeed", "--dialect", "2.6"},
       "--dialect needs --from torch-csv"},
      {{"validate", Plan(), "--strategy", "gpipe"},
       "--strategy needs --job; add it"},
      {{"serve", "--metrics-listen", "0.0.0.0"},
       "--metrics-listen needs --metrics-port"},
  };
  for (const auto& [args, message] : cases) {
    SCOPED_TRACE(message);
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_FALSE(FileExists(Path("a.csv")));
}

TEST_F(OptionsTest, ADashWritesToTheStandardOutputAlone) {
  const auto stdout_of = [](const Args& args, Outcome* outcome) {
    ::testing::internal::CaptureStdout();
    *outcome = Pipeloom(args);
    return ::testing::internal::GetCapturedStdout();
  };
  Outcome outcome;
  const Json answer = Json::parse(stdout_of(
      {"search", Write("g.json", kGraph), "--out", "-", "--evaluations", "1"},
      &outcome));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(answer.contains("order")) << answer;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("makespan"));
  const std::string trace =
      stdout_of({"emulate", Plan(), "--trace=-"}, &outcome);
  EXPECT_TRUE(Json::accept(trace));
  EXPECT_THAT(outcome.err, HasSubstr("step time"));
  EXPECT_FALSE(FileExists("-"));
  const std::pair<Args, const char*> refused[] = {
      {{"plan", "no-job", "--out", "-"},
       "--out -: it cannot be the standard output; name a file"},
      {{"whatif", "no-job", "--journal", "-"}, "--journal -: it cannot be"},
      {{"bench", "--out", "-"}, "--out -: it cannot be"},
      {{"plan", "no-job", "--trace", "-", "--report", "-"},
       "--report -: --trace writes there too"}};
  for (const auto& [args, message] : refused) {
    const Outcome misuse = Pipeloom(args);
    EXPECT_EQ(misuse.code, 2);
    EXPECT_THAT(misuse.err, HasSubstr(message));
  }
}

TEST_F(OptionsTest, AFileOfAnotherKindIsNamed) {
  for (const std::string command : {"search", "trace"}) {
    const Outcome outcome = Pipeloom({command, Plan()});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("plan.pb is a plan"));
    EXPECT_THAT(outcome.err, Not(HasSubstr("parsing")));
  }
  EXPECT_THAT(Pipeloom({"search", Plan()}).err,
              HasSubstr("--to graph-json --out FILE` makes a task graph"));
  // Other bytes are not called a plan.
  const std::string noise = Write("noise", std::string("\x00\x01\x02", 3));
  for (const std::string command : {"search", "trace"}) {
    EXPECT_THAT(Pipeloom({command, noise}).err, Not(HasSubstr("is a plan")));
  }
  const Outcome none = Pipeloom({"model", Path("none")});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, AllOf(HasSubstr("there is no file or folder "),
                              Not(HasSubstr("config.json:"))));
}

TEST_F(OptionsTest, NamesThatAreNotThereAreTheOptionsMistake) {
  const std::pair<Args, const char*> cases[] = {
      {{"emulate", Plan(), "--slow-rank", "9=1.2"},
       "--slow-rank 9=1.2: there is no rank 9; ranks are 0 to 3"},
      {{"emulate", Plan(), "--slow-rank", "1=-2"},
       "--slow-rank 1=-2: the factor is -2; it must be in (0, 1e6]"},
      {{"emulate", Plan(), "--slow-link", "0-9=2"},
       "--slow-link 0-9=2: there is no rank 9; ranks are 0 to 3"},
      {Small("compare") + Args{"--same-partition", "pipelom"},
       "--same-partition pipelom: "},
      {Small("compare") + Args{"--same-partition", "pipelom"},
       "did you mean \"pipeloom\"?"},
  };
  for (const auto& [args, message] : cases) {
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  // Names of files that ship are like files: a failure.
  const std::pair<Args, const char*> missing[] = {
      {{"cost", "-", "--device", "h101-sxm"},
       "--device: there is no GPU and no cluster \"h101-sxm\"; shipped are "},
      {{"calibrate", Path("m.csv"), "--device", "h100-sxm", "--base", "h101",
        "--out", Path("o.json")},
       "--base: there is no profile \"h101\"; shipped are "},
  };
  for (const auto& [args, message] : missing) {
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST_F(OptionsTest, HelpSaysWhatTheProgramDoes) {
  // Spaces as one.
  const auto help = [](const std::string& command) {
    const std::string text = Pipeloom({command, "--help"}).out;
    return absl::StrJoin(
        absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
  };
  EXPECT_THAT(help("emulate"), Not(HasSubstr("default -1")));
  for (const std::string command : {"search", "trace"}) {
    EXPECT_THAT(help(command), Not(HasSubstr("the job")));
  }
  EXPECT_THAT(help("search"), HasSubstr("none with --evaluations, else 100ms"));
  EXPECT_THAT(help("plan"),
              AllOf(HasSubstr("each of at least one: reports count those of "
                              "all"),
                    HasSubstr("chosen without the slowdown")));
  EXPECT_THAT(help("partition"),
              HasSubstr("DIP's rule, the same as --partition dip; not that of "
                        "--partition rule"));
}

TEST_F(OptionsTest, TimesAndSizesSayTheirUnits) {
  const struct {
    Args args;
    Args messages;
  } cases[] = {
      {{"plan", "--deadline", "100"},
       {"--deadline", "\"100\"", "ns, us, ms, s, min, h", "100ms"}},
      {{"run", "--failure-timeout", "5"}, {"--failure-timeout", "\"5\"", "ms"}},
      {{"import", "--forward", "1.5"}, {"--forward", "\"1.5\"", "ms"}},
      {{"plan", "--memory-limit", "64Gigs"},
       {"--memory-limit", "\"64Gigs\"", "GiB"}},
      {{"bench", "--budgets", "10"}, {"--budgets", "\"10\"", "100ms"}},
  };
  for (const auto& c : cases) {
    const Outcome outcome = Pipeloom(c.args);
    EXPECT_EQ(outcome.code, 2);
    for (const std::string& message : c.messages) {
      EXPECT_THAT(outcome.err, HasSubstr(message));
    }
  }
  EXPECT_THAT(Pipeloom({"plan", "--help"}).out,
              HasSubstr("a bare number is bytes"));
}

TEST_F(OptionsTest, HelpIsGroupedByUseAndHasEveryCommand) {
  const std::string help = Pipeloom({"--help"}).out;
  size_t last = 0;
  for (const char* group : {"\nPlan and run:\n", "\nAsk:\n", "\nMeasure:\n",
                            "\nServe:\n", "\nFiles:\n"}) {
    const size_t at = help.find(group);
    ASSERT_NE(at, std::string::npos) << group;
    EXPECT_GT(at, last);
    last = at;
  }
  for (const auto& command : AllCommands()) {
    EXPECT_THAT(help,
                HasSubstr(absl::StrFormat("\n  %-9s ", command->text().name)));
  }
}

TEST_F(OptionsTest, PartitionRefusesWhatContradictsItself) {
  const Args job = {"partition", "dip-vlm-s", "--batch", "image_text"};
  const Outcome two = Pipeloom(job + Args{"--rule", "--partition", "p.json"});
  EXPECT_EQ(two.code, 2);
  EXPECT_THAT(two.err, HasSubstr("--rule is --partition dip"));
  const Outcome layouts =
      Pipeloom(job + Args{"--layouts", "--partition", "dip"});
  EXPECT_EQ(layouts.code, 2);
  EXPECT_THAT(layouts.err, HasSubstr("leave out --layouts or --partition"));
}

}  // namespace
}  // namespace pipeloom::cli
