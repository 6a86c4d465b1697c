#include "runtime/launch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "runtime/buffer_table.h"
#include "runtime/commit_point.h"
#include "runtime/inproc_transport.h"
#include "runtime/interpreter.h"
#include "runtime/memory_account.h"
#include "runtime/synthetic_device.h"

namespace pipeloom::runtime {
namespace {

// From the creation of the threads to the common start.
constexpr WallDuration kStartDelay = std::chrono::milliseconds(1);
// The ranks' own deadline lies behind that of the launcher, which sees all of
// them and says more.
constexpr WallDuration kGrace = std::chrono::seconds(1);
constexpr WallDuration kLongestTimeout = std::chrono::hours(24 * 365);

absl::Status CheckOptions(const RunOptions& options) {
  if (!(options.time_scale > 0 && std::isfinite(options.time_scale))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "time_scale is %g; it must be > 0", options.time_scale));
  }
  if (options.timeout < WallDuration::zero() ||
      options.timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(
        absl::StrFormat("timeout is %d ns; it must be in [0, a year]",
                        options.timeout.count()));
  }
  if (options.max_lag < WallDuration::zero() ||
      options.max_lag > kLongestTimeout) {
    return absl::InvalidArgumentError(
        absl::StrFormat("max_lag is %d ns; it must be in [0, a year]",
                        options.max_lag.count()));
  }
  return absl::OkStatus();
}

WallDuration Timeout(const ExecutionPlan& plan, const RunOptions& options) {
  if (options.timeout > WallDuration::zero()) return options.timeout;
  double serial = 0;
  for (const Task& task : plan.graph.tasks())
    serial += ToSeconds(task.duration);
  for (const Dependency& d : plan.graph.edges()) serial += ToSeconds(d.delay);
  for (const RankSpec& r : plan.graph.ranks()) serial += ToSeconds(r.epilogue);
  const double seconds = serial * options.time_scale + 30;
  const double longest = std::chrono::duration<double>(kLongestTimeout).count();
  return std::chrono::duration_cast<WallDuration>(
      std::chrono::duration<double>(std::min(seconds, longest)));
}

// All ranks of one run.
class Run {
 public:
  Run(const ExecutionPlan& plan, const RunOptions& options,
      const RunParts& parts)
      : plan_(plan),
        options_(options),
        parts_(parts),
        transport_(parts.make_transport(plan, options)),
        commit_(plan.graph.num_ranks()),
        ranks_(static_cast<size_t>(plan.graph.num_ranks())),
        running_(plan.graph.num_ranks()) {}

  absl::StatusOr<StepTrace> Execute() {
    deadline_ = WallNow() + Timeout(plan_, options_);
    for (const RankId id : plan_.graph.rank_ids()) SetUp(id);
    start_ = WallNow() + kStartDelay;
    {
      const std::stop_callback on_request(options_.stop, [this] {
        Stop(Why::kRequest,
             absl::CancelledError("the run was stopped by request; " +
                                  Unfinished()));
      });
      std::vector<std::jthread> threads;
      for (const RankId rank : plan_.graph.rank_ids()) {
        try {
          threads.emplace_back([this, rank] { RunRank(rank); });
        } catch (const std::system_error& error) {
          Stop(Why::kFailure, absl::UnavailableError(absl::StrFormat(
                                  "rank %d: no thread for it: %s", rank.value(),
                                  error.what())));
          const std::lock_guard lock(mutex_);
          running_ -= plan_.graph.num_ranks() - rank.value();
          break;
        }
      }
      AwaitRanks();
    }
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    return Collect();
  }

 private:
  // Everything of a rank lives until all ranks have ended, as a peer may still
  // copy from or into its memory. Used by the rank's thread while it runs,
  // except `position`.
  struct Rank {
    std::atomic<size_t> position{0};
    std::optional<RankClock> clock{};
    std::optional<MemoryAccount> account{};
    std::optional<BufferTable> buffers{};
    std::unique_ptr<Device> device{};
    std::optional<Interpreter> interpreter{};
    SimTime finish{};
  };

  Rank& rank(RankId id) { return ranks_[static_cast<size_t>(id.value())]; }

  void SetUp(RankId id) {
    Rank& r = rank(id);
    r.clock.emplace(RankClock::Options{.time_scale = options_.time_scale,
                                       .max_lag = options_.max_lag,
                                       .stop = stop_.get_token()});
    r.account.emplace(id, plan_.graph.rank(id).memory, &*r.clock);
    r.buffers.emplace(&*r.account, options_.allocate);
    r.device = parts_.make_device({.plan = &plan_,
                                   .rank = id,
                                   .clock = &*r.clock,
                                   .account = &*r.account,
                                   .allocate = options_.allocate});
    r.interpreter.emplace(InterpreterContext{.plan = &plan_,
                                             .rank = id,
                                             .clock = &*r.clock,
                                             .device = r.device.get(),
                                             .transport = transport_.get(),
                                             .buffers = &*r.buffers,
                                             .commit = &commit_,
                                             .deadline = deadline_ + kGrace,
                                             .position = &r.position});
  }

  void RunRank(RankId id) {
    AskForPreciseSleep();
    Rank& own = rank(id);
    absl::Status status = own.clock->Start(start_);
    if (status.ok()) status = own.interpreter->Run();
    if (status.ok()) {
      own.finish = own.clock->Now();
    } else {
      Stop(Why::kFailure,
           absl::Status(status.code(),
                        absl::StrFormat("%s: %s", Where(id),
                                        std::string(status.message()))));
    }
    const std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_all();
  }

