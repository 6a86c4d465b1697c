#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

constexpr double kMaxMicroseconds = 1e12;  // 11 days; exact in a double.
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int32_t kMaxIndex = 10'000'000;
constexpr int64_t kMaxNanosecondsInAll = int64_t{1} << 61;
constexpr int64_t kMaxBytesInAll = int64_t{1} << 61;

constexpr std::pair<absl::string_view, Pass> kPasses[] = {
    {"FORWARD", Pass::kForward},
    {"BACKWARD", Pass::kBackward},
    {"WEIGHT_GRAD", Pass::kWeightGrad},
};

// Tasks and edges as in the file, by position there.
struct RawTask {
  int64_t id = 0;
  int32_t line = 0;
  std::string module{};
  Task task{};
};
struct RawEdge {
  int32_t from = 0;  // Positions of tasks.
  int32_t to = 0;
  Duration delay{};
};
struct RawGraph {
  std::string name{};
  IdVector<RankId, RankSpec> ranks{};
  std::vector<RawTask> tasks{};
  std::vector<RawEdge> edges{};
};

void ReadRank(ObjectReader& reader, RankSpec* rank) {
  int64_t limit = 0;
  int64_t held = 0;
  reader.Read("memory_limit_bytes", int64_t{0}, kMaxBytes, &limit);
  reader.Read("static_bytes", int64_t{0}, kMaxBytes, &held);
  rank->memory.limit = Bytes(limit);
  rank->memory.weights = Bytes(held);
}

void ReadTask(ObjectReader& reader, int32_t num_ranks, RawTask* raw) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int32_t rank = 0;
  int32_t stage = 0;
  int32_t microbatch = 0;
  double duration_us = 0;
  int64_t alloc = 0;
  int64_t free = 0;
  raw->line = reader.line();
  reader.Read("id", kMin, kMax, &raw->id);
  reader.Read("rank", 0, num_ranks - 1, &rank);
  reader.Require("kind");
  reader.ReadEnum<Pass>("kind", kPasses, &raw->task.pass);
  reader.Read("module", &raw->module);
  reader.Read("stage", 0, kMaxIndex, &stage);
  reader.Read("microbatch", 0, kMaxIndex, &microbatch);
  reader.Read("sub_microbatch", 0, kMaxIndex, &raw->task.sub_microbatch);
  reader.Require("duration_us");
  reader.Read("duration_us", 0.0, kMaxMicroseconds, &duration_us);
  reader.Read("alloc_bytes", int64_t{0}, kMaxBytes, &alloc);
  reader.Read("free_bytes", int64_t{0}, kMaxBytes, &free);
  raw->task.rank = RankId(rank);
  raw->task.stage = StageId(stage);
  raw->task.microbatch = MicrobatchId(microbatch);
  raw->task.duration = Microseconds(duration_us);
  raw->task.alloc = Bytes(alloc);
  raw->task.free = Bytes(free);
}

// Reads one end of an edge: the position of the task with that id.
void ReadEnd(ObjectReader& reader, absl::string_view field,
             const std::unordered_map<int64_t, int32_t>& position,
             int32_t* out) {
  int64_t id = 0;
  reader.Read(field, std::numeric_limits<int64_t>::min(),
              std::numeric_limits<int64_t>::max(), &id);
  if (!reader.ok()) return;
  const auto found = position.find(id);
  if (found != position.end()) {
    *out = found->second;
  } else if (reader.Has(field)) {
    reader.Refuse(field, "the id of a task");
  } else {
    reader.Fail(reader.line(),
                absl::StrFormat("the edge has no \"%s\", which means 0; there "
                                "is no task 0",
                                field));
  }
}

