#include "cli/console/flags.h"

#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Options {
  bool quiet = false;
  int64_t steps = 1;
  double scale = 1;
  std::string batch;
  std::string format = "table";
  std::vector<std::string> schedules = {"gpipe", "1f1b"};
  std::optional<Duration> deadline;
  std::optional<Bytes> limit;
  std::optional<int64_t> seed;
};

std::vector<Flag> FlagsOf(Options* o) {
  return {{"quiet", &o->quiet, "", "say nothing"},
          {"steps", &o->steps, "N", "how many steps", {}, 1, 1000},
          {"time-scale", &o->scale, "X", "faster", {}, 1e-6, 1},
          {"batch", &o->batch, "FILE", "the batch"},
          {"format", &o->format, "F", "as", {"table", "json"}},
          {"schedules",
           &o->schedules,
           "A,B",
           "which",
           {"gpipe", "1f1b", "megatron"}},
          {"deadline", &o->deadline, "TIME", "how long"},
          {"memory-limit", &o->limit, "SIZE", "of one GPU"},
          {"seed", &o->seed, "N", "of the search"}};
}

TEST(ParseFlagsTest, SetsEveryKindOfValueInBothForms) {
  Options o;
  ASSERT_OK_AND_ASSIGN(
      const auto positional,
      ParseFlags(FlagsOf(&o),
                 {"job", "--quiet", "--steps=7", "--time-scale", "0.25",
                  "--batch", "b=1.jsonl", "--format=json", "--schedules",
                  "1f1b,megatron", "--deadline", "1.5s", "--memory-limit=64GiB",
                  "--seed", "9", "--", "--odd-name"}));
  EXPECT_THAT(positional, ElementsAre("job", "--odd-name"));
  EXPECT_TRUE(o.quiet);
  EXPECT_EQ(o.steps, 7);
  EXPECT_EQ(o.scale, 0.25);
  EXPECT_EQ(o.batch, "b=1.jsonl");
  EXPECT_EQ(o.format, "json");
  EXPECT_THAT(o.schedules, ElementsAre("1f1b", "megatron"));
  EXPECT_EQ(o.deadline, Seconds(1.5));
  EXPECT_EQ(o.limit, kGibibyte * 64);
  EXPECT_EQ(o.seed, 9);
  ASSERT_THAT(ParseFlags(FlagsOf(&o), {"--no-quiet"}), IsOk());
  EXPECT_FALSE(o.quiet);
}

TEST(ParseFlagsTest, RefusesAnOptionWithoutOneThatItNeeds) {
  bool robust = false;
  double jitter = 0.05;
  std::string device = "synthetic";
  std::optional<double> scale;
  std::vector<std::string> ask;
  int64_t gpus = 0;
  const std::vector<Flag> flags = {
      {"robust", &robust, "", "robustly"},
      Needing({"robust"}, {"jitter", &jitter, "X", "of --robust"}),
      {"device", &device, "NAME", "what executes"},
      Needing({"device=torch", "robust"}, {"scale", &scale, "N", "of torch"}),
      {"ask", &ask, "A,B", "questions"},
      Needing({"ask=layout"}, {"gpus", &gpus, "N", "of the layouts"})};
  const auto error = [&](const std::vector<std::string>& args) {
    robust = false;
    device = "synthetic";
    ask.clear();
    const absl::Status status = ParseFlags(flags, args).status();
    EXPECT_EQ(status.ok(), !IsUsageError(status));
    return std::string(status.message());
  };
  EXPECT_EQ(error({"--jitter", "0.05"}),
            "--jitter needs --robust; add it, or leave out --jitter");
  EXPECT_EQ(error({"--robust", "--no-robust", "--jitter", "1"}),
            "--jitter needs --robust; add it, or leave out --jitter");
  EXPECT_EQ(error({"--scale", "2"}),
            "--scale needs --device torch or --robust; add it, or leave out "
            "--scale");
  EXPECT_EQ(error({"--gpus", "2", "--ask", "network"}),
            "--gpus needs --ask layout; add it, or leave out --gpus");
  EXPECT_EQ(error({"--jitter", "1", "--robust"}), "");
  EXPECT_EQ(error({"--scale", "2", "--device", "torch"}), "");
  EXPECT_EQ(scale, 2);
  EXPECT_EQ(error({"--gpus", "2", "--ask", "network,layout"}), "");
  EXPECT_EQ(error({}), "");
}