  // Waits for all ranks; at the deadline, stops them first. Ranks that step
  // their optimizers then are given some more time before they are cut off.
  void AwaitRanks() {
    std::unique_lock lock(mutex_);
    const auto all_ended = [this] { return running_ == 0; };
    for (const auto& [why, until] :
         {std::pair(Why::kRequest, deadline_),
          std::pair(Why::kLastResort, deadline_ + 2 * kGrace)}) {
      if (ended_.wait_until(lock, until, all_ended)) return;
      lock.unlock();
      Stop(why, absl::DeadlineExceededError(absl::StrFormat(
                    "not done after %.3f s; %s",
                    std::chrono::duration<double>(WallNow() - start_).count(),
                    Unfinished())));
      lock.lock();
    }
    ended_.wait(lock, all_ended);
  }

  enum class Why { kRequest, kFailure, kLastResort };

  // Ends all ranks; the first reason is the one that is reported. Once every
  // rank has come to its optimizer step the step counts: a request is too late
  // then, and a failure is reported but cancels no other rank.
  void Stop(Why why, const absl::Status& reason) {
    const absl::Status consequence = absl::CancelledError(
        "another rank failed: " + std::string(reason.message()));
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok()) return;
      const bool in_time = commit_.Abort(consequence);
      if (!in_time && why == Why::kRequest) return;
      failure_ = reason;
      if (!in_time && why == Why::kFailure) return;
    }
    stop_.request_stop();
    transport_->Abort(consequence);
  }

  std::string Where(RankId id) {
    const size_t position = rank(id).position.load(std::memory_order_relaxed);
    const std::vector<Instruction>& program = plan_.programs[id];
    if (position >= program.size()) {
      return absl::StrFormat("rank %d, at its end", id.value());
    }
    return absl::StrFormat("rank %d, instruction %d (%s)", id.value(), position,
                           DescribeInstruction(program[position]));
  }

  // Where the ranks are; first those that wait for no other rank, as one of
  // them holds the others up.
  std::string Unfinished() {
    std::string busy;
    std::string waiting;
    for (const RankId id : plan_.graph.rank_ids()) {
      const size_t position = rank(id).position.load(std::memory_order_relaxed);
      const std::vector<Instruction>& program = plan_.programs[id];
      if (position >= program.size()) continue;
      const Instruction& i = program[position];
      const bool waits = std::holds_alternative<WaitRecv>(i) ||
                         std::holds_alternative<WaitSend>(i) ||
                         std::holds_alternative<OptimizerStep>(i);
      std::string& list = waits ? waiting : busy;
      absl::StrAppendFormat(&list, "%s%s", list.empty() ? "" : "; ", Where(id));
    }
    std::string text;
    if (!busy.empty()) text += "busy: " + busy;
    if (!busy.empty() && !waiting.empty()) text += "; ";
    if (!waiting.empty()) text += "waiting for others: " + waiting;
    return text.empty() ? "all ranks were done" : text;
  }

  StepTrace Collect() {
    StepTrace trace;
    trace.num_ranks = plan_.graph.num_ranks();
    std::vector<Span> spans;
    for (const Rank& r : ranks_) {
      const std::vector<Span>& own = r.interpreter->spans();
      const std::vector<MemoryStep>& memory = r.account->history();
      spans.insert(spans.end(), own.begin(), own.end());
      trace.memory.insert(trace.memory.end(), memory.begin(), memory.end());
      trace.finish = std::max(trace.finish, r.finish);
    }
    // By rank and start; what starts together stays in program order.
    std::vector<std::tuple<RankId, SimTime, size_t>> order;
    for (size_t k = 0; k < spans.size(); ++k) {
      order.emplace_back(spans[k].rank, spans[k].start, k);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [rank, start, k] : order) trace.spans.push_back(spans[k]);
    return trace;
  }

  const ExecutionPlan& plan_;
  const RunOptions& options_;
  const RunParts& parts_;
  const std::unique_ptr<Transport> transport_;
  CommitPoint commit_;
  WallTime start_{};
  WallTime deadline_{};
  std::stop_source stop_{};
  std::vector<Rank> ranks_;
  std::mutex mutex_{};
  std::condition_variable ended_{};
  int32_t running_;  // Guarded by mutex_, as failure_ is.
  absl::Status failure_{};
};

}  // namespace

RunParts SyntheticParts() {
  return {.make_transport =
              [](const ExecutionPlan& plan, const RunOptions& options) {
                return std::make_unique<InprocTransport>(plan.graph.num_ranks(),
                                                         options.time_scale);
              },
          .make_device = MakeSyntheticDevice};
}

absl::StatusOr<StepTrace> RunPlan(const ExecutionPlan& plan,
                                  const RunOptions& options) {
  return RunPlanWith(plan, options, SyntheticParts());
}

absl::StatusOr<StepTrace> RunPlanWith(const ExecutionPlan& plan,
                                      const RunOptions& options,
                                      const RunParts& parts) {
  PIPELOOM_RETURN_IF_ERROR(CheckOptions(options));
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
  return Run(plan, options, parts).Execute();
}

}  // namespace pipeloom::runtime
