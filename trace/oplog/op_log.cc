#include "trace/oplog/op_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "formats/text/csv_reader.h"

namespace pipeloom::trace {
namespace {

constexpr std::array<absl::string_view, kOpKinds> kNames = {
    "F",  "B",  "FS",   "FR", "BS", "BR", "AG",
    "RS", "EM", "CLIP", "LN", "GC", "OPT"};
constexpr int32_t kMaxWorkers = 100'000;
constexpr double kMaxMilliseconds = 1e9;  // 11 days.

class Parser {
 public:
  Parser(const formats::CsvTable& table, absl::string_view file)
      : table_(table), file_(file) {}

  absl::StatusOr<OpLog> Parse() {
    for (const auto& [index, name] :
         {std::pair(&step_, "step"), std::pair(&dp_, "dp"),
          std::pair(&stage_, "stage"), std::pair(&start_, "start_ms"),
          std::pair(&op_, "op"), std::pair(&microbatch_, "microbatch"),
          std::pair(&duration_, "duration_ms")}) {
      *index = table_.Column({name});
      if (*index < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            file_, ": there is no column \"", name,
            "\"; an operation log has step, dp, stage, start_ms, op, "
            "microbatch, duration_ms"));
      }
    }
    if (table_.rows.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_, ": no operation; give at least one row"));
    }
    for (const formats::CsvRow& row : table_.rows) {
      PIPELOOM_RETURN_IF_ERROR(Add(row));
    }
    OpLog log;
    for (auto& [number, workers] : steps_) {
      PIPELOOM_ASSIGN_OR_RETURN(OpLogStep step, Complete(number, &workers));
      log.steps.push_back(std::move(step));
    }
    return log;
  }

 private:
  using Worker = std::pair<int32_t, int32_t>;  // Replica and stage.

  absl::Status Error(const formats::CsvRow& row, int column,
                     absl::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s:%d: %s is \"%s\"; it must be %s", std::string(file_), row.line,
        table_.columns[static_cast<size_t>(column)],
        row.cells[static_cast<size_t>(column)], std::string(wanted)));
  }
  absl::StatusOr<int64_t> Number(const formats::CsvRow& row, int column,
                                 int64_t most) const {
    int64_t number = 0;
    if (!absl::SimpleAtoi(row.cells[static_cast<size_t>(column)], &number) ||
        number < 0 || number > most) {
      return Error(row, column,
                   absl::StrCat("a whole number from 0 to ", most));
    }
    return number;
  }
  absl::StatusOr<Duration> Time(const formats::CsvRow& row, int column) const {
    double ms = 0;
    if (!absl::SimpleAtod(row.cells[static_cast<size_t>(column)], &ms) ||
        !(ms >= 0 && ms <= kMaxMilliseconds)) {
      return Error(row, column, "milliseconds from 0 to 1e9");
    }
    return Duration(std::llround(ms * 1e6));
  }

  absl::Status Add(const formats::CsvRow& row) {
    PIPELOOM_ASSIGN_OR_RETURN(const int64_t step,
                              Number(row, step_, int64_t{1} << 60));
    PIPELOOM_ASSIGN_OR_RETURN(const int64_t dp, Number(row, dp_, kMaxWorkers));
    PIPELOOM_ASSIGN_OR_RETURN(const int64_t stage,
                              Number(row, stage_, kMaxWorkers));
    Operation operation;
    const auto name = std::find(kNames.begin(), kNames.end(),
                                row.cells[static_cast<size_t>(op_)]);
    if (name == kNames.end()) {
      return Error(row, op_,
                   absl::StrCat("one of ", absl::StrJoin(kNames, " ")));
    }
    operation.kind = static_cast<OpKind>(name - kNames.begin());
    if (!row.cells[static_cast<size_t>(microbatch_)].empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(const int64_t microbatch,
                                Number(row, microbatch_, 1'000'000));
      operation.microbatch = static_cast<int32_t>(microbatch);
    }
    PIPELOOM_ASSIGN_OR_RETURN(operation.start, Time(row, start_));
    PIPELOOM_ASSIGN_OR_RETURN(operation.duration, Time(row, duration_));
    steps_[step][{static_cast<int32_t>(dp), static_cast<int32_t>(stage)}]
        .push_back(operation);
    return absl::OkStatus();
  }

  absl::StatusOr<OpLogStep> Complete(
      int64_t number, std::map<Worker, std::vector<Operation>>* workers) const {
    OpLogStep step{.number = number};
    for (const auto& [worker, operations] : *workers) {
      step.replicas = std::max(step.replicas, worker.first + 1);
      step.stages = std::max(step.stages, worker.second + 1);
    }
    const int64_t all = int64_t{step.replicas} * step.stages;
    if (all > kMaxWorkers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: step %d has %d replicas of %d stages; at most %d workers are "
          "read",
          std::string(file_), number, step.replicas, step.stages, kMaxWorkers));
    }
    for (int32_t r = 0; r < step.replicas; ++r) {
      for (int32_t s = 0; s < step.stages; ++s) {
        const auto found = workers->find({r, s});
        if (found == workers->end()) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s: step %d has no operation of replica %d, stage %d; it must "
              "have all %d workers",
              std::string(file_), number, r, s, all));
        }
        std::stable_sort(found->second.begin(), found->second.end(),
                         [](const Operation& a, const Operation& b) {
                           return a.start < b.start;
                         });
        step.workers.push_back(std::move(found->second));
      }
    }
    return step;
  }

  const formats::CsvTable& table_;
  const absl::string_view file_;
  int step_ = 0, dp_ = 0, stage_ = 0, start_ = 0, op_ = 0, microbatch_ = 0,
      duration_ = 0;
  std::map<int64_t, std::map<Worker, std::vector<Operation>>> steps_{};
};

}  // namespace

absl::string_view OpName(OpKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

bool IsLocal(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
    case OpKind::kBackward:
    case OpKind::kNorms:
    case OpKind::kCollect:
    case OpKind::kOptimizer:
      return true;
    default:
      return false;
  }
}

Duration OpLogStep::time() const {
  Duration last{};
  for (const std::vector<Operation>& operations : workers) {
    for (const Operation& o : operations) last = std::max(last, o.end());
  }
  return last;
}

absl::StatusOr<OpLog> ParseOpLog(absl::string_view text,
                                 absl::string_view file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const formats::CsvTable table,
                            formats::ParseCsv(text, file_name));
  return Parser(table, file_name).Parse();
}

}  // namespace pipeloom::trace
