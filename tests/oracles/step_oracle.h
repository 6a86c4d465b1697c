// A slow emulator that shares no code with the real one: it looks at every
// rank and every waiting transfer again after each instruction, and moves its
// clock to the next moment at which anything can happen.
#ifndef PIPELOOM_TESTS_ORACLES_STEP_ORACLE_H_
#define PIPELOOM_TESTS_ORACLES_STEP_ORACLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/plan/execution_plan.h"

namespace pipeloom::testing {

struct OracleStep {
  bool deadlock = false;
  int64_t finish = 0;  // Nanoseconds, as the rest.
  std::map<int32_t, int64_t> task_start{};
  std::map<int32_t, int64_t> transfer_start{};
};

// `ports_of(from, to)` names what a transfer between two ranks holds: it begins
// when all of these are free, in the order in which both ends were there.
OracleStep EmulateByScanning(
    const ExecutionPlan& plan, bool blocking_sends,
    const std::function<std::vector<std::string>(int32_t, int32_t)>& ports_of);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_ORACLES_STEP_ORACLE_H_
