#include "cli/trace_import.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "planner/lower_plan.h"

namespace pipeloom::cli {
namespace {

constexpr int64_t kMostTasks = 4'000'000;
constexpr int32_t kMostRanks = 4096;

struct Key {
  std::string module{};
  int32_t stage = 0;
  Pass pass = Pass::kForward;
  int32_t microbatch = 0;
  int32_t sub = 0;
  friend auto operator<=>(const Key&, const Key&) = default;
};

struct Seen {
  Key key{};
  int32_t rank = 0;
  int64_t start = 0;  // Local clock.
  int64_t end = 0;
  int64_t id = -1;  // Of Pipeloom's own traces.
  std::vector<int64_t> inputs{};
  bool has_inputs = false;
  bool recomputes = false;
};

// A send or receive of a tensor, by what makes it.
struct Moved {
  bool send = false;
  Pass pass = Pass::kForward;
  int32_t stage = 0;  // That sends or receives.
  int32_t microbatch = 0;
  int64_t start = 0;
  int64_t end = 0;
};

struct FileEvents {
  std::vector<Seen> tasks{};
  std::vector<Moved> moved{};
  std::vector<Seen> epilogues{};
};

std::optional<int32_t> IntArg(const workloads::ChromeEvent& event,
                              absl::string_view name) {
  const std::string* text = event.Arg(name);
  int32_t value = 0;
  if (text == nullptr || !absl::SimpleAtoi(*text, &value) || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<Pass> PassNamed(absl::string_view name) {
  if (name == "forward") return Pass::kForward;
  if (name == "backward") return Pass::kBackward;
  if (name == "weight_grad") return Pass::kWeightGrad;
  return std::nullopt;
}

int32_t TakeNumber(absl::string_view* text) {
  size_t digits = 0;
  while (digits < text->size() && (*text)[digits] >= '0' &&
         (*text)[digits] <= '9') {
    ++digits;
  }
  int32_t value = -1;
  if (digits > 0 && digits < 9 &&
      absl::SimpleAtoi(text->substr(0, digits), &value)) {
    text->remove_prefix(digits);
  }
  return value;
}

// Adds the event to `file` if it is one of those known. `rank`: of the file.
void Take(const workloads::ChromeEvent& event, int32_t rank, FileEvents* file) {
  if (event.phase != "X" || !event.has_time) return;
  Seen seen;
  seen.rank = IntArg(event, "rank").value_or(rank);
  seen.start = event.start_ns;
  seen.end = event.start_ns + std::max<int64_t>(0, event.duration_ns);
  if (event.category == "epilogue") {
    if (IntArg(event, "replica").value_or(0) == 0) {
      file->epilogues.push_back(seen);
    }
    return;
  }
  if (const std::string* pass = event.Arg("pass"); pass != nullptr) {
    const auto known = PassNamed(*pass);
    const auto stage = IntArg(event, "stage");
    const auto microbatch = IntArg(event, "microbatch");
    if (!known || !stage || !microbatch) return;
    if (IntArg(event, "replica").value_or(0) != 0) return;
    const std::string* module = event.Arg("module");
    seen.key = {module == nullptr ? "model" : *module, *stage, *known,
                *microbatch, IntArg(event, "sub_microbatch").value_or(0)};
    seen.id = IntArg(event, "task").value_or(-1);
    seen.recomputes = event.Arg("recomputes") != nullptr;
    if (const std::string* inputs = event.Arg("inputs"); inputs != nullptr) {
      seen.has_inputs = true;
      for (const absl::string_view part :
           absl::StrSplit(*inputs, ',', absl::SkipEmpty())) {
        int64_t id = 0;
        if (absl::SimpleAtoi(part, &id)) seen.inputs.push_back(id);
      }
    }
    file->tasks.push_back(std::move(seen));
    return;
  }
  absl::string_view name = event.name;
  seen.key.module = "model";
  for (const auto& [word, pass] : {std::pair("Forward ", Pass::kForward),
                                   std::pair("Backward ", Pass::kBackward)}) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, word)) continue;
    const int32_t microbatch = TakeNumber(&rest);
    if (microbatch < 0 || !rest.empty()) return;
    seen.key.stage = seen.rank;
    seen.key.pass = pass;
    seen.key.microbatch = microbatch;
    file->tasks.push_back(std::move(seen));
    return;
  }
  absl::ConsumePrefix(&name, "PP:");
  seen.key.stage = TakeNumber(&name);
  if (seen.key.stage < 0) return;
  const bool send = absl::ConsumePrefix(&name, "SEND_");
  const bool receive = !send && absl::ConsumePrefix(&name, "RECV_");
  if (name.empty()) return;
  const char action = name[0];
  name.remove_prefix(1);
  seen.key.microbatch = TakeNumber(&name);
  if (seen.key.microbatch < 0 || !name.empty()) return;
  if (action == 'F') {
    seen.key.pass = Pass::kForward;
  } else if (action == 'B' || action == 'I') {
    seen.key.pass = Pass::kBackward;
  } else if (action == 'W') {
    seen.key.pass = Pass::kWeightGrad;
  } else {
    return;
  }
  if (send || receive) {
    file->moved.push_back({send, seen.key.pass, seen.key.stage,
                           seen.key.microbatch, seen.start, seen.end});
  } else {
    file->tasks.push_back(std::move(seen));
  }
}

// "pp_rank_3.json" -> 3; -1: no number.
int32_t NumberOf(absl::string_view file_name) {
  if (const size_t slash = file_name.rfind('/');
      slash != absl::string_view::npos) {
    file_name.remove_prefix(slash + 1);
  }
  size_t end = file_name.size();
  while (end > 0 && (file_name[end - 1] < '0' || file_name[end - 1] > '9')) {
    --end;
  }
  size_t begin = end;
  while (begin > 0 && file_name[begin - 1] >= '0' &&
         file_name[begin - 1] <= '9') {
    --begin;
  }
  int32_t number = -1;
  if (!absl::SimpleAtoi(file_name.substr(begin, end - begin), &number)) {
    return -1;
  }
  return number;
}

// The chosen iteration's tasks.
absl::StatusOr<std::vector<Seen>> OneIteration(std::vector<Seen> tasks,
                                               int32_t iteration,
                                               int32_t* iterations,
                                               std::vector<int32_t>* nth) {
  std::stable_sort(
      tasks.begin(), tasks.end(), [](const Seen& a, const Seen& b) {
        return std::tie(a.rank, a.start) < std::tie(b.rank, b.start);
      });
  std::map<Key, int32_t> count;
  nth->clear();
  for (const Seen& task : tasks) nth->push_back(count[task.key]++);
  int32_t whole = std::numeric_limits<int32_t>::max();
  for (const auto& [key, n] : count) whole = std::min(whole, n);
  *iterations = whole;
  if (iteration < 0) iteration = whole - 1;
  if (iteration >= whole) {
    return absl::InvalidArgumentError(
        absl::StrFormat("iteration %d: the traces have %d whole ones, counted "
                        "from 0",
                        iteration, whole));
  }
  std::vector<Seen> chosen;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if ((*nth)[i] == iteration) chosen.push_back(std::move(tasks[i]));
  }
  return chosen;
}