TEST(ParseFlagsTest, NamesTheArgumentAtFaultAndWhatWouldBeRight) {
  const struct {
    std::vector<std::string> args;
    std::string message;
  } cases[] = {
      {{"--step", "3"}, "unknown option \"--step\"; did you mean \"--steps\""},
      {{"--bacth=x"}, "did you mean \"--batch\""},
      {{"--zzzzzzzz"}, "unknown option \"--zzzzzzzz\""},
      {{"-q"}, "begin with two dashes"},
      {{"--steps"}, "--steps needs a value (N)"},
      {{"--steps", "many"}, "\"many\" is no whole number"},
      {{"--steps=1.5"}, "\"1.5\" is no whole number"},
      {{"--steps=0"}, "0; it must be >= 1 and <= 1000"},
      {{"--time-scale=2"}, "2; it must be"},
      {{"--time-scale=nan"}, "is no number"},
      {{"--quiet=yes"}, "--quiet takes no value"},
      {{"--format=yaml"}, "there is no \"yaml\"; there is table, json"},
      {{"--schedules=1f1b,megatrom"}, "did you mean \"megatron\""},
      {{"--schedules="}, "is no list of names"},
      {{"--deadline=100"}, "--deadline: \"100\" is no duration"},
      {{"--memory-limit=lots"}, "--memory-limit: \"lots\" is no size"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.args[0]);
    Options o;
    const auto parsed = ParseFlags(FlagsOf(&o), c.args);
    EXPECT_THAT(parsed, FailsWith(absl::StatusCode::kInvalidArgument,
                                  HasSubstr(c.message)));
    EXPECT_TRUE(IsUsageError(parsed.status()));
  }
  EXPECT_FALSE(IsUsageError(absl::InvalidArgumentError("a bad file")));
}

TEST(ParseDurationTest, ReadsEveryUnitAndRefusesTheRest) {
  const struct {
    std::string text;
    Duration duration;
  } good[] = {{"100ms", Milliseconds(100)}, {"10s", Seconds(10)},
              {"1.5 s", Seconds(1.5)},      {"250us", Microseconds(250)},
              {"7ns", Nanoseconds(7)},      {"2min", Seconds(120)},
              {"1h", Seconds(3600)},        {"0", kZero},
              {" 3ms ", Milliseconds(3)}};
  for (const auto& c : good) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const Duration parsed, ParseDuration(c.text));
    EXPECT_EQ(parsed, c.duration);
  }
  for (const char* bad : {"", "ms", "10", "-5ms", "5 parsecs", "1e3s", "1..2s",
                          "99999999999999999999h", "1s2s"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
}

TEST(ParseSizeTest, ReadsEveryUnitAndRefusesTheRest) {
  const struct {
    std::string text;
    int64_t bytes;
  } good[] = {{"1024", 1024},
              {"2KB", 2000},
              {"2KiB", 2048},
              {"1.5MiB", 3 << 19},
              {"80GB", 80'000'000'000},
              {"64 GiB", int64_t{64} << 30},
              {"1TiB", int64_t{1} << 40},
              {"0", 0}};
  for (const auto& c : good) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const Bytes parsed, ParseSize(c.text));
    EXPECT_EQ(parsed.count(), c.bytes);
  }
  for (const char* bad : {"", "-1", "GiB", "3 furlongs", "99999999999TiB"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
}

TEST(ParseShareTest, ReadsPercentAndRatioAndRefusesTheRest) {
  const struct {
    std::string text;
    double share;
  } good[] = {{"3%", 0.03},       {"3 %", 0.03}, {"0.03", 0.03},
              {" 12.5% ", 0.125}, {"0", 0},      {"99.9%", 0.999}};
  for (const auto& c : good) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const Share parsed, ParseShare(c.text));
    EXPECT_DOUBLE_EQ(parsed.value, c.share);
  }
  for (const char* bad : {"", "%", "3GiB", "-1%", "100%", "1", "3", "nan"}) {
    EXPECT_FALSE(ParseShare(bad).ok()) << bad;
  }
}

TEST(FlagsHelpTest, NamesEveryFlagWithItsDefaultAndChoicesIn80Columns) {
  Options o;
  const std::string help = FlagsHelp(FlagsOf(&o));
  for (const Flag& flag : FlagsOf(&o)) {
    EXPECT_THAT(help, HasSubstr("--" + flag.name));
    EXPECT_THAT(help, HasSubstr(flag.help));
  }
  EXPECT_THAT(help, HasSubstr("(default 1)"));
  EXPECT_THAT(help, HasSubstr("(default gpipe,1f1b)"));
  EXPECT_THAT(help, HasSubstr("as: table, json (default table)"));
  size_t column = 0;
  for (const char c : help) {
    column = c == '\n' ? 0 : column + 1;
    EXPECT_LE(column, 80u);
  }
}

TEST(WrapTextTest, BreaksAtSpacesAndIndents) {
  const std::string text =
      WrapText(std::string(30, 'a') + " " + std::string(30, 'b') + " " +
                   std::string(30, 'c'),
               4);
  EXPECT_EQ(text, std::string(30, 'a') + " " + std::string(30, 'b') + "\n    " +
                      std::string(30, 'c'));
}

}  // namespace
}  // namespace pipeloom::cli