absl::StatusOr<RawGraph> ReadRawGraph(absl::string_view text,
                                      const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  RawGraph raw;
  std::unordered_map<int64_t, int32_t> position;
  // Sums must stay within int64_t in all uses of the graph.
  int64_t nanoseconds = 0;
  int64_t bytes = 0;
  const auto add = [](ObjectReader& r, int64_t value, int64_t most,
                      absl::string_view what, int64_t* sum) {
    *sum += value;
    if (*sum > most) {
      r.Fail(r.line(), absl::StrCat(what, " add up to more than ", most));
      *sum = 0;
    }
  };
  reader.Read("name", &raw.name);
  reader.Require("ranks");
  reader.Require("tasks");
  reader.ReadObjects("ranks", [&](ObjectReader& r) {
    ReadRank(r, &raw.ranks[raw.ranks.push_back({})]);
  });
  if (reader.ok() && raw.ranks.empty()) {
    reader.Refuse("ranks", "a list of at least one rank");
  }
  reader.ReadObjects("tasks", [&](ObjectReader& r) {
    const auto index = static_cast<int32_t>(raw.tasks.size());
    RawTask& task = raw.tasks.emplace_back();
    ReadTask(r, raw.ranks.size(), &task);
    if (!r.ok()) return;
    const auto [other, is_new] = position.insert({task.id, index});
    if (!is_new) {
      r.Fail(r.line(),
             absl::StrFormat(
                 "id %d is also that of the task in line %d; ids must differ",
                 task.id, raw.tasks[static_cast<size_t>(other->second)].line));
    }
    add(r, task.task.duration.count(), kMaxNanosecondsInAll,
        "times in nanoseconds", &nanoseconds);
    add(r, task.task.alloc.count(), kMaxBytesInAll, "bytes", &bytes);
    add(r, task.task.free.count(), kMaxBytesInAll, "bytes", &bytes);
  });
  reader.ReadObjects("edges", [&](ObjectReader& r) {
    RawEdge& edge = raw.edges.emplace_back();
    double delay_us = 0;
    ReadEnd(r, "from", position, &edge.from);
    ReadEnd(r, "to", position, &edge.to);
    r.Read("delay_us", 0.0, kMaxMicroseconds, &delay_us);
    edge.delay = Microseconds(delay_us);
    add(r, edge.delay.count(), kMaxNanosecondsInAll, "times in nanoseconds",
        &nanoseconds);
  });
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  return raw;
}

// Returns an error that names tasks that wait for each other. `waiting` has the
// number of predecessors left of each task.
absl::Status CycleError(const RawGraph& raw, const std::string& file_name,
                        const std::vector<int32_t>& waiting) {
  // Every waiting task has a waiting predecessor: walk back until one occurs
  // twice.
  std::vector<int32_t> predecessor(raw.tasks.size(), -1);
  for (const RawEdge& edge : raw.edges) {
    if (waiting[static_cast<size_t>(edge.from)] > 0 &&
        predecessor[static_cast<size_t>(edge.to)] < 0) {
      predecessor[static_cast<size_t>(edge.to)] = edge.from;
    }
  }
  int32_t at = -1;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (waiting[i] > 0 &&
        (at < 0 || raw.tasks[i].id < raw.tasks[static_cast<size_t>(at)].id)) {
      at = static_cast<int32_t>(i);
    }
  }
  std::vector<bool> seen(raw.tasks.size());
  while (!seen[static_cast<size_t>(at)]) {
    seen[static_cast<size_t>(at)] = true;
    at = predecessor[static_cast<size_t>(at)];
  }
  std::vector<int32_t> circle = {at};
  for (int32_t i = predecessor[static_cast<size_t>(at)]; i != at;
       i = predecessor[static_cast<size_t>(i)]) {
    circle.push_back(i);
  }
  std::reverse(circle.begin(), circle.end());
  std::rotate(circle.begin(),
              std::min_element(circle.begin(), circle.end(),
                               [&](int32_t a, int32_t b) {
                                 return raw.tasks[static_cast<size_t>(a)].id <
                                        raw.tasks[static_cast<size_t>(b)].id;
                               }),
              circle.end());
  constexpr size_t kShown = 8;
  std::string ids;
  for (size_t i = 0; i < circle.size() && i < kShown; ++i) {
    absl::StrAppend(&ids, raw.tasks[static_cast<size_t>(circle[i])].id, " -> ");
  }
  if (circle.size() > kShown) ids += "... -> ";
  const RawTask& first = raw.tasks[static_cast<size_t>(circle[0])];
  absl::StrAppend(&ids, first.id);
  return ErrorAt(
      file_name, first.line,
      absl::StrFormat("tasks wait for each other in a circle of %d: %s; the "
                      "edges must not close one",
                      circle.size(), ids));
}

// Prints a time in microseconds with all its nanoseconds: "150", "0.25".
std::string PrintMicroseconds(Duration d) {
  const int64_t ns = d.count() % 1000;
  std::string text = absl::StrCat(d.count() / 1000);
  if (ns != 0) {
    absl::StrAppendFormat(&text, ".%03d", ns);
    while (text.back() == '0') text.pop_back();
  }
  return text;
}

std::string Quote(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(
          &quoted, "\\u%04x",
          static_cast<unsigned int>(static_cast<unsigned char>(c)));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

absl::string_view PassName(Pass pass) {
  for (const auto& [name, value] : kPasses) {
    if (value == pass) return name;
  }
  return "";
}

}  // namespace

