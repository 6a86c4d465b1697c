// The schedule-search benchmark, which runs every schedule with every time
// budget on every problem of a suite. docs/bench.md describes problems and
// answers.
#ifndef PIPELOOM_STUDIES_BENCH_BENCH_RUNS_H_
#define PIPELOOM_STUDIES_BENCH_BENCH_RUNS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/graph/problem_suite.h"
#include "studies/bench/bench_journal.h"
#include "studies/bench/bench_row.h"
#include "studies/job/study_context.h"

namespace pipeloom::studies {

struct BenchOptions {
  // Schedules to run. On graphs, those that need a job are left out.
  std::vector<std::string> schedules{};
  std::vector<Duration> budgets{};
  // The largest budget of searches other than pipeloom, which bounds the total
  // time.
  Duration most_of_others{};
  uint64_t seed = 1;
  int32_t threads = 1;
  std::string data_dir{};
  // Names of other programs, and the folders with their answers.
  std::vector<std::pair<std::string, std::string>> answers{};
};

struct BenchResult {
  formats::SuiteProblem problem{};
  absl::Status status{};  // An error says why the problem could not be read.
  int64_t tasks = 0;      // 0: not known (a job, whose partitions differ).
  std::vector<BenchRow> rows{};

  // Returns the largest bound of all rows for a graph. For a job, whose bounds
  // are those of each schedule's own partition, returns pipeloom's. 0: no such
  // row found a schedule.
  Duration lower_bound() const;
  // Returns false if `time` is below lower_bound(), which no answer to a graph
  // can be. A job's other partitions may be faster; 0: not given.
  bool IsPossible(Duration time) const;
  // Returns the best step time of all rows and of the best known answer, if
  // that is possible. 0: there is none.
  Duration best() const;
  // Returns why no row found a schedule; OK if one did or the problem could not
  // be read.
  absl::Status unsolved() const;
  // Returns a row, or null if it does not exist or failed.
  const BenchRow* Find(const std::string& schedule, Duration budget) const;
};

// Returns the most time that all searches together may take.
Duration MostSearchTime(const std::vector<formats::SuiteProblem>& problems,
                        const BenchOptions& options);

// Runs the benchmark. Outcomes that `journal` has are not computed again; new
// ones are appended to it. Cancelled: a stop was requested.
absl::StatusOr<std::vector<BenchResult>> RunBench(
    const std::vector<formats::SuiteProblem>& problems,
    const BenchOptions& options, const StudyContext& context,
    BenchJournal* journal);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BENCH_BENCH_RUNS_H_
