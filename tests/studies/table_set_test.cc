// Backtests of several tables at once.
#include "studies/backtest/table_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kHeader[] =
    "framework,run,cluster,shape,layout,setup,microbatch,global_batch,sequence,"
    "step_ms,peak_gib,split\n";
constexpr char kRow[] =
    "f,a,h800-sxm,layers=2 hidden=512 heads=8 ffn=2048 vocab=1000,"
    "tp=1 pp=1 dp=2,,1,2,256,1,,\n";

std::string DataDir() { return PIPELOOM_SOURCE_DIR "/workloads"; }
std::string Shipped(const std::string& name) {
  return absl::StrCat(DataDir(), "/validation/", name, ".csv");
}

StudyContext Files() {
  StudyContext context;
  context.read = [](const std::string& path) {
    return formats::ReadFile(path);
  };
  return context;
}

formats::DeviceProfiles Profiles() { return {DataDir(), Files().read}; }

// Reads a table of that text instead of a file.
absl::StatusOr<std::vector<MeasuredTable>> Load(const std::string& text) {
  return LoadTables({"x/t.csv"}, DataDir(), [&](const std::string& path) {
    return path == "x/t.csv" ? absl::StatusOr<std::string>(text)
                             : formats::ReadFile(path);
  });
}

void ExpectSame(const Comparison& one, const Comparison& other) {
  ASSERT_EQ(one.runs.size(), other.runs.size());
  for (size_t i = 0; i < one.runs.size(); ++i) {
    SCOPED_TRACE(one.runs[i].run.line);
    EXPECT_EQ(one.runs[i].run.line, other.runs[i].run.line);
    EXPECT_EQ(one.runs[i].fitted, other.runs[i].fitted);
    EXPECT_EQ(one.runs[i].emulated.step_time, other.runs[i].emulated.step_time);
    EXPECT_EQ(one.runs[i].emulated.peak_allocated,
              other.runs[i].emulated.peak_allocated);
  }
  ASSERT_EQ(one.scalars.size(), other.scalars.size());
  for (size_t i = 0; i < one.scalars.size(); ++i) {
    SCOPED_TRACE(one.scalars[i].framework);
    EXPECT_EQ(one.scalars[i].framework, other.scalars[i].framework);
    EXPECT_EQ(one.scalars[i].kind, other.scalars[i].kind);
    EXPECT_EQ(one.scalars[i].value, other.scalars[i].value);
    EXPECT_EQ(one.scalars[i].fitted_rows, other.scalars[i].fitted_rows);
    EXPECT_EQ(one.scalars[i].configurations, other.scalars[i].configurations);
  }
}

// Tables with several frameworks, marked and unmarked splits, and a scalar of
// the host.
TEST(TableSet, EachTableOfASetIsWhatItIsAlone) {
  const std::vector<std::string> files = {
      Shipped("pipemorph"), Shipped("mlperf"), Shipped("simumax_b200"),
      Shipped("vtrain_single")};
  ASSERT_OK_AND_ASSIGN(const std::vector<MeasuredTable> tables,
                       LoadTables(files, DataDir(), Files().read));
  for (const bool fit : {false, true}) {
    const BacktestOptions options{.fit = fit, .profiles = Profiles()};
    ASSERT_OK_AND_ASSIGN(const std::vector<TableComparison> together,
                         CompareTables(tables, options, Files()));
    ASSERT_EQ(together.size(), files.size());
    for (size_t t = 0; t < files.size(); ++t) {
      SCOPED_TRACE(files[t]);
      ASSERT_OK_AND_ASSIGN(const std::vector<TableComparison> alone,
                           CompareTables({tables[t]}, options, Files()));
      ExpectSame(together[t].comparison, alone[0].comparison);
    }
  }
}

TEST(TableSet, TablesHaveTheirNamesAndRunsTheirDevices) {
  ASSERT_OK_AND_ASSIGN(std::vector<MeasuredTable> tables,
                       LoadTables({Shipped("torchtitan"), Shipped("primus")},
                                  DataDir(), Files().read));
  EXPECT_EQ(tables[0].name, "torchtitan");
  for (MeasuredTable& table : tables) {
    table.runs.resize(1);
    table.clusters.resize(1);
  }
  ASSERT_OK_AND_ASSIGN(
      const std::vector<TableComparison> compared,
      CompareTables(tables, {.profiles = Profiles()}, Files()));
  EXPECT_EQ(compared[1].name, "primus");
  EXPECT_EQ(compared[0].devices, std::vector<std::string>{"H100"});
  EXPECT_EQ(compared[1].devices, std::vector<std::string>{"MI300X"});
  // Tables of the same name are told apart by their paths.
  const std::string text = absl::StrCat(kHeader, kRow);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<MeasuredTable> twins,
      LoadTables(
          {"a/t.csv", "b/t.csv"}, DataDir(), [&](const std::string& path) {
            return path.ends_with("/t.csv") ? absl::StatusOr<std::string>(text)
                                            : formats::ReadFile(path);
          }));
  EXPECT_EQ(twins[0].name, "a/t.csv");
  EXPECT_EQ(twins[1].name, "b/t.csv");
}