absl::StatusOr<LoadedGraph> ParseTaskGraph(absl::string_view text,
                                           const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(RawGraph raw, ReadRawGraph(text, file_name));
  const size_t num_tasks = raw.tasks.size();
  std::vector<int32_t> waiting(num_tasks, 0);
  std::vector<std::vector<int32_t>> successors(num_tasks);
  for (const RawEdge& edge : raw.edges) {
    ++waiting[static_cast<size_t>(edge.to)];
    successors[static_cast<size_t>(edge.from)].push_back(edge.to);
  }
  // Kahn's algorithm; takes the smallest external id among the tasks that may
  // come next.
  using Ready = std::pair<int64_t, int32_t>;  // External id, position.
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (size_t i = 0; i < num_tasks; ++i) {
    if (waiting[i] == 0) ready.push({raw.tasks[i].id, static_cast<int32_t>(i)});
  }
  LoadedGraph loaded;
  std::vector<TaskId> new_id(num_tasks);
  IdVector<TaskId, Task> tasks;
  std::vector<std::string> module_names;
  std::map<std::string, ModuleId> modules;
  while (!ready.empty()) {
    const auto [id, position] = ready.top();
    ready.pop();
    RawTask& task = raw.tasks[static_cast<size_t>(position)];
    const auto [module, is_new] = modules.insert(
        {task.module, ModuleId(static_cast<int32_t>(module_names.size()))});
    if (is_new) module_names.push_back(task.module);
    task.task.module = module->second;
    new_id[static_cast<size_t>(position)] = tasks.push_back(task.task);
    loaded.external_id.push_back(id);
    for (const int32_t next : successors[static_cast<size_t>(position)]) {
      if (--waiting[static_cast<size_t>(next)] == 0) {
        ready.push({raw.tasks[static_cast<size_t>(next)].id, next});
      }
    }
  }
  if (static_cast<size_t>(tasks.size()) < num_tasks) {
    return CycleError(raw, file_name, waiting);
  }
  IdVector<EdgeId, Dependency> edges;
  for (const RawEdge& edge : raw.edges) {
    edges.push_back({.from = new_id[static_cast<size_t>(edge.from)],
                     .to = new_id[static_cast<size_t>(edge.to)],
                     .delay = edge.delay});
  }
  absl::StatusOr<StageGraph> graph = StageGraph::Create(
      std::move(raw.name), std::move(raw.ranks), std::move(module_names),
      std::move(tasks), std::move(edges));
  if (!graph.ok()) {
    return absl::Status(
        graph.status().code(),
        absl::StrCat(file_name, ": ", graph.status().message()));
  }
  loaded.graph = *std::move(graph);
  return loaded;
}

std::string PrintTaskGraph(const StageGraph& graph) {
  std::string out =
      absl::StrCat("{\"name\": ", Quote(graph.name()), ",\n \"ranks\": [");
  absl::string_view separator = "\n  ";
  for (const RankSpec& rank : graph.ranks()) {
    absl::StrAppendFormat(
        &out, "%s{\"memory_limit_bytes\": %d, \"static_bytes\": %d}", separator,
        rank.memory.limit.count(), rank.memory.static_bytes().count());
    separator = ",\n  ";
  }
  out += "],\n \"tasks\": [";
  separator = "\n  ";
  for (const TaskId id : graph.task_ids()) {
    const Task& t = graph.task(id);
    absl::StrAppendFormat(
        &out,
        "%s{\"id\": %d, \"rank\": %d, \"kind\": \"%s\", \"module\": %s, "
        "\"stage\": %d, \"microbatch\": %d, \"sub_microbatch\": %d, "
        "\"duration_us\": %s, \"alloc_bytes\": %d, \"free_bytes\": %d}",
        separator, id.value(), t.rank.value(), PassName(t.pass),
        Quote(graph.module_names()[static_cast<size_t>(t.module.value())]),
        t.stage.value(), t.microbatch.value(), t.sub_microbatch,
        PrintMicroseconds(t.duration), t.alloc.count(), t.free.count());
    separator = ",\n  ";
  }
  out += "],\n \"edges\": [";
  separator = "\n  ";
  for (const Dependency& edge : graph.edges()) {
    absl::StrAppendFormat(
        &out, "%s{\"from\": %d, \"to\": %d, \"delay_us\": %s}", separator,
        edge.from.value(), edge.to.value(), PrintMicroseconds(edge.delay));
    separator = ",\n  ";
  }
  out += "]}\n";
  return out;
}

}  // namespace pipeloom::formats
