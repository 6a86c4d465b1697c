#include "trace/trace_import.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "planner/lower/lower_plan.h"
#include "trace/idle_gaps.h"
#include "trace/trace_iteration.h"

namespace pipeloom::trace {
namespace {

// Recorded sends or receives of a tensor, by the pass, stage and microbatch
// that makes or takes it.
class Moves {
 public:
  Moves(const std::vector<TraceMove>& moved, bool send) {
    for (const TraceMove& m : moved) {
      if (m.send == send) of_[{m.pass, m.stage, m.microbatch}].push_back(m);
    }
  }

  // The one of that task in an iteration, or null.
  const TraceMove* Of(const TraceTaskKey& task, int32_t iteration) const {
    const auto it = of_.find({task.pass, task.stage, task.microbatch});
    const auto nth = static_cast<size_t>(iteration);
    return it == of_.end() || it->second.size() <= nth ? nullptr
                                                       : &it->second[nth];
  }

 private:
  std::map<std::tuple<Pass, int32_t, int32_t>, std::vector<TraceMove>> of_;
};

// Makes a plan and a trace of one iteration's tasks.
class StepImport {
 public:
  // Neither may be changed or destroyed while it is used.
  StepImport(const TraceEvents& events, const TraceIteration& chosen)
      : events_(events), chosen_(chosen) {
    for (const TraceTask& task : chosen_.tasks) ranks_[task.rank] = RankId();
    // Ranks are numbered without gaps.
    for (auto& [number, id] : ranks_) id = RankId(num_ranks_++);
  }

  // Brings all times to the common clock. Ranks of one file have one already.
  absl::Status Align(bool one_file);

  // Adds the tasks to the graph in topological order, by time as far as
  // dependencies allow.
  absl::Status AddTasks();

  absl::StatusOr<ImportedStep> Result();

 private:
  int32_t size() const { return static_cast<int32_t>(chosen_.tasks.size()); }
  const TraceTask& Seen(int32_t i) const {
    return chosen_.tasks[static_cast<size_t>(i)];
  }
  const MeasuredTask& Measured(int32_t i) const {
    return measured_[static_cast<size_t>(i)];
  }
  std::vector<TimedMessage> Messages() const;
  Task TaskOf(int32_t i, ModuleId module) const;
  ModuleId ModuleOf(const std::string& name);
  IdVector<EdgeId, Dependency> Edges(const IdleGaps& gaps) const;
  // Appends the ranks' optimizers, which also take their time in `specs`.
  void AddEpilogues(IdVector<RankId, RankSpec>* specs, StepTrace* trace) const;

  const TraceEvents& events_;
  const TraceIteration& chosen_;
  std::map<int32_t, RankId> ranks_{};  // Indexed by the traces' rank.
  int32_t num_ranks_ = 0;
  IdVector<RankId, ClockFit> clocks_{};
  std::vector<MeasuredTask> measured_{};  // Indexed as the iteration's tasks.
  int64_t origin_ = 0;                    // The first task's start.
  std::map<std::string, ModuleId> modules_{};
  std::vector<std::string> module_names_{};
  IdVector<TaskId, Task> graph_tasks_{};
  std::vector<TaskId> id_of_{};  // Indexed as the iteration's tasks.
};

std::vector<TimedMessage> StepImport::Messages() const {
  // Recorded sends and receives bound a transfer's time more closely than the
  // tasks at its ends.
  const Moves sends(events_.moved, true);
  const Moves receives(events_.moved, false);
  std::vector<TimedMessage> messages;
  for (const auto& [from, to] : chosen_.inputs) {
    const TraceTask& a = Seen(from);
    const TraceTask& b = Seen(to);
    if (a.rank == b.rank) continue;
    TimedMessage message{ranks_.at(a.rank), ranks_.at(b.rank), a.end, b.start};
    if (const TraceMove* send = sends.Of(a.key, chosen_.index)) {
      message.sent_ns = std::max(message.sent_ns, send->start);
    }
    if (const TraceMove* receive = receives.Of(b.key, chosen_.index)) {
      message.arrived_ns = std::min(message.arrived_ns, receive->end);
    }
    messages.push_back(message);
  }
  return messages;
}

absl::Status StepImport::Align(bool one_file) {
  if (one_file) {
    clocks_.assign(num_ranks_, {.aligned = true});
  } else {
    clocks_ = AlignClocks(num_ranks_, Messages());
  }
  for (const auto& [number, id] : ranks_) {
    if (clocks_[id].aligned) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "no tensor joins rank %d to rank %d, so their clocks cannot be "
        "brought together",
        number, ranks_.begin()->first));
  }
  origin_ = std::numeric_limits<int64_t>::max();
  for (const TraceTask& seen : chosen_.tasks) {
    const RankId rank = ranks_.at(seen.rank);
    const ClockFit& clock = clocks_[rank];
    measured_.push_back(
        {rank, clock.ToCommon(seen.start), clock.ToCommon(seen.end)});
    origin_ = std::min(origin_, measured_.back().start);
  }
  return absl::OkStatus();
}

