// The identity of a plan, which a rank knows before it has the plan; it refuses
// any other plan.
#ifndef PIPELOOM_RUNTIME_PLAN_TICKET_H_
#define PIPELOOM_RUNTIME_PLAN_TICKET_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::runtime {

// Version, job, step, replica, number of ranks and checksum of a plan.
struct PlanTicket {
  int32_t version = ExecutionPlan::kVersion;
  std::string job{};
  int64_t step = 0;
  int32_t replica = 0;
  int32_t ranks = 0;
  Fingerprint checksum{};
  bool operator==(const PlanTicket&) const = default;
};

PlanTicket TicketOf(const ExecutionPlan& plan);

// Checks a plan's ticket. FailedPrecondition says in what the plan differs from
// the expected one.
absl::Status CheckTicket(const PlanTicket& expected, const PlanTicket& given);

// Convert a ticket to one line of text and back. InvalidArgument: the text is
// no ticket.
std::string ToString(const PlanTicket& ticket);
absl::StatusOr<PlanTicket> ParsePlanTicket(absl::string_view text);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PLAN_TICKET_H_
