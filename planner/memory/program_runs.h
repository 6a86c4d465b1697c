// An integer program (integer_program.h), and the form in which the solver
// reads it: what each option uses, by runs of rows.
//
// Each group has runs: its rows, cut wherever a use of any of its options
// begins or ends. In a run each option uses one amount in every row.
#ifndef PIPELOOM_PLANNER_MEMORY_PROGRAM_RUNS_H_
#define PIPELOOM_PLANNER_MEMORY_PROGRAM_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

// Groups of options, and the rows that limit them.
struct IntegerProgram {
  // Uses `amount` in each of the rows [first_row, end_row).
  struct Use {
    int32_t first_row = 0;
    int32_t end_row = 0;
    int64_t amount = 0;  // >= 0.
  };
  struct Option {
    int64_t cost = 0;  // >= 0.
    std::vector<Use> uses{};
  };
  using Group = std::vector<Option>;  // Not empty.

  std::vector<Group> groups{};
  std::vector<int64_t> limits{};  // Indexed by row.
};

// Reuses its memory for one program after another. Not thread-safe.
class ProgramRuns {
 public:
  struct Run {
    int32_t first_row = 0;
    int32_t end_row = 0;
    int32_t group = 0;
    size_t amounts = 0;  // Where the amounts of the group's options begin.
    int64_t least = 0;   // The least of these.
  };

  // Begins a program with these limits and no groups.
  void Begin(absl::Span<const int64_t> limits);
  // Add a group with options of these costs, whose runs follow; and a whole
  // group. REQUIRES: not empty.
  void AddGroup(absl::Span<const int64_t> costs);
  void AddGroup(const IntegerProgram::Group& group);
  // Adds a run of the last group; `amounts` is indexed by option. Adds nothing
  // if no option uses anything.
  void AddRun(int32_t first_row, int32_t end_row,
              absl::Span<const int64_t> amounts);
  // Replace the costs of one group, and of all.
  void SetCosts(int32_t group, absl::Span<const int64_t> costs);
  void SetCosts(const IntegerProgram& program);

  size_t num_rows() const { return limits_.size(); }
  size_t num_groups() const { return groups_.size(); }
  size_t num_options() const {
    return cost_of_.size();
  }  // All groups' together.
  const std::vector<int64_t>& limits() const { return limits_; }
  // Costs of all options, those of group g from first_option(g) on.
  const std::vector<int64_t>& cost_of() const { return cost_of_; }
  int32_t first_option(size_t g) const { return groups_[g].first_option; }
  int32_t NumOptions(size_t g) const { return groups_[g].num_options; }
  size_t OptionAt(size_t g, int32_t j) const {
    return at(groups_[g].first_option + j);
  }
  int64_t OptionCost(size_t g, int32_t j) const {
    return cost_of_[OptionAt(g, j)];
  }

  const Run& RunNumber(int32_t index) const { return runs_[at(index)]; }
  absl::Span<const Run> Runs(size_t g) const {
    const Group& group = groups_[g];
    return absl::MakeConstSpan(runs_).subspan(
        at(group.first_run), at(group.end_run - group.first_run));
  }
  int64_t AmountOf(const Run& run, int32_t j) const {
    return amounts_[run.amounts + at(j)];
  }
  // Amounts of a run, indexed by option, and the same as doubles.
  const int64_t* AmountsOf(const Run& run) const {
    return amounts_.data() + run.amounts;
  }
  const double* WeightsOf(const Run& run) const {
    return weights_.data() + run.amounts;
  }
  // Returns the group's run of the row; null if it uses nothing there.
  const Run* RunAt(size_t g, size_t row) const {
    const auto r = static_cast<int32_t>(row);
    for (const Run& run : Runs(g)) {
      if (run.first_row <= r && r < run.end_row) return &run;
    }
    return nullptr;
  }
  // Returns the indices of the runs that contain a row, by group. The first
  // call after a change takes O(rows of all runs).
  absl::Span<const int32_t> RunsOf(size_t row) {
    if (row_offset_.empty()) IndexRows();
    return absl::MakeConstSpan(row_runs_).subspan(
        row_offset_[row], row_offset_[row + 1] - row_offset_[row]);
  }

 protected:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }

 private:
  struct Group {
    int32_t first_option = 0;
    int32_t num_options = 0;
    int32_t first_run = 0;
    int32_t end_run = 0;
  };

  void IndexRows();

  std::vector<int64_t> limits_{};  // Indexed by row.
  std::vector<Group> groups_{};
  std::vector<Run> runs_{};
  std::vector<int64_t> amounts_{};  // Indexed by run and option.
  std::vector<double> weights_{};   // The same as doubles.
  std::vector<int64_t> cost_of_{};  // Indexed by option.
  // Compressed rows: the runs of row r are at [row_offset_[r], row_offset_[r
  // + 1]).
  std::vector<size_t> row_offset_{};
  std::vector<int32_t> row_runs_{};
  // Used by AddGroup, kept for their memory.
  std::vector<int32_t> cuts_{};
  std::vector<int64_t> option_costs_{};
  std::vector<int64_t> option_amounts_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_PROGRAM_RUNS_H_
