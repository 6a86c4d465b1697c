#include "runtime/plan_ticket.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace pipeloom::runtime {
namespace {

std::string Text(const Fingerprint& f) {
  return absl::StrFormat("%016x%016x", f.high, f.low);
}

}  // namespace

PlanTicket TicketOf(const ExecutionPlan& plan) {
  return {.job = plan.job,
          .step = plan.step,
          .replica = plan.replica,
          .ranks = plan.graph.num_ranks(),
          .checksum = Checksum(plan)};
}

absl::Status CheckTicket(const PlanTicket& expected, const PlanTicket& given) {
  const auto refuse = [](const std::string& what) {
    return absl::FailedPreconditionError("the plan is refused: " + what);
  };
  if (given.version != expected.version) {
    return refuse(absl::StrFormat("its version is %d, not %d", given.version,
                                  expected.version));
  }
  if (given.job != expected.job) {
    return refuse(absl::StrFormat("it is of job \"%s\", not of \"%s\"",
                                  given.job, expected.job));
  }
  if (given.step != expected.step) {
    return refuse(absl::StrFormat("it is of step %d, not of step %d",
                                  given.step, expected.step));
  }
  if (given.replica != expected.replica) {
    return refuse(absl::StrFormat("it is of replica %d, not of replica %d",
                                  given.replica, expected.replica));
  }
  if (given.ranks != expected.ranks) {
    return refuse(absl::StrFormat("it has %d ranks, not %d", given.ranks,
                                  expected.ranks));
  }
  if (given.checksum != expected.checksum) {
    return refuse(absl::StrFormat("its checksum is %s, not %s",
                                  Text(given.checksum),
                                  Text(expected.checksum)));
  }
  return absl::OkStatus();
}

std::string ToString(const PlanTicket& t) {
  return absl::StrFormat("%d %d %d %d %d %d %s", t.version, t.step, t.replica,
                         t.ranks, t.checksum.high, t.checksum.low,
                         absl::CEscape(t.job));
}

absl::StatusOr<PlanTicket> ParsePlanTicket(absl::string_view text) {
  PlanTicket t;
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 6));
  if (parts.size() != 7 || !absl::SimpleAtoi(parts[0], &t.version) ||
      !absl::SimpleAtoi(parts[1], &t.step) ||
      !absl::SimpleAtoi(parts[2], &t.replica) ||
      !absl::SimpleAtoi(parts[3], &t.ranks) ||
      !absl::SimpleAtoi(parts[4], &t.checksum.high) ||
      !absl::SimpleAtoi(parts[5], &t.checksum.low) ||
      !absl::CUnescape(parts[6], &t.job)) {
    return absl::InvalidArgumentError("what a rank says of its plan is none: " +
                                      std::string(text));
  }
  return t;
}

}  // namespace pipeloom::runtime