TEST(TableSet, AShippedModelMayHaveRotationsOfOperators) {
  const auto rotated = [](const std::string& words) {
    std::string row = kRow;
    const std::string shape = "layers=2 hidden=512 heads=8 ffn=2048 vocab=1000";
    row.replace(row.find(shape), shape.size(),
                "model=qwen2.5-vl-7b images=1 image=448x448" + words);
    const auto tables = Load(kHeader + row);
    int count = 0;
    if (!tables.ok()) return -1;
    for (const ModuleSpec& module : (*tables)[0].runs[0].model.modules) {
      for (const LayerSpec& layer : module.layers) {
        count += layer.attention.scaled_rotary ? 1 : 0;
      }
    }
    return count;
  };
  EXPECT_EQ(rotated(""), 0);
  // Those of the encoder and of the backbone.
  EXPECT_EQ(rotated(" scaled_rotary=1"), 32 + 28);
}

TEST(TableSet, ErrorsNameTheTableAndItsLine) {
  const std::string header = kHeader;
  const std::string row = kRow;
  EXPECT_THAT(Load(header + row).status(), IsOk());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = row;
    changed.replace(changed.find(from), from.size(), to);
    return Load(header + row + changed).status();
  };
  EXPECT_THAT(with("h800-sxm", "h801-sxm"),
              FailsWith(absl::StatusCode::kNotFound,
                        AllOf(HasSubstr("x/t.csv:3: "),
                              HasSubstr("no cluster \"h801-sxm\""))));
  // Relative to the table's folder.
  EXPECT_THAT(
      with("h800-sxm", "mine.json"),
      FailsWith(absl::StatusCode::kNotFound,
                AllOf(HasSubstr("x/t.csv:3: "), HasSubstr("x/mine.json"))));
  EXPECT_THAT(
      with("layers=2 hidden=512 heads=8 ffn=2048 vocab=1000",
           "model=llama-none images=1 image=8x8"),
      FailsWith(absl::StatusCode::kNotFound,
                AllOf(HasSubstr("x/t.csv:3: "), HasSubstr("llama-none"))));
  EXPECT_THAT(
      with("tp=1", "tp=none"),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("x/t.csv:3")));
  EXPECT_THAT(LoadTables({"none.csv"}, DataDir(), Files().read).status(),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("none.csv")));
  EXPECT_THAT(LoadTables({Shipped("primus"), Shipped("primus")}, DataDir(),
                         Files().read)
                  .status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("primus.csv: is given twice")));
  // A run that cannot be planned: more layers by stage than the model has.
  ASSERT_OK_AND_ASSIGN(
      std::vector<MeasuredTable> tables,
      LoadTables({Shipped("loongforge")}, DataDir(), Files().read));
  for (formats::MeasuredRun& run : tables[0].runs) {
    if (!run.stage_layers.empty()) ++run.stage_layers[0];
  }
  EXPECT_THAT(
      CompareTables(tables, {.profiles = Profiles()}, Files()).status(),
      FailsWith(absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("loongforge.csv: line "), HasSubstr("run"))));
}

TEST(TableSet, ProgressCountsEveryRunAndAStopEndsItBeforeTheNext) {
  ASSERT_OK_AND_ASSIGN(const std::vector<MeasuredTable> tables,
                       LoadTables({Shipped("primus"), Shipped("pipemorph")},
                                  DataDir(), Files().read));
  for (const int64_t last : {int64_t{3}, int64_t{100}}) {
    StudyContext context = Files();
    std::stop_source stop;
    context.stop = stop.get_token();
    std::vector<int64_t> shown;
    context.show_progress = [&](absl::string_view, int64_t total) {
      EXPECT_EQ(total, 20);
      return [&](int64_t done, absl::string_view detail) {
        EXPECT_THAT(std::string(detail),
                    HasSubstr(done < 6 ? "primus, Llama2-7B" : "pipemorph, "));
        shown.push_back(done);
        if (done == last) stop.request_stop();
      };
    };
    const absl::Status status =
        CompareTables(tables, {.profiles = Profiles()}, context).status();
    if (last == 3) {
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(shown, (std::vector<int64_t>{0, 1, 2, 3}));
    } else {
      EXPECT_THAT(status, IsOk());
      EXPECT_EQ(shown.size(), 20u);
      EXPECT_EQ(shown.back(), 19);
    }
  }
}

}  // namespace
}  // namespace pipeloom::studies
