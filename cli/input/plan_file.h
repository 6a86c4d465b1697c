// Plan files, in protobuf or text form: recognised by content when read, chosen
// by name when written.
#ifndef PIPELOOM_CLI_INPUT_PLAN_FILE_H_
#define PIPELOOM_CLI_INPUT_PLAN_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::cli {

// Read or parse a plan and check it by ValidateExecutionPlan. Errors name the
// file.
absl::StatusOr<ExecutionPlan> ReadPlan(const std::string& path);
absl::StatusOr<ExecutionPlan> ParsePlanFile(absl::string_view content,
                                            const std::string& path);

// Returns whether the content is a plan: a text form, even if it has mistakes,
// or bytes that can be read. O(length).
bool IsPlan(absl::string_view content);

// Writes a plan, as text if `path` ends with ".txt", else as protobuf.
absl::Status WritePlan(const std::string& path, const ExecutionPlan& plan);

// Returns the file name for a step and replica: "plan.pb" for a single step,
// "plan-r1.pb" for its further replicas; "plan-0003.pb" and "plan-0003-r1.pb"
// for one of several steps.
std::string PlanPath(const std::string& path, int64_t step, bool many_steps,
                     int32_t replica);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLAN_FILE_H_