ModuleId StepImport::ModuleOf(const std::string& name) {
  const auto [it, is_new] = modules_.try_emplace(
      name, ModuleId(static_cast<int32_t>(module_names_.size())));
  if (is_new) module_names_.push_back(name);
  return it->second;
}

Task StepImport::TaskOf(int32_t i, ModuleId module) const {
  const TraceTask& seen = Seen(i);
  const Duration took(Measured(i).end - Measured(i).start);
  return {.rank = Measured(i).rank,
          .pass = seen.key.pass,
          .module = module,
          .stage = StageId(seen.key.stage),
          .microbatch = MicrobatchId(seen.key.microbatch),
          .sub_microbatch = seen.key.sub,
          .duration = std::max(took, kZero),
          .recomputes = seen.recomputes};
}

absl::Status StepImport::AddTasks() {
  std::vector<int32_t> open(chosen_.tasks.size(), 0);
  std::vector<std::vector<int32_t>> next(chosen_.tasks.size());
  for (const auto& [from, to] : chosen_.inputs) {
    ++open[static_cast<size_t>(to)];
    next[static_cast<size_t>(from)].push_back(to);
  }
  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  for (int32_t i = 0; i < size(); ++i) {
    if (open[static_cast<size_t>(i)] == 0) ready.push({Measured(i).start, i});
  }
  id_of_.resize(chosen_.tasks.size());
  IdVector<RankId, TaskId> last_backward(num_ranks_);
  while (!ready.empty()) {
    const int32_t i = ready.top().second;
    ready.pop();
    Task task = TaskOf(i, ModuleOf(Seen(i).key.module));
    // The number of that backward is not known here; take the rank's last one.
    if (Seen(i).overlaps && task.pass == Pass::kWeightGrad) {
      task.overlaps = last_backward[task.rank];
    }
    const TaskId id = graph_tasks_.push_back(task);
    if (task.pass == Pass::kBackward) last_backward[task.rank] = id;
    id_of_[static_cast<size_t>(i)] = id;
    for (const int32_t to : next[static_cast<size_t>(i)]) {
      if (--open[static_cast<size_t>(to)] == 0) {
        ready.push({Measured(to).start, to});
      }
    }
  }
  if (graph_tasks_.size() < size()) {
    return absl::InvalidArgumentError(
        "the tasks' inputs form a circle, so they are not of one step");
  }
  return absl::OkStatus();
}

IdVector<EdgeId, Dependency> StepImport::Edges(const IdleGaps& gaps) const {
  IdVector<EdgeId, Dependency> edges;
  for (const auto& [from, to] : chosen_.inputs) {
    Dependency edge{.from = id_of_[static_cast<size_t>(from)],
                    .to = id_of_[static_cast<size_t>(to)]};
    const RankId sender = Measured(from).rank;
    const RankId receiver = Measured(to).rank;
    if (sender != receiver) edge.delay = gaps.links.at({sender, receiver});
    edges.push_back(edge);
  }
  return edges;
}