// (producer, consumer) by index, each pair once.
absl::StatusOr<std::vector<std::pair<int32_t, int32_t>>> Inputs(
    const std::vector<Seen>& tasks) {
  std::map<int64_t, int32_t> by_id;
  std::map<Key, int32_t> by_key;
  int32_t last_stage = 0;
  bool all_have_inputs = true;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Seen& task = tasks[i];
    const auto index = static_cast<int32_t>(i);
    if (task.id >= 0) by_id[task.id] = index;
    by_key[task.key] = index;
    last_stage = std::max(last_stage, task.key.stage);
    all_have_inputs = all_have_inputs && task.has_inputs && task.id >= 0;
  }
  std::set<std::pair<int32_t, int32_t>> edges;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Seen& task = tasks[i];
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
    const auto add = [&](Key key) {
      // Another module may have the neighbouring stage.
      const auto it = by_key.find(key);
      if (it != by_key.end() && it->second != index) {
        edges.insert({it->second, index});
      }
    };
    Key key = task.key;
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
  std::vector<Seen> all;
  std::vector<Moved> moved;
  std::vector<Seen> epilogues;
  std::set<int32_t> file_ranks;
  for (size_t f = 0; f < sources.size(); ++f) {
    FileEvents file;
    int32_t rank = NumberOf(sources[f].name);
    if (rank < 0 || file_ranks.count(rank) > 0) rank = static_cast<int32_t>(f);
    absl::StatusOr<workloads::ChromeTraceInfo> info =
        workloads::ReadChromeTrace(
            sources[f].name, sources[f].read,
            [&](const workloads::ChromeEvent& event) -> absl::Status {
              Take(event, -1, &file);
              if (static_cast<int64_t>(all.size() + file.tasks.size()) <=
                  kMostTasks) {
                return absl::OkStatus();
              }
              return absl::ResourceExhaustedError(
                  absl::StrCat("more than ", kMostTasks,
                               " tasks: cut the trace to some "
                               "iterations"));
            });
    if (!info.ok()) return info.status();
    step.events += info->events;
    if (info->rank >= 0) rank = static_cast<int32_t>(info->rank);
    if (!file_ranks.insert(rank).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is rank %d, and so is an earlier file", sources[f].name, rank));
    }
    for (std::vector<Seen>* list : {&file.tasks, &file.epilogues}) {
      for (Seen& seen : *list) {
        // "Forward 3" of one stage a rank: the stage is the rank.
        if (seen.rank < 0 && seen.key.stage < 0) seen.key.stage = rank;
        if (seen.rank < 0) seen.rank = rank;
        if (seen.rank >= kMostRanks) {
          return absl::InvalidArgumentError(
              absl::StrFormat("%s has a task of rank %d; at most %d are read",
                              sources[f].name, seen.rank, kMostRanks - 1));
        }
      }
    }
    all.insert(all.end(), file.tasks.begin(), file.tasks.end());
    moved.insert(moved.end(), file.moved.begin(), file.moved.end());
    epilogues.insert(epilogues.end(), file.epilogues.begin(),
                     file.epilogues.end());
  }
  if (all.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "none of the %d events is a task of a pipeline: looked for args "
        "\"pass\", \"stage\" and \"microbatch\", and for names like PP:2F5 or "
        "Forward 5",
        step.events));
  }
  std::vector<int32_t> nth;
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<Seen> tasks,
      OneIteration(std::move(all), iteration, &step.iterations, &nth));
  if (iteration < 0) iteration = step.iterations - 1;
  PIPELOOM_ASSIGN_OR_RETURN(const auto inputs, Inputs(tasks));

  // Ranks are numbered without gaps.
  std::map<int32_t, RankId> ranks;
  for (const Seen& task : tasks) ranks[task.rank] = RankId();
  int32_t num_ranks = 0;
  for (auto& [number, id] : ranks) id = RankId(num_ranks++);

  // Clocks. Receives that end before their task begins tell more.
  std::map<std::tuple<Pass, int32_t, int32_t>, std::vector<Moved>> sends;
  std::map<std::tuple<Pass, int32_t, int32_t>, std::vector<Moved>> receives;
  for (const Moved& m : moved) {
    (m.send ? sends : receives)[{m.pass, m.stage, m.microbatch}].push_back(m);
  }
  std::vector<emulator::TimedMessage> messages;
  for (const auto& [from, to] : inputs) {
    const Seen& a = tasks[static_cast<size_t>(from)];
    const Seen& b = tasks[static_cast<size_t>(to)];
    if (a.rank == b.rank) continue;
    emulator::TimedMessage message{ranks[a.rank], ranks[b.rank], a.end,
                                   b.start};
    const auto nth_of = [&](const auto& table, const Key& key) -> const Moved* {
      const auto it = table.find({key.pass, key.stage, key.microbatch});
      if (it == table.end() ||
          it->second.size() <= static_cast<size_t>(iteration)) {
        return nullptr;
      }
      return &it->second[static_cast<size_t>(iteration)];
    };
    if (const Moved* send = nth_of(sends, a.key); send != nullptr) {
      message.sent_ns = std::max(message.sent_ns, send->start);
    }
    if (const Moved* receive = nth_of(receives, b.key); receive != nullptr) {
      message.arrived_ns = std::min(message.arrived_ns, receive->end);
    }
    messages.push_back(message);
  }
  if (sources.size() > 1) {
    step.clocks = emulator::AlignClocks(num_ranks, messages);
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
  const auto common = [&](const Seen& seen, int64_t local) {
    return step.clocks[ranks[seen.rank]].ToCommon(local);
  };

  // Topological order: by time as far as dependencies allow.
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
  while (!ready.empty()) {
    const auto i = static_cast<size_t>(ready.top().second);
    ready.pop();
    const Seen& seen = tasks[i];
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
    id_of[i] = graph_tasks.push_back(task);
    by_id.push_back(static_cast<int32_t>(i));
    for (const int32_t to : next[i]) {
      if (--open[static_cast<size_t>(to)] == 0) {
        const Seen& other = tasks[static_cast<size_t>(to)];
        ready.push({common(other, other.start), to});
      }
    }
  }
  if (by_id.size() < count) {
    return absl::InvalidArgumentError(
        "the tasks' inputs form a circle, so they are not of one step");
  }

  // A link takes what its quickest message took, or more: see below.
  std::map<std::pair<RankId, RankId>, int64_t> quickest;
  for (const auto& [from, to] : inputs) {
    const Seen& a = tasks[static_cast<size_t>(from)];
    const Seen& b = tasks[static_cast<size_t>(to)];
    if (a.rank == b.rank) continue;
    const int64_t took =
        std::max<int64_t>(0, common(b, b.start) - common(a, a.end));
    const auto [it, is_new] =
        quickest.try_emplace({ranks[a.rank], ranks[b.rank]}, took);
    if (!is_new) it->second = std::min(it->second, took);
  }
  // On its rank, what ran before each task.
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
    const Seen& earlier = tasks[static_cast<size_t>(before[i])];
    const int64_t free = common(earlier, earlier.end);
    const int64_t start = common(tasks[i], tasks[i].start);
    int64_t arrived = std::numeric_limits<int64_t>::min();
    int64_t sent = 0;
    RankId sender = rank;
    for (const int32_t from : inputs_of[i]) {
      const Seen& input = tasks[static_cast<size_t>(from)];
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
  // The sender's hand-over is in its task's time.
  for (auto& [link, values] : waits) {
    quickest[link] = std::max<int64_t>(
        0, median(values) - step.handover[link.first].count());
  }
  for (Task& task : graph_tasks) task.duration += step.handover[task.rank];
  IdVector<EdgeId, Dependency> edges;
  for (const auto& [from, to] : inputs) {
    const Seen& a = tasks[static_cast<size_t>(from)];
    const Seen& b = tasks[static_cast<size_t>(to)];
    Dependency edge{.from = id_of[static_cast<size_t>(from)],
                    .to = id_of[static_cast<size_t>(to)]};
    if (a.rank != b.rank) {
      edge.delay = Duration(quickest[{ranks[a.rank], ranks[b.rank]}]);
    }
    edges.push_back(edge);
  }
  IdVector<RankId, RankSpec> specs(num_ranks);
  IdVector<RankId, std::vector<Seen>> ends(num_ranks);
  for (const Seen& seen : epilogues) {
    const auto it = ranks.find(seen.rank);
    if (it != ranks.end()) ends[it->second].push_back(seen);
  }
  RankOrders order(num_ranks);
  step.measured.num_ranks = num_ranks;
  const auto at = [&](const Seen& seen, int64_t local) {
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
    if (ends[r].size() <= static_cast<size_t>(iteration)) continue;
    const Seen& seen = ends[r][static_cast<size_t>(iteration)];
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
                            TimeSchedule(graph, std::move(order)));
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

}  // namespace pipeloom::cli
