// One outcome of the schedule-search benchmark.
#ifndef PIPELOOM_STUDIES_BENCH_BENCH_ROW_H_
#define PIPELOOM_STUDIES_BENCH_BENCH_ROW_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/units.h"

namespace pipeloom::studies {

struct BenchRow {
  std::string schedule{};
  Duration budget{};      // 0: the schedule does not search.
  absl::Status status{};  // An error says why there is no schedule.
  Duration step_time{};
  Duration lower_bound{};
  Duration search_time{};
  int64_t evaluations = 0;
  bool is_answer = false;  // Made by another program.
};

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_BENCH_BENCH_ROW_H_
