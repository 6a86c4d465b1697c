// The schedule-search benchmark: every problem of a suite, every schedule,
// every time budget. docs/bench.md describes problems and answers.
#ifndef PIPELOOM_CLI_STUDIES_BENCH_RUNS_H_
#define PIPELOOM_CLI_STUDIES_BENCH_RUNS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/studies/bench_journal.h"
#include "cli/studies/bench_row.h"
#include "formats/graph/problem_suite.h"

namespace pipeloom::cli {

struct BenchOptions {
  // Of graphs those that need no job run; of jobs all.
  std::vector<std::string> schedules{};
  std::vector<Duration> budgets{};
  // Searches other than pipeloom get no more, to bound the whole.
  Duration most_of_others{};
  uint64_t seed = 1;
  int32_t threads = 1;
  std::string data_dir{};
  // Folders with answers of other programs, by name.
  std::vector<std::pair<std::string, std::string>> answers{};
};

struct BenchResult {
  formats::SuiteProblem problem{};
  absl::Status status{};  // Why the problem could not be read.
  int64_t tasks = 0;      // 0: not known (a job, whose partitions differ).
  std::vector<BenchRow> rows{};

  // Of graphs the largest of all rows; of jobs, where the bound is that of the
  // schedule's own partition, pipeloom's.
  Duration lower_bound() const;
  // Of all rows and the best known.
  Duration best() const;
  // Null if it is not there or failed.
  const BenchRow* Find(const std::string& schedule, Duration budget) const;
};

// What all searches may take at most.
Duration MostSearchTime(const std::vector<formats::SuiteProblem>& problems,
                        const BenchOptions& options);

// What `journal` has is not run again; the rest is appended to it. Cancelled
// after a stop request.
absl::StatusOr<std::vector<BenchResult>> RunBench(
    const std::vector<formats::SuiteProblem>& problems,
    const BenchOptions& options, const Context& context, BenchJournal* journal);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_STUDIES_BENCH_RUNS_H_
