#include "runtime/launch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "runtime/buffer_table.h"
#include "runtime/commit_point.h"
#include "runtime/inproc_transport.h"
#include "runtime/interpreter.h"
#include "runtime/memory_account.h"
#include "runtime/rank_progress.h"
#include "runtime/synthetic_device.h"

namespace pipeloom::runtime {
namespace {

// Time between all threads being ready and the common start, for them to wake
// up.
constexpr WallDuration kStartDelay = std::chrono::microseconds(100);
// How much later than the launcher's the ranks' own deadline is: the launcher
// sees all ranks, so its message says more.
constexpr WallDuration kGrace = std::chrono::seconds(1);
constexpr WallDuration kLongestTimeout = std::chrono::hours(24 * 365);

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
    deadline_ = WallNow() + RunTimeout(plan_, options_);
    for (const RankId id : plan_.graph.rank_ids()) SetUp(id);
    start_ = WallNow();
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
          const MutexLock lock(&mutex_);
          running_ -= plan_.graph.num_ranks() - rank.value();
          break;
        }
      }
      const int32_t created = static_cast<int32_t>(threads.size());
      for (int32_t n = ready_; n < created; n = ready_) ready_.wait(n);
      start_ = WallNow() + kStartDelay;
      go_ = true;
      go_.notify_all();
      AwaitRanks();
    }
    const MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    return Collect();
  }

 private:
  // Everything of a rank lives until all ranks have ended, as a peer may still
  // copy from or into its memory. Used by the rank's thread while it runs,
  // except `progress`.
  struct Rank {
    RankProgress progress{};
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
    r.buffers.emplace(&*r.account, options_.allocate, options_.whole_tensors);
    r.device = parts_.make_device({.plan = &plan_,
                                   .rank = id,
                                   .clock = &*r.clock,
                                   .account = &*r.account,
                                   .buffers = &*r.buffers,
                                   .allocate = options_.allocate});
    r.interpreter.emplace(InterpreterContext{.plan = &plan_,
                                             .rank = id,
                                             .clock = &*r.clock,
                                             .device = r.device.get(),
                                             .transport = transport_.get(),
                                             .buffers = &*r.buffers,
                                             .account = &*r.account,
                                             .commit = &commit_,
                                             .deadline = deadline_ + kGrace,
                                             .progress = &r.progress});
    r.progress.step = plan_.step;
  }

  void RunRank(RankId id) {
    AskForPreciseSleep();
    Rank& own = rank(id);
    ++ready_;
    ready_.notify_one();
    go_.wait(false);
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
    const MutexLock lock(&mutex_);
    --running_;
    ended_.NotifyAll();
  }

  // Waits for all ranks; at the deadline, stops them first. Ranks that step
  // their optimizers then are given some more time before they are cut off.
  void AwaitRanks() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    const auto all_ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return running_ == 0;
    };
    for (uint64_t seen = 0; WallNow() < deadline_;) {
      const WallTime until =
          std::min(deadline_, WallNow() + options_.failure_timeout);
      if (ended_.WaitUntil(&mutex_, until, all_ended)) return;
      if (WallNow() >= deadline_) break;
      const uint64_t now = BlockedAt();
      if (now != 0 && now == seen) {
        lock.Unlock();
        Stop(
            Why::kRequest,
            absl::DeadlineExceededError(absl::StrFormat(
                "no rank has come any further for %.3f s; %s",
                std::chrono::duration<double>(options_.failure_timeout).count(),
                Unfinished())));
        lock.Lock();
      }
      seen = now;
    }
    for (const auto& [why, until] :
         {std::pair(Why::kRequest, deadline_),
          std::pair(Why::kLastResort, deadline_ + 2 * kGrace)}) {
      if (ended_.WaitUntil(&mutex_, until, all_ended)) return;
      lock.Unlock();
      Stop(why, absl::DeadlineExceededError(absl::StrFormat(
                    "not done after %.3f s; %s",
                    std::chrono::duration<double>(WallNow() - start_).count(),
                    Unfinished())));
      lock.Lock();
    }
    ended_.Wait(&mutex_, all_ended);
  }

  enum class Why { kRequest, kFailure, kLastResort };

  // Ends all ranks; the first reason is the one that is reported. Once every
  // rank has come to its optimizer step the step counts: a request is too late
  // then, and a failure is reported but cancels no other rank.
  void Stop(Why why, const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::Status consequence = absl::CancelledError(
        "another rank failed: " + std::string(reason.message()));
    {
      const MutexLock lock(&mutex_);
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
    return DescribePlace(plan_, id, rank(id).progress.position);
  }

  // Returns 0 while a rank can go on by itself, else a number that changes when
  // a rank has gone on.
  uint64_t BlockedAt() {
    uint64_t sum = 1;
    for (const RankId id : plan_.graph.rank_ids()) {
      const RankProgress& progress = rank(id).progress;
      const uint64_t position = progress.position;
      sum += position;
      if (position < plan_.programs[id].size() && !progress.blocked) return 0;
    }
    return sum;
  }

  // Returns where the unfinished ranks are; first those that wait for no other
  // rank, as one of them delays the others.
  std::string Unfinished() {
    std::string busy;
    std::string waiting;
    for (const RankId id : plan_.graph.rank_ids()) {
      const uint64_t position = rank(id).progress.position;
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
    std::vector<StepTrace> traces;
    for (const Rank& r : ranks_) {
      traces.push_back({.num_ranks = plan_.graph.num_ranks(),
                        .spans = r.interpreter->spans(),
                        .memory = r.account->history(),
                        .finish = r.finish});
    }
    return MergeTraces(traces);
  }

  const ExecutionPlan& plan_;
  const RunOptions& options_;
  const RunParts& parts_;
  const std::unique_ptr<Transport> transport_;
  CommitPoint commit_;
  std::atomic<int32_t> ready_{0};  // Number of threads that run.
  std::atomic<bool> go_{false};    // Whether start_ is set.
  WallTime start_{};
  WallTime deadline_{};
  std::stop_source stop_{};
  std::vector<Rank> ranks_;
  Mutex mutex_{};
  CondVar ended_{};
  // Number of ranks whose threads have not ended.
  int32_t running_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace

absl::Status CheckRunOptions(const RunOptions& options) {
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
  if (options.failure_timeout <= WallDuration::zero() ||
      options.failure_timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(
        absl::StrFormat("failure_timeout is %d ns; it must be in (0, a year]",
                        options.failure_timeout.count()));
  }
  if (options.start_timeout <= WallDuration::zero() ||
      options.start_timeout > kLongestTimeout) {
    return absl::InvalidArgumentError(
        absl::StrFormat("start_timeout is %d ns; it must be in (0, a year]",
                        options.start_timeout.count()));
  }
  return absl::OkStatus();
}

WallDuration RunTimeout(const ExecutionPlan& plan, const RunOptions& options) {
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

StepTrace MergeTraces(absl::Span<const StepTrace> traces) {
  StepTrace all;
  std::vector<Span> spans;
  for (const StepTrace& trace : traces) {
    all.num_ranks = trace.num_ranks;
    spans.insert(spans.end(), trace.spans.begin(), trace.spans.end());
    all.memory.insert(all.memory.end(), trace.memory.begin(),
                      trace.memory.end());
    all.finish = std::max(all.finish, trace.finish);
  }
  std::vector<std::tuple<RankId, SimTime, size_t>> order;
  for (size_t k = 0; k < spans.size(); ++k) {
    order.emplace_back(spans[k].rank, spans[k].start, k);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [rank, start, k] : order) all.spans.push_back(spans[k]);
  return all;
}

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
  PIPELOOM_RETURN_IF_ERROR(CheckRunOptions(options));
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
  return Run(plan, options, parts).Execute();
}

}  // namespace pipeloom::runtime
