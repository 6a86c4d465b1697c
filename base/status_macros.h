// Early return on a failed absl::Status or absl::StatusOr.
//
//   PIPELOOM_RETURN_IF_ERROR(Validate(options));
//   PIPELOOM_ASSIGN_OR_RETURN(const JobSpec job, ParseJob(text));
#ifndef PIPELOOM_BASE_STATUS_MACROS_H_
#define PIPELOOM_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define PIPELOOM_RETURN_IF_ERROR(expression)                                  \
  do {                                                                        \
    if (absl::Status pipeloom_status = (expression); !pipeloom_status.ok()) { \
      return pipeloom_status;                                                 \
    }                                                                         \
  } while (false)

#define PIPELOOM_ASSIGN_OR_RETURN(declaration, expression)          \
  PIPELOOM_ASSIGN_OR_RETURN_IMPL_(                                  \
      PIPELOOM_CONCAT_(pipeloom_status_or_, __LINE__), declaration, \
      expression)

#define PIPELOOM_ASSIGN_OR_RETURN_IMPL_(status_or, declaration, expression) \
  auto status_or = (expression);                                            \
  if (!status_or.ok()) return std::move(status_or).status();                \
  declaration = *std::move(status_or)

#define PIPELOOM_CONCAT_(a, b) PIPELOOM_CONCAT_IMPL_(a, b)
#define PIPELOOM_CONCAT_IMPL_(a, b) a##b

#endif  // PIPELOOM_BASE_STATUS_MACROS_H_