void StepImport::AddEpilogues(IdVector<RankId, RankSpec>* specs,
                              StepTrace* trace) const {
  IdVector<RankId, std::vector<TraceTask>> ends(num_ranks_);
  for (const TraceTask& seen : events_.epilogues) {
    const auto it = ranks_.find(seen.rank);
    if (it == ranks_.end()) continue;
    if (chosen_.step < 0 || seen.step == chosen_.step) {
      ends[it->second].push_back(seen);
    }
  }
  // If they do not say their step, those of all iterations are there.
  const auto nth =
      static_cast<size_t>(chosen_.step < 0 ? chosen_.index : chosen_.nth);
  for (const RankId r : ends.ids()) {
    if (ends[r].size() <= nth) continue;
    const TraceTask& seen = ends[r][nth];
    const auto at = [&](int64_t local) {
      return kStepStart + Duration(clocks_[r].ToCommon(local) - origin_);
    };
    (*specs)[r].epilogue = Duration(seen.end - seen.start);
    trace->spans.push_back({.rank = r,
                            .kind = SpanKind::kEpilogue,
                            .start = at(seen.start),
                            .end = at(seen.end)});
  }
}

absl::StatusOr<ImportedStep> StepImport::Result() {
  ImportedStep step;
  step.events = events_.count;
  step.iterations = chosen_.count;
  if (chosen_.step >= 0) step.number = chosen_.step;
  step.clocks = clocks_;
  const IdleGaps gaps = MeasureIdleGaps(num_ranks_, measured_, chosen_.inputs);
  step.handover = gaps.handover;
  for (Task& task : graph_tasks_) task.duration += step.handover[task.rank];

  step.order = RankOrders(num_ranks_);
  step.measured.num_ranks = num_ranks_;
  for (int32_t i = 0; i < size(); ++i) {
    const MeasuredTask& measured = Measured(i);
    const TaskId id = id_of_[static_cast<size_t>(i)];
    step.order[measured.rank].push_back(id);
    step.measured.spans.push_back(
        {.rank = measured.rank,
         .task = id,
         .start = kStepStart + Duration(measured.start - origin_),
         .end = kStepStart + Duration(measured.end - origin_)});
  }
  IdVector<RankId, RankSpec> specs(num_ranks_);
  AddEpilogues(&specs, &step.measured);
  std::stable_sort(step.measured.spans.begin(), step.measured.spans.end(),
                   [](const Span& a, const Span& b) {
                     return std::tie(a.rank, a.start) <
                            std::tie(b.rank, b.start);
                   });
  for (const Span& span : step.measured.spans) {
    step.measured.finish = std::max(step.measured.finish, span.end);
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph graph,
      StageGraph::Create("measured", std::move(specs), module_names_,
                         graph_tasks_, Edges(gaps)));
  PIPELOOM_ASSIGN_OR_RETURN(const Schedule schedule,
                            TimeSchedule(graph, step.order));
  PIPELOOM_ASSIGN_OR_RETURN(step.plan, planner::LowerPlan(graph, schedule));
  step.plan.job = "trace";
  step.plan.schedule = "measured";
  step.plan.step = chosen_.index;
  return step;
}

}  // namespace

absl::StatusOr<ImportedStep> ImportTrace(
    const std::vector<TraceSource>& sources, int32_t iteration) {
  PIPELOOM_ASSIGN_OR_RETURN(TraceEvents events, ReadTraceEvents(sources));
  if (events.tasks.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "none of the %d events is a task of a pipeline: looked for args "
        "\"pass\", \"stage\" and \"microbatch\", and for names like PP:2F5 or "
        "Forward 5",
        events.count));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const TraceIteration chosen,
      ChooseIteration(std::move(events.tasks), iteration));
  StepImport step(events, chosen);
  PIPELOOM_RETURN_IF_ERROR(step.Align(/*one_file=*/sources.size() <= 1));
  PIPELOOM_RETURN_IF_ERROR(step.AddTasks());
  return step.Result();
}

std::vector<MeasuredCost> CostsOf(const StageGraph& graph) {
  std::map<std::tuple<ModuleId, StageId, Pass>, std::vector<Duration>> times;
  for (const Task& task : graph.tasks()) {
    times[{task.module, task.stage, task.pass}].push_back(task.duration);
  }
  std::vector<MeasuredCost> costs;
  for (auto& [key, list] : times) {
    std::sort(list.begin(), list.end());
    Duration sum{};
    for (const Duration d : list) sum += d;
    const auto n = static_cast<int64_t>(list.size());
    costs.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key),
                     static_cast<int32_t>(n), sum / n, list[list.size() / 2],
                     list.back()});
  }
  return costs;
}

}  // namespace pipeloom::trace
