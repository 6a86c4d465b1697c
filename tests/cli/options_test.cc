// Tests of all commands: JSON for programs, the options of a job, the names of
// options.
#include "tests/cli/options_fixture.h"

namespace pipeloom::cli {
namespace {

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

}  // namespace
}  // namespace pipeloom::cli
