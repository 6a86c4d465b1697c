#include "studies/bench/bench_journal.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace pipeloom::studies {
namespace {

constexpr absl::string_view kMark = "pipeloom-bench-1";

std::string CheckOf(absl::string_view body) {
  return absl::StrFormat("%016x", FingerprintBuilder().Add(body).Build().low);
}

}  // namespace

std::string BenchJournalLine(const Fingerprint& key, const BenchRow& row) {
  const std::string body = absl::StrFormat(
      "%s\t%016x%016x\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s", std::string(kMark),
      key.high, key.low, absl::CEscape(row.schedule), row.budget.count(),
      row.step_time.count(), row.lower_bound.count(), row.search_time.count(),
      row.evaluations, static_cast<int>(row.status.code()),
      absl::CEscape(std::string(row.status.message())));
  return absl::StrCat(body, "\t", CheckOf(body), "\n");
}

bool ParseBenchJournalLine(absl::string_view line, Fingerprint* key,
                           BenchRow* row) {
  const size_t tab = line.rfind('\t');
  if (tab == absl::string_view::npos) return false;
  const absl::string_view body = line.substr(0, tab);
  if (line.substr(tab + 1) != CheckOf(body)) return false;
  const std::vector<absl::string_view> fields = absl::StrSplit(body, '\t');
  if (fields.size() != 10 || fields[0] != kMark || fields[1].size() != 32) {
    return false;
  }
  int64_t budget = 0, step = 0, bound = 0, search = 0;
  int code = 0;
  std::string message;
  if (!absl::SimpleHexAtoi(fields[1].substr(0, 16), &key->high) ||
      !absl::SimpleHexAtoi(fields[1].substr(16), &key->low) ||
      !absl::CUnescape(fields[2], &row->schedule) ||
      !absl::SimpleAtoi(fields[3], &budget) ||
      !absl::SimpleAtoi(fields[4], &step) ||
      !absl::SimpleAtoi(fields[5], &bound) ||
      !absl::SimpleAtoi(fields[6], &search) ||
      !absl::SimpleAtoi(fields[7], &row->evaluations) ||
      !absl::SimpleAtoi(fields[8], &code) ||
      !absl::CUnescape(fields[9], &message)) {
    return false;
  }
  row->budget = Duration(budget);
  row->step_time = Duration(step);
  row->lower_bound = Duration(bound);
  row->search_time = Duration(search);
  row->status = absl::Status(static_cast<absl::StatusCode>(code), message);
  return true;
}

absl::StatusOr<BenchJournal> BenchJournal::Open(
    const std::string& path, const formats::FileReader& read) {
  BenchJournal journal;
  journal.path_ = path;
  const absl::StatusOr<std::string> found = read(path);
  if (absl::IsNotFound(found.status())) return journal;
  PIPELOOM_RETURN_IF_ERROR(found.status());
  const std::string& text = *found;
  journal.torn_ = !text.empty() && text.back() != '\n';
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    Fingerprint key;
    BenchRow row;
    if (ParseBenchJournalLine(line, &key, &row)) {
      journal.rows_[key] = std::move(row);
    }
  }
  if (journal.rows_.empty() && !text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no journal of bench; it is left as it is"));
  }
  return journal;
}

const BenchRow* BenchJournal::Find(const Fingerprint& key) const {
  const auto it = rows_.find(key);
  return it == rows_.end() ? nullptr : &it->second;
}

absl::Status BenchJournal::Append(const Fingerprint& key, const BenchRow& row) {
  if (path_.empty()) return absl::OkStatus();
  std::FILE* const file = std::fopen(path_.c_str(), "a");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", std::strerror(errno)));
  }
  const std::string line =
      absl::StrCat(torn_ ? "\n" : "", BenchJournalLine(key, row));
  torn_ = false;
  const bool written =
      std::fwrite(line.data(), 1, line.size(), file) == line.size();
  if (std::fclose(file) != 0 || !written) {
    return absl::DataLossError(absl::StrCat(path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status BenchJournal::Finish() {
  if (path_.empty()) return absl::OkStatus();
  if (std::remove(path_.c_str()) == 0 || errno == ENOENT) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": ", std::strerror(errno)));
}

}  // namespace pipeloom::studies
