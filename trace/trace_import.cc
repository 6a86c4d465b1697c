#include "trace/trace_import.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "planner/lower/lower_plan.h"
#include "trace/trace_events.h"

namespace pipeloom::trace {
namespace {

constexpr char kAnyModule[] = "model";  // The module of tasks that name none.

std::string NameOf(const TraceTaskKey& key) {
  constexpr absl::string_view kWords[] = {"forward", "backward",
                                          "weight gradient"};
  constexpr char kLetters[] = "FBW";
  const auto pass = static_cast<size_t>(key.pass);
  if (key.module != kAnyModule) {
    return absl::StrFormat("%s, stage %d, %s of microbatch %d", key.module,
                           key.stage, kWords[pass], key.microbatch);
  }
  return absl::StrFormat("PP:%d%c%d (stage %d, %s of microbatch %d)", key.stage,
                         kLetters[pass], key.microbatch, key.stage,
                         kWords[pass], key.microbatch);
}

// Checks that iterations follow each other on each rank, if tasks have no
// inputs that would tell what belongs together. `tasks` are sorted by rank and
// start; `nth` counts those of the same key.
absl::Status CheckIterations(const std::vector<TraceTask>& tasks,
                             const std::vector<int32_t>& nth) {
  for (size_t i = 1; i < tasks.size(); ++i) {
    if (tasks[i].has_inputs || tasks[i].rank != tasks[i - 1].rank ||
        nth[i] >= nth[i - 1]) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d: %s is missing in an iteration before number %d, since its "
        "number %d comes after a task of that one (counted from 0); a trace "
        "must have whole steps, from the first on",
        tasks[i].rank, NameOf(tasks[i].key), nth[i - 1], nth[i]));
  }
  return absl::OkStatus();
}

// Checks that every stage of a module has what its other stages and passes
// have, if tasks have no inputs that would name what is missing. The first
// stages may have no backward: they may be frozen.
absl::Status CheckWhole(const std::vector<TraceTask>& tasks) {
  using Part = std::pair<int32_t, int32_t>;  // Microbatch and its part.
  struct Module {
    std::set<int32_t> stages{};
    std::set<Part> parts{};
    int32_t first_backward = std::numeric_limits<int32_t>::max();
  };
  std::map<std::string, Module> modules;
  std::set<TraceTaskKey> keys;
  const auto missing = [](const TraceTaskKey& key, absl::string_view who) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is missing, though %s; a trace must have all tasks of a step",
        NameOf(key), std::string(who)));
  };
  for (const TraceTask& task : tasks) {
    if (task.has_inputs) return absl::OkStatus();
    Module& module = modules[task.key.module];
    module.stages.insert(task.key.stage);
    module.parts.insert({task.key.microbatch, task.key.sub});
    if (task.key.pass == Pass::kBackward) {
      module.first_backward = std::min(module.first_backward, task.key.stage);
    }
    keys.insert(task.key);
  }
  for (const auto& [name, module] : modules) {
    for (const int32_t stage : module.stages) {
      for (const auto& [microbatch, sub] : module.parts) {
        TraceTaskKey key{name, stage, Pass::kForward, microbatch, sub};
        if (!keys.contains(key)) {
          return missing(key, "another stage or pass has that microbatch");
        }
        key.pass = Pass::kBackward;
        if (stage >= module.first_backward && !keys.contains(key)) {
          return missing(key, "another stage or pass has that microbatch");
        }
      }
    }
  }
  for (const TraceTask& task : tasks) {
    TraceTaskKey key = task.key;
    key.pass = Pass::kWeightGrad;
    if (task.only_input_grad && !keys.contains(key)) {
      return missing(key, "the input gradient is there alone");
    }
  }
  return absl::OkStatus();
}

// Returns whether all inputs that the tasks name are there.
bool HasAllInputs(const std::vector<TraceTask>& tasks) {
  std::set<int64_t> ids;
  for (const TraceTask& task : tasks) ids.insert(task.id);
  for (const TraceTask& task : tasks) {
    for (const int64_t input : task.inputs) {
      if (!ids.contains(input)) return false;
    }
  }
  return true;
}

