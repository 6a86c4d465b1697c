#include "cli/input/plan_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/file_kind.h"
#include "cli/console/files.h"
#include "ir/text/text_format.h"
#include "proto/convert/serialize_plan.h"

namespace pipeloom::cli {
namespace {

absl::Status Named(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<ExecutionPlan> ParsePlanFile(absl::string_view content,
                                            const std::string& path) {
  if (content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  absl::StatusOr<ExecutionPlan> plan;
  switch (const FileKind kind = GuessFileKind(content)) {
    case FileKind::kPlanText:
      plan = ParseExecutionPlan(content);
      break;
    case FileKind::kPlanBytes:
      plan = convert::ParsePlan(content);
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is no plan; it looks like a ", FileKindName(kind)));
  }
  if (!plan.ok()) return Named(path, plan.status());
  PIPELOOM_RETURN_IF_ERROR(Named(path, ValidateExecutionPlan(*plan)));
  return plan;
}

bool IsPlan(absl::string_view content) {
  const FileKind kind = GuessFileKind(content);
  return kind == FileKind::kPlanText ||
         (kind == FileKind::kPlanBytes && convert::ParsePlan(content).ok());
}

absl::StatusOr<ExecutionPlan> ReadPlan(const std::string& path) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  return ParsePlanFile(content, path);
}

absl::Status WritePlan(const std::string& path, const ExecutionPlan& plan) {
  return WriteFileAtomically(path, absl::EndsWith(path, ".txt")
                                       ? ToString(plan)
                                       : convert::SerializePlan(plan));
}

std::string PlanPath(const std::string& path, int64_t step, bool many_steps,
                     int32_t replica) {
  const size_t slash = path.rfind('/');
  size_t dot = path.rfind('.');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) {
    dot = path.size();
  }
  std::string name = path.substr(0, dot);
  if (many_steps) absl::StrAppendFormat(&name, "-%04d", step);
  if (replica > 0) absl::StrAppend(&name, "-r", replica);
  return name + path.substr(dot);
}

}  // namespace pipeloom::cli
