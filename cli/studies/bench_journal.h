// What an interrupted `bench --out DIR` has done, so that it goes on from
// there: DIR/journal, a line for each outcome, appended as soon as it is known.
#ifndef PIPELOOM_CLI_STUDIES_BENCH_JOURNAL_H_
#define PIPELOOM_CLI_STUDIES_BENCH_JOURNAL_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "cli/studies/bench_row.h"

namespace pipeloom::cli {

// One line; parse gives back what was printed. False: it is torn or none.
std::string BenchJournalLine(const Fingerprint& key, const BenchRow& row);
bool ParseBenchJournalLine(absl::string_view line, Fingerprint* key,
                           BenchRow* row);

class BenchJournal {
 public:
  // Without a file: knows nothing and keeps nothing.
  BenchJournal() = default;
  // Torn lines are passed over. InvalidArgument: the file is no journal.
  static absl::StatusOr<BenchJournal> Open(const std::string& path);

  // Null: not done yet. The key stands for the problem, the schedule and all
  // that its outcome depends on but for the program.
  const BenchRow* Find(const Fingerprint& key) const;
  absl::Status Append(const Fingerprint& key, const BenchRow& row);
  size_t size() const { return rows_.size(); }
  // Removes the file.
  absl::Status Finish();

 private:
  std::string path_{};
  bool torn_ = false;  // The file's last line has no end.
  std::map<Fingerprint, BenchRow> rows_{};
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_BENCH_JOURNAL_H_
