// Random execution plans with every kind of instruction, for round trips. They
// are well-formed, but need not be able to run.
#ifndef PIPELOOM_TESTS_SUPPORT_RANDOM_PLAN_H_
#define PIPELOOM_TESTS_SUPPORT_RANDOM_PLAN_H_

#include <cstdint>

#include "ir/plan/execution_plan.h"

namespace pipeloom::testing {

ExecutionPlan RandomPlan(uint64_t seed);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SUPPORT_RANDOM_PLAN_H_