struct Iteration {
  std::vector<TraceTask> tasks{};
  int32_t step = -1;  // The training's; -1: the tasks do not say it.
  int32_t nth = 0;    // Counted in its step.
  int32_t index = 0;  // Counted in all steps.
};

// Returns the chosen iteration, and sets how many there are. Tasks that say
// their step are of one iteration only if it is the same: steps may have other
// tasks.
absl::StatusOr<Iteration> OneIteration(std::vector<TraceTask> tasks,
                                       int32_t index, int32_t* iterations) {
  std::stable_sort(
      tasks.begin(), tasks.end(), [](const TraceTask& a, const TraceTask& b) {
        return std::tie(a.rank, a.start) < std::tie(b.rank, b.start);
      });
  const bool all_say_step =
      std::all_of(tasks.begin(), tasks.end(),
                  [](const TraceTask& task) { return task.step >= 0; });
  std::map<int32_t, std::map<TraceTaskKey, int32_t>> count;  // Indexed by step.
  std::vector<int32_t> nth;
  for (TraceTask& task : tasks) {
    if (!all_say_step) task.step = -1;
    nth.push_back(count[task.step][task.key]++);
  }
  PIPELOOM_RETURN_IF_ERROR(CheckIterations(tasks, nth));
  std::vector<std::pair<int32_t, int32_t>> whole;  // Step and number in it.
  for (const auto& [step, keys] : count) {
    int32_t least = std::numeric_limits<int32_t>::max();
    for (const auto& [key, n] : keys) least = std::min(least, n);
    for (int32_t n = 0; n < least; ++n) whole.push_back({step, n});
  }
  const auto size = static_cast<int32_t>(whole.size());
  *iterations = size;
  if (index >= size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("iteration %d: the traces have %d whole ones, counted "
                        "from 0",
                        index, size));
  }
  const auto chosen = [&](int32_t at) {
    Iteration result{.index = at};
    std::tie(result.step, result.nth) = whole[static_cast<size_t>(at)];
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].step == result.step && nth[i] == result.nth) {
        result.tasks.push_back(tasks[i]);
      }
    }
    return result;
  };
  Iteration result = chosen(index < 0 ? size - 1 : index);
  // A trace may end in the middle of a step.
  for (int32_t at = size - 2;
       index < 0 && at >= 0 && !HasAllInputs(result.tasks); --at) {
    Iteration earlier = chosen(at);
    if (HasAllInputs(earlier.tasks)) result = std::move(earlier);
  }
  PIPELOOM_RETURN_IF_ERROR(CheckWhole(result.tasks));
  return result;
}

// Returns pairs (producer, consumer) of task indices, each once.
absl::StatusOr<std::vector<std::pair<int32_t, int32_t>>> Inputs(
    const std::vector<TraceTask>& tasks) {
  std::map<int64_t, int32_t> by_id;
  std::map<TraceTaskKey, int32_t> by_key;
  int32_t last_stage = 0;
  bool all_have_inputs = true;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TraceTask& task = tasks[i];
    const auto index = static_cast<int32_t>(i);
    if (task.id >= 0) by_id[task.id] = index;
    by_key[task.key] = index;
    last_stage = std::max(last_stage, task.key.stage);
    all_have_inputs = all_have_inputs && task.has_inputs && task.id >= 0;
  }
  std::set<std::pair<int32_t, int32_t>> edges;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TraceTask& task = tasks[i];
    const auto index = static_cast<int32_t>(i);
    if (all_have_inputs) {
      for (const int64_t id : task.inputs) {
        const auto it = by_id.find(id);
        if (it == by_id.end()) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "task %d has the input %d, which is in no trace: is a rank's "
              "file missing?",
              task.id, id));
        }
        edges.insert({it->second, index});
      }
      continue;
    }
    const auto add = [&](TraceTaskKey key) {
      // Another module may have the neighbouring stage.
      const auto it = by_key.find(key);
      if (it != by_key.end() && it->second != index) {
        edges.insert({it->second, index});
      }
    };
    TraceTaskKey key = task.key;
    switch (task.key.pass) {
      case Pass::kForward:
        key.stage -= 1;
        add(key);
        break;
      case Pass::kBackward:
        key.pass = Pass::kForward;
        add(key);
        key = task.key;
        key.stage += 1;
        add(key);
        break;
      case Pass::kWeightGrad:
        key.pass = Pass::kBackward;
        add(key);
        break;
    }
  }
  return std::vector<std::pair<int32_t, int32_t>>(edges.begin(), edges.end());
}

}  // namespace

