// tests/golden/split_backward_schedules.txt: what other programs' schedules
// take on uniform pipelines. The format is at the top of that file.
#ifndef PIPELOOM_TESTS_PLANNER_GOLDEN_SCHEDULES_H_
#define PIPELOOM_TESTS_PLANNER_GOLDEN_SCHEDULES_H_

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/units.h"
#include "ir/plan/schedule.h"
#include "tests/support/random_problem.h"

namespace pipeloom::testing {

// Milliseconds of one microbatch on one rank, all chunks together; and of
// every transfer.
struct GoldenCosts {
  double forward = 0;
  double backward = 0;
  double weight_grad = 0;
  double transfer = 0;
};

struct GoldenRow {
  std::string schedule{};
  int32_t ranks = 0;
  int32_t microbatches = 0;
  std::string costs_name{};
  GoldenCosts costs{};
  double makespan_ms = 0;
  int64_t peak = 0;
  std::string Text() const {
    std::ostringstream text;
    text << schedule << " p " << ranks << " m " << microbatches << " "
         << costs_name;
    return text.str();
  }
};

inline std::vector<GoldenRow> GoldenRows(const std::string& schedule) {
  std::ifstream file(PIPELOOM_SOURCE_DIR
                     "/tests/golden/split_backward_schedules.txt");
  std::map<std::string, GoldenCosts> costs;
  std::vector<GoldenRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream in(line);
    GoldenRow row;
    in >> row.schedule;
    if (row.schedule == "costs") {
      in >> row.costs_name;
      GoldenCosts& c = costs[row.costs_name];
      in >> c.forward >> c.backward >> c.weight_grad >> c.transfer;
    } else {
      in >> row.ranks >> row.microbatches >> row.costs_name >>
          row.makespan_ms >> row.peak;
      row.costs = costs.at(row.costs_name);
      if (row.schedule == schedule) rows.push_back(row);
    }
    PIPELOOM_CHECK(!in.fail());
  }
  return rows;
}

// `chunks` chunks a rank, in a V, of equal share; 1000 B an activation of a
// chunk; backward split.
inline StageGraph UniformVee(int32_t ranks, int32_t chunks,
                             int32_t microbatches, const GoldenCosts& costs) {
  return UniformGraph({.ranks = ranks,
                       .chunks = chunks,
                       .microbatches = microbatches,
                       .vee = true,
                       .split_backward = true,
                       .forward = Milliseconds(costs.forward / chunks),
                       .backward = Milliseconds(costs.backward / chunks),
                       .weight_grad = Milliseconds(costs.weight_grad / chunks),
                       .delay = Milliseconds(costs.transfer)});
}

// The most of those activations that any rank holds at once.
inline int64_t MostActivations(const Schedule& schedule) {
  Bytes most;
  for (const Bytes peak : schedule.peak) most = std::max(most, peak);
  return most.count() / 1000;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_GOLDEN_SCHEDULES_H_
