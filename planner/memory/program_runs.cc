#include "planner/memory/program_runs.h"

#include <algorithm>

#include "base/check.h"

namespace pipeloom::planner {

void ProgramRuns::Begin(absl::Span<const int64_t> limits) {
  limits_.assign(limits.begin(), limits.end());
  groups_.clear();
  runs_.clear();
  amounts_.clear();
  weights_.clear();
  cost_of_.clear();
  row_offset_.clear();
}

void ProgramRuns::AddGroup(absl::Span<const int64_t> costs) {
  PIPELOOM_CHECK(!costs.empty());
  const auto run = static_cast<int32_t>(runs_.size());
  groups_.push_back({.first_option = static_cast<int32_t>(cost_of_.size()),
                     .num_options = static_cast<int32_t>(costs.size()),
                     .first_run = run,
                     .end_run = run});
  cost_of_.insert(cost_of_.end(), costs.begin(), costs.end());
}

void ProgramRuns::AddRun(int32_t first_row, int32_t end_row,
                         absl::Span<const int64_t> amounts) {
  if (std::all_of(amounts.begin(), amounts.end(),
                  [](int64_t amount) { return amount == 0; })) {
    return;
  }
  runs_.push_back({.first_row = first_row,
                   .end_row = end_row,
                   .group = static_cast<int32_t>(groups_.size()) - 1,
                   .amounts = amounts_.size(),
                   .least = *std::min_element(amounts.begin(), amounts.end())});
  for (const int64_t amount : amounts) {
    amounts_.push_back(amount);
    weights_.push_back(static_cast<double>(amount));
  }
  groups_.back().end_run = static_cast<int32_t>(runs_.size());
}

void ProgramRuns::AddGroup(const IntegerProgram::Group& group) {
  option_costs_.clear();
  cuts_.clear();
  for (const IntegerProgram::Option& option : group) {
    option_costs_.push_back(option.cost);
    for (const IntegerProgram::Use& use : option.uses) {
      cuts_.push_back(use.first_row);
      cuts_.push_back(use.end_row);
    }
  }
  AddGroup(option_costs_);
  std::sort(cuts_.begin(), cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  for (size_t i = 0; i + 1 < cuts_.size(); ++i) {
    option_amounts_.clear();
    for (const IntegerProgram::Option& option : group) {
      int64_t amount = 0;
      for (const IntegerProgram::Use& use : option.uses) {
        if (use.first_row <= cuts_[i] && cuts_[i] < use.end_row) {
          amount += use.amount;
        }
      }
      option_amounts_.push_back(amount);
    }
    AddRun(cuts_[i], cuts_[i + 1], option_amounts_);
  }
}

void ProgramRuns::SetCosts(int32_t group, absl::Span<const int64_t> costs) {
  std::copy(costs.begin(), costs.end(),
            cost_of_.begin() + groups_[at(group)].first_option);
}

void ProgramRuns::SetCosts(const IntegerProgram& program) {
  size_t option = 0;
  for (const IntegerProgram::Group& group : program.groups) {
    for (const IntegerProgram::Option& o : group) cost_of_[option++] = o.cost;
  }
}

void ProgramRuns::IndexRows() {
  row_offset_.assign(num_rows() + 2, 0);
  for (const Run& run : runs_) {
    for (int32_t r = run.first_row; r < run.end_row; ++r) {
      ++row_offset_[at(r) + 2];
    }
  }
  for (size_t r = 2; r < row_offset_.size(); ++r) {
    row_offset_[r] += row_offset_[r - 1];
  }
  row_runs_.resize(row_offset_.back());
  for (size_t k = 0; k < runs_.size(); ++k) {
    for (int32_t r = runs_[k].first_row; r < runs_[k].end_row; ++r) {
      row_runs_[row_offset_[at(r) + 1]++] = static_cast<int32_t>(k);
    }
  }
}

}  // namespace pipeloom::planner
