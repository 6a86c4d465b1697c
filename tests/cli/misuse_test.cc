// Tests of all commands: what is refused before the work, and what help says.
#include "tests/cli/options_fixture.h"

namespace pipeloom::cli {
namespace {

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
