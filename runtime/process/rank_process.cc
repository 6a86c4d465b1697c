#include "runtime/process/rank_process.h"

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "ir/text/text_format.h"
#include "runtime/buffer_table.h"
#include "runtime/interpreter.h"
#include "runtime/memory_account.h"
#include "runtime/plan_ticket.h"

namespace pipeloom::runtime {
namespace {

// Time between all ranks being ready and the common start.
constexpr WallDuration kStartDelay = std::chrono::milliseconds(1);
// How long to wait, at a stop request, for a failure that is its cause: mpirun
// ends all ranks when one has died, but later than its connections close.
constexpr WallDuration kBenefitOfDoubt = std::chrono::milliseconds(20);
// Deadline while rank 0 plans: as long as rank 0 is alive, there is no bound.
constexpr WallDuration kNoBound = std::chrono::hours(24 * 365);

}  // namespace

struct RankProcess::Rank {
  std::optional<RankClock> clock{};
  std::optional<MemoryAccount> account{};
  std::optional<BufferTable> buffers{};
  std::unique_ptr<Device> device{};
  std::optional<Interpreter> interpreter{};
  SimTime finish{};
};

RankProcess::RankProcess(const RunOptions& options, Parts parts)
    : options_(options), parts_(std::move(parts)), id_(parts_.mesh->rank()) {
  ControlMesh::Callbacks callbacks;
  callbacks.on_failure = [this](const absl::Status& reason, bool arrived) {
    parts_.transport->Abort(reason);
    // At the commit nothing is computed, and the step may still count.
    if (!arrived) stop_.request_stop();
  };
  callbacks.on_stuck = parts_.on_stuck;
  callbacks.describe = [this](int32_t rank, const RankProgress& progress) {
    const MutexLock lock(&mutex_);
    const int64_t step = progress.step.load();
    const uint64_t position = progress.position.load();
    for (const SharedPlan& plan : {plan_, last_plan_}) {
      if (plan != nullptr && plan->step == step) {
        return DescribePlace(*plan, RankId(rank), position);
      }
    }
    return absl::StrFormat("rank %d, step %d, instruction %d", rank, step,
                           position);
  };
  parts_.mesh->SetCallbacks(std::move(callbacks));
}

RankProcess::~RankProcess() { parts_.mesh->SetCallbacks({}); }

uint64_t RankProcess::Topic(int which) const {
  return steps_ * 8 + static_cast<uint64_t>(which);
}

// The interpreter catches exceptions of its instructions; this function catches
// those thrown before and after them.
absl::StatusOr<StepTrace> RankProcess::RunStep(SharedPlan plan) {
  const auto here = [&](const char* what) {
    return absl::StrCat(
        DescribePlace(*plan, id_, parts_.mesh->progress()->position.load()),
        ": ", what);
  };
  try {
    return TryStep(plan);
  } catch (const std::bad_alloc&) {
    return FailAt(
        absl::ResourceExhaustedError(here("out of memory (std::bad_alloc)")));
  } catch (const std::exception& e) {
    return FailAt(
        absl::InternalError(absl::StrCat(here("the step threw: "), e.what())));
  }
}

absl::StatusOr<StepTrace> RankProcess::TryStep(const SharedPlan& plan) {
  const std::stop_callback on_request(options_.stop, [this] {
    if (!parts_.mesh->AwaitFailure(WallNow() + kBenefitOfDoubt).ok()) return;
    parts_.mesh->Fail(absl::CancelledError(absl::StrFormat(
        "the run was stopped by request at rank %d", id_.value())));
  });
  ++steps_;
  {
    const MutexLock lock(&mutex_);
    last_plan_ = std::exchange(plan_, plan);
  }
  RankProgress* progress = parts_.mesh->progress();
  progress->position = 0;
  progress->step = plan->step;
  parts_.mesh->BeginCommit();
  const WallTime far = WallNow() + kNoBound;
  {
    const absl::Status agreed = Agree(*plan, far);
    if (!agreed.ok()) return FailAt(agreed);
  }
  const absl::StatusOr<WallTime> start = StartTime(far);
  if (!start.ok()) return FailAt(start.status());
  const WallTime deadline = *start + RunTimeout(*plan, options_);

  Rank rank;
  rank.clock.emplace(RankClock::Options{.time_scale = options_.time_scale,
                                        .max_lag = options_.max_lag,
                                        .stop = stop_.get_token()});
  rank.account.emplace(id_, plan->graph.rank(id_).memory, &*rank.clock);
  rank.buffers.emplace(&*rank.account, options_.allocate,
                       options_.whole_tensors);
  rank.device = parts_.make_device({.plan = plan.get(),
                                    .rank = id_,
                                    .clock = &*rank.clock,
                                    .account = &*rank.account,
                                    .buffers = &*rank.buffers,
                                    .allocate = options_.allocate});
  rank.interpreter.emplace(InterpreterContext{.plan = plan.get(),
                                              .rank = id_,
                                              .clock = &*rank.clock,
                                              .device = rank.device.get(),
                                              .transport = parts_.transport,
                                              .buffers = &*rank.buffers,
                                              .account = &*rank.account,
                                              .commit = parts_.mesh,
                                              .deadline = deadline,
                                              .progress = progress});
  absl::Status status = rank.clock->Start(*start);
  if (status.ok()) status = rank.interpreter->Run();
  if (!status.ok()) {
    return FailAt(absl::Status(
        status.code(),
        absl::StrCat(DescribePlace(*plan, id_, progress->position.load()), ": ",
                     std::string(status.message()))));
  }
  rank.finish = rank.clock->Now();
  absl::StatusOr<StepTrace> trace = Collect(rank, deadline);
  if (!trace.ok()) return FailAt(trace.status());
  return trace;
}

absl::Status RankProcess::Agree(const ExecutionPlan& plan, WallTime deadline) {
  if (plan.graph.num_ranks() != parts_.mesh->size()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the plan has %d ranks, but %d processes were started: start one "
        "process a rank",
        plan.graph.num_ranks(), parts_.mesh->size()));
  }
  const PlanTicket own = TicketOf(plan);
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<std::string> tickets,
      parts_.mesh->Gather(Topic(0), ToString(own), deadline));
  for (size_t r = 1; r < tickets.size(); ++r) {
    PIPELOOM_ASSIGN_OR_RETURN(const PlanTicket theirs,
                              ParsePlanTicket(tickets[r]));
    const absl::Status same = CheckTicket(own, theirs);
    if (same.ok()) continue;
    return absl::Status(same.code(),
                        absl::StrFormat("rank %d, step %d: %s", r, plan.step,
                                        std::string(same.message())));
  }
  return absl::OkStatus();
}