absl::StatusOr<ImportedStep> ImportTrace(
    const std::vector<TraceSource>& sources, int32_t iteration) {
  ImportedStep step;
  PIPELOOM_ASSIGN_OR_RETURN(TraceEvents events, ReadTraceEvents(sources));
  step.events = events.count;
  if (events.tasks.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "none of the %d events is a task of a pipeline: looked for args "
        "\"pass\", \"stage\" and \"microbatch\", and for names like PP:2F5 or "
        "Forward 5",
        step.events));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const Iteration chosen,
      OneIteration(std::move(events.tasks), iteration, &step.iterations));
  const std::vector<TraceTask>& tasks = chosen.tasks;
  iteration = chosen.index;
  if (chosen.step >= 0) step.number = chosen.step;
  PIPELOOM_ASSIGN_OR_RETURN(const auto inputs, Inputs(tasks));

  // Ranks are numbered without gaps.
  std::map<int32_t, RankId> ranks;
  for (const TraceTask& task : tasks) ranks[task.rank] = RankId();
  int32_t num_ranks = 0;
  for (auto& [number, id] : ranks) id = RankId(num_ranks++);

  // Clocks. Recorded sends and receives bound a transfer's time more closely
  // than the tasks at its ends.
  std::map<std::tuple<Pass, int32_t, int32_t>, std::vector<TraceMove>> sends;
  std::map<std::tuple<Pass, int32_t, int32_t>, std::vector<TraceMove>> receives;
  for (const TraceMove& m : events.moved) {
    (m.send ? sends : receives)[{m.pass, m.stage, m.microbatch}].push_back(m);
  }
  std::vector<TimedMessage> messages;
  for (const auto& [from, to] : inputs) {
    const TraceTask& a = tasks[static_cast<size_t>(from)];
    const TraceTask& b = tasks[static_cast<size_t>(to)];
    if (a.rank == b.rank) continue;
    TimedMessage message{ranks[a.rank], ranks[b.rank], a.end, b.start};
    const auto nth_of = [&](const auto& table,
                            const TraceTaskKey& key) -> const TraceMove* {
      const auto it = table.find({key.pass, key.stage, key.microbatch});
      if (it == table.end() ||
          it->second.size() <= static_cast<size_t>(iteration)) {
        return nullptr;
      }
      return &it->second[static_cast<size_t>(iteration)];
    };
    if (const TraceMove* send = nth_of(sends, a.key); send != nullptr) {
      message.sent_ns = std::max(message.sent_ns, send->start);
    }
    if (const TraceMove* receive = nth_of(receives, b.key);
        receive != nullptr) {
      message.arrived_ns = std::min(message.arrived_ns, receive->end);
    }
    messages.push_back(message);
  }
  if (sources.size() > 1) {
    step.clocks = AlignClocks(num_ranks, messages);
    for (const auto& [number, id] : ranks) {
      if (step.clocks[id].aligned) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "no tensor joins rank %d to rank %d, so their clocks cannot be "
          "brought together",
          number, ranks.begin()->first));
    }
  } else {
    step.clocks.assign(num_ranks, {.aligned = true});
  }
  const auto common = [&](const TraceTask& seen, int64_t local) {
    return step.clocks[ranks[seen.rank]].ToCommon(local);
  };

  // Topological order, by time as far as dependencies allow.
  const size_t count = tasks.size();
  std::vector<int32_t> open(count, 0);
  std::vector<std::vector<int32_t>> next(count);
  for (const auto& [from, to] : inputs) {
    ++open[static_cast<size_t>(to)];
    next[static_cast<size_t>(from)].push_back(to);
  }
  using Entry = std::pair<int64_t, int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < count; ++i) {
    const int64_t start = common(tasks[i], tasks[i].start);
    origin = std::min(origin, start);
    if (open[i] == 0) ready.push({start, static_cast<int32_t>(i)});
  }
  std::map<std::string, ModuleId> modules;
  std::vector<std::string> names;
  IdVector<TaskId, Task> graph_tasks;
  std::vector<TaskId> id_of(count);
  std::vector<int32_t> by_id;
  std::map<size_t, TaskId> last_backward;  // Indexed by the traces' rank.
  while (!ready.empty()) {
    const auto i = static_cast<size_t>(ready.top().second);
    ready.pop();
    const TraceTask& seen = tasks[i];
    auto [it, is_new] = modules.try_emplace(
        seen.key.module, ModuleId(static_cast<int32_t>(names.size())));
    if (is_new) names.push_back(seen.key.module);
    Task task{.rank = ranks[seen.rank],
              .pass = seen.key.pass,
              .module = it->second,
              .stage = StageId(seen.key.stage),
              .microbatch = MicrobatchId(seen.key.microbatch),
              .sub_microbatch = seen.key.sub};
    task.duration = Duration(common(seen, seen.end) - common(seen, seen.start));
    task.duration = std::max(task.duration, kZero);
    task.recomputes = seen.recomputes;
    // The number of that backward is not known here; take the rank's last one.
    if (seen.overlaps && task.pass == Pass::kWeightGrad) {
      task.overlaps = last_backward[seen.rank];
    }
    if (task.pass == Pass::kBackward) {
      last_backward[seen.rank] = TaskId(graph_tasks.size());
    }
    id_of[i] = graph_tasks.push_back(task);
    by_id.push_back(static_cast<int32_t>(i));
    for (const int32_t to : next[i]) {
      if (--open[static_cast<size_t>(to)] == 0) {
        const TraceTask& other = tasks[static_cast<size_t>(to)];
        ready.push({common(other, other.start), to});
      }
    }
  }
  if (by_id.size() < count) {
    return absl::InvalidArgumentError(
        "the tasks' inputs form a circle, so they are not of one step");
  }

  // A link takes at least the time of its quickest message; see below.
  std::map<std::pair<RankId, RankId>, int64_t> quickest;
  for (const auto& [from, to] : inputs) {
    const TraceTask& a = tasks[static_cast<size_t>(from)];
    const TraceTask& b = tasks[static_cast<size_t>(to)];
    if (a.rank == b.rank) continue;
    const int64_t took =
        std::max<int64_t>(0, common(b, b.start) - common(a, a.end));
    const auto [it, is_new] =
        quickest.try_emplace({ranks[a.rank], ranks[b.rank]}, took);
    if (!is_new) it->second = std::min(it->second, took);
  }
  // The task that ran before each task on its rank; -1 if there is none.
  std::map<int32_t, int32_t> last_of;
  std::vector<int32_t> before(count, -1);
  std::vector<std::vector<int32_t>> inputs_of(count);
  for (size_t i = 0; i < count; ++i) {
    auto [it, is_first] =
        last_of.try_emplace(tasks[i].rank, static_cast<int32_t>(i));
    if (!is_first)
      before[i] = std::exchange(it->second, static_cast<int32_t>(i));
  }
  for (const auto& [from, to] : inputs) {
    inputs_of[static_cast<size_t>(to)].push_back(from);
  }
  std::map<RankId, std::vector<int64_t>> gaps;
  std::map<std::pair<RankId, RankId>, std::vector<int64_t>> waits;
  for (size_t i = 0; i < count; ++i) {
    if (before[i] < 0) continue;
    const RankId rank = ranks[tasks[i].rank];
    const TraceTask& earlier = tasks[static_cast<size_t>(before[i])];
    const int64_t free = common(earlier, earlier.end);
    const int64_t start = common(tasks[i], tasks[i].start);
    int64_t arrived = std::numeric_limits<int64_t>::min();
    int64_t sent = 0;
    RankId sender = rank;
    for (const int32_t from : inputs_of[i]) {
      const TraceTask& input = tasks[static_cast<size_t>(from)];
      const int64_t end = common(input, input.end);
      const RankId of = ranks[input.rank];
      const int64_t there = end + (of == rank ? 0 : quickest[{of, rank}]);
      if (there > arrived) {
        arrived = there;
        sent = end;
        sender = of;
      }
    }
    if (arrived <= free) {
      gaps[rank].push_back(std::max<int64_t>(0, start - free));
    } else if (sender != rank) {
      waits[{sender, rank}].push_back(std::max<int64_t>(0, start - sent));
    }
  }
  const auto median = [](std::vector<int64_t>& values) {
    const auto middle = values.begin() + static_cast<long>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  };
  step.handover.assign(num_ranks, kZero);
  for (auto& [rank, values] : gaps) {
    if (values.size() < 4) continue;  // Too few to tell it from a pause.
    step.handover[rank] = Duration(median(values));
  }
  // The sender's hand-over is part of its task's time, so it is subtracted.
  for (auto& [link, values] : waits) {
    quickest[link] = std::max<int64_t>(
        0, median(values) - step.handover[link.first].count());
  }
  for (Task& task : graph_tasks) task.duration += step.handover[task.rank];
  IdVector<EdgeId, Dependency> edges;
  for (const auto& [from, to] : inputs) {
    const TraceTask& a = tasks[static_cast<size_t>(from)];
    const TraceTask& b = tasks[static_cast<size_t>(to)];
    Dependency edge{.from = id_of[static_cast<size_t>(from)],
                    .to = id_of[static_cast<size_t>(to)]};
    if (a.rank != b.rank) {
      edge.delay = Duration(quickest[{ranks[a.rank], ranks[b.rank]}]);
    }
    edges.push_back(edge);
  }
  IdVector<RankId, RankSpec> specs(num_ranks);
  IdVector<RankId, std::vector<TraceTask>> ends(num_ranks);
  for (const TraceTask& seen : events.epilogues) {
    const auto it = ranks.find(seen.rank);
    if (it == ranks.end()) continue;
    if (chosen.step < 0 || seen.step == chosen.step) {
      ends[it->second].push_back(seen);
    }
  }
  RankOrders order(num_ranks);
  step.measured.num_ranks = num_ranks;
  const auto at = [&](const TraceTask& seen, int64_t local) {
    return kStepStart + Duration(common(seen, local) - origin);
  };
  for (size_t i = 0; i < count; ++i) {
    const RankId rank = ranks[tasks[i].rank];
    order[rank].push_back(id_of[i]);
    step.measured.spans.push_back({.rank = rank,
                                   .task = id_of[i],
                                   .start = at(tasks[i], tasks[i].start),
                                   .end = at(tasks[i], tasks[i].end)});
  }
  for (const RankId r : ends.ids()) {
    // If they do not say their step, those of all iterations are there.
    const auto nth =
        static_cast<size_t>(chosen.step < 0 ? chosen.index : chosen.nth);
    if (ends[r].size() <= nth) continue;
    const TraceTask& seen = ends[r][nth];
    specs[r].epilogue = Duration(seen.end - seen.start);
    step.measured.spans.push_back({.rank = r,
                                   .kind = SpanKind::kEpilogue,
                                   .start = at(seen, seen.start),
                                   .end = at(seen, seen.end)});
  }
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
      StageGraph::Create("measured", std::move(specs), std::move(names),
                         std::move(graph_tasks), std::move(edges)));
  PIPELOOM_ASSIGN_OR_RETURN(const Schedule schedule,
                            TimeSchedule(graph, order));
  step.order = std::move(order);
  PIPELOOM_ASSIGN_OR_RETURN(step.plan, planner::LowerPlan(graph, schedule));
  step.plan.job = "trace";
  step.plan.schedule = "measured";
  step.plan.step = iteration;
  return step;
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
