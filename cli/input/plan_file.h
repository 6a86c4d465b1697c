// Plan files: protobuf or text, by content when read and by name when written.
#ifndef PIPELOOM_CLI_INPUT_PLAN_FILE_H_
#define PIPELOOM_CLI_INPUT_PLAN_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::cli {

// The plan, checked by ValidateExecutionPlan. Errors name the file.
absl::StatusOr<ExecutionPlan> ReadPlan(const std::string& path);
absl::StatusOr<ExecutionPlan> ParsePlanFile(absl::string_view content,
                                            const std::string& path);

// Text when `path` ends with ".txt", else protobuf.
absl::Status WritePlan(const std::string& path, const ExecutionPlan& plan);

// "plan.pb" of one step and replica; "plan-0003.pb", "plan-0003-r1.pb" of
// several steps, "plan-r1.pb" of further replicas.
std::string PlanPath(const std::string& path, int64_t step, bool many_steps,
                     int32_t replica);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLAN_FILE_H_
