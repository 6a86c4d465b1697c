#include "trace/trace_iteration.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

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

// Returns what each task waited for.
absl::StatusOr<std::vector<TraceInput>> InputsOf(
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
  std::set<TraceInput> edges;
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
  return std::vector<TraceInput>(edges.begin(), edges.end());
}

}  // namespace

absl::StatusOr<TraceIteration> ChooseIteration(std::vector<TraceTask> tasks,
                                               int32_t index) {
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
  if (index >= size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("iteration %d: the traces have %d whole ones, counted "
                        "from 0",
                        index, size));
  }
  const auto chosen = [&](int32_t at) {
    TraceIteration result{.index = at, .count = size};
    std::tie(result.step, result.nth) = whole[static_cast<size_t>(at)];
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].step == result.step && nth[i] == result.nth) {
        result.tasks.push_back(tasks[i]);
      }
    }
    return result;
  };
  TraceIteration result = chosen(index < 0 ? size - 1 : index);
  // A trace may end in the middle of a step.
  for (int32_t at = size - 2;
       index < 0 && at >= 0 && !HasAllInputs(result.tasks); --at) {
    TraceIteration earlier = chosen(at);
    if (HasAllInputs(earlier.tasks)) result = std::move(earlier);
  }
  PIPELOOM_RETURN_IF_ERROR(CheckWhole(result.tasks));
  PIPELOOM_ASSIGN_OR_RETURN(result.inputs, InputsOf(result.tasks));
  return result;
}

}  // namespace pipeloom::trace