absl::StatusOr<WallTime> RankProcess::StartTime(WallTime deadline) {
  std::string text;
  if (id_ == RankId(0)) {
    const WallTime start = WallNow() + kStartDelay;
    text = absl::StrCat(start.time_since_epoch().count());
  }
  PIPELOOM_ASSIGN_OR_RETURN(text,
                            parts_.mesh->Broadcast(Topic(1), text, deadline));
  int64_t count = 0;
  if (!absl::SimpleAtoi(text, &count)) {
    return absl::InternalError("rank 0 gave a start that is no number: " +
                               text);
  }
  return WallTime(WallTime::duration(count)) - parts_.clock_of_rank_0;
}

absl::StatusOr<StepTrace> RankProcess::Collect(const Rank& rank,
                                               WallTime deadline) {
  StepTrace own;
  own.num_ranks = parts_.mesh->size();
  own.spans = rank.interpreter->spans();
  own.memory = rank.account->history();
  own.finish = rank.finish;
  const BlockedScope blocked(parts_.mesh->progress());
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      parts_.mesh->Gather(Topic(2), ToString(own), deadline));
  if (id_ != RankId(0)) return own;
  std::vector<StepTrace> traces;
  for (const std::string& text : texts) {
    PIPELOOM_ASSIGN_OR_RETURN(StepTrace trace, ParseStepTrace(text));
    traces.push_back(std::move(trace));
  }
  return MergeTraces(traces);
}

absl::Status RankProcess::Fail(const absl::Status& reason) {
  return FailAt(reason);
}

absl::Status RankProcess::FailAt(const absl::Status& reason) {
  parts_.mesh->Fail(reason);
  return parts_.mesh->failure();
}

}  // namespace pipeloom::runtime
