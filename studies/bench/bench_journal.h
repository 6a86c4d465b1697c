// The journal from which an interrupted `bench --out DIR` goes on: DIR/journal,
// with a line for each outcome, appended as soon as it is known.
#ifndef PIPELOOM_STUDIES_BENCH_BENCH_JOURNAL_H_
#define PIPELOOM_STUDIES_BENCH_BENCH_JOURNAL_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "formats/job/spec_loader.h"
#include "studies/bench/bench_row.h"

namespace pipeloom::studies {

// Print and parse one line, without loss. ParseBenchJournalLine returns false
// if the line is incomplete or not of a journal.
std::string BenchJournalLine(const Fingerprint& key, const BenchRow& row);
bool ParseBenchJournalLine(absl::string_view line, Fingerprint* key,
                           BenchRow* row);

class BenchJournal {
 public:
  // Makes a journal without a file, which is empty and keeps nothing on disk.
  BenchJournal() = default;
  // Opens a journal, whose file may not exist yet. Ignores incomplete lines.
  // InvalidArgument: the file is not a journal.
  static absl::StatusOr<BenchJournal> Open(const std::string& path,
                                           const formats::FileReader& read);

  // Returns the outcome, or null if it is not done yet. The key stands for the
  // problem, the schedule and everything else that the outcome depends on,
  // except the program.
  const BenchRow* Find(const Fingerprint& key) const;
  absl::Status Append(const Fingerprint& key, const BenchRow& row);
  size_t size() const { return rows_.size(); }
  // Removes the file at the end of the benchmark.
  absl::Status Finish();

 private:
  std::string path_{};
  bool torn_ = false;  // Whether the file's last line is incomplete.
  std::map<Fingerprint, BenchRow> rows_{};
};

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BENCH_BENCH_JOURNAL_H_
