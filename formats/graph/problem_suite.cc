#include "formats/graph/problem_suite.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

constexpr double kMaxMicroseconds = 1e12;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxTasks = 2'000'000;
constexpr int32_t kMaxRanks = 4096;
constexpr int32_t kMaxMicrobatches = 100'000;

constexpr std::pair<absl::string_view, bool> kMaps[] = {{"looped", false},
                                                        {"vee", true}};

void ReadTime(ObjectReader& reader, absl::string_view field, Duration* out) {
  double us = 0;
  reader.Read(field, 0.0, kMaxMicroseconds, &us);
  if (reader.ok() && reader.Has(field)) *out = Microseconds(us);
}

void ReadSize(ObjectReader& reader, absl::string_view field, Bytes* out) {
  int64_t bytes = 0;
  reader.Read(field, int64_t{0}, kMaxBytes, &bytes);
  *out = Bytes(bytes);
}

void ReadModule(ObjectReader& reader, PipelineModule* module) {
  reader.Require("forward_us");
  reader.Read("name", &module->name);
  reader.Read("chunks", 1, 64, &module->chunks);
  reader.ReadEnum<bool>("map", kMaps, &module->vee);
  ReadTime(reader, "forward_us", &module->forward);
  ReadTime(reader, "backward_us", &module->backward);
  ReadTime(reader, "weight_grad_us", &module->weight_grad);
  ReadSize(reader, "activation_bytes", &module->activation);
  reader.ForEach("scale", [&](const JsonValue& value, const std::string& path) {
    reader.ParseNumber(value, path, 0, 1e6, &module->scale.emplace_back());
  });
  reader.Read("microbatches", 1, kMaxMicrobatches, &module->microbatches);
  reader.Read("first_rank", 0, kMaxRanks - 1, &module->first_rank);
  reader.Read("ranks", 1, kMaxRanks, &module->ranks);
  reader.Read("reverse", &module->reverse);
}

// Returns how many ranks a module is on.
int32_t RanksOf(const PipelineModule& module, const PipelineProblem& problem) {
  return module.ranks > 0 ? module.ranks : problem.ranks - module.first_rank;
}

void ReadPipeline(ObjectReader& reader, PipelineProblem* problem) {
  for (const char* field : {"ranks", "microbatches", "modules"}) {
    reader.Require(field);
  }
  reader.Read("ranks", 1, kMaxRanks, &problem->ranks);
  reader.Read("microbatches", 1, kMaxMicrobatches, &problem->microbatches);
  reader.Read("split_backward", &problem->split_backward);
  ReadSize(reader, "memory_limit_bytes", &problem->memory_limit);
  ReadTime(reader, "delay_us", &problem->delay);
  int64_t tasks = 0;
  reader.ReadObjects("modules", [&](ObjectReader& r) {
    PipelineModule& module = problem->modules.emplace_back();
    ReadModule(r, &module);
    if (!r.ok()) return;
    if (module.first_rank + std::max(1, module.ranks) > problem->ranks) {
      r.Fail(r.line(),
             absl::StrCat("the module is on ranks ", module.first_rank, " to ",
                          module.first_rank + std::max(1, module.ranks) - 1,
                          "; the pipeline has ", problem->ranks,
                          ", counted from 0"));
      return;
    }
    const int64_t microbatches =
        module.microbatches > 0 ? module.microbatches : problem->microbatches;
    tasks +=
        int64_t{module.chunks} * RanksOf(module, *problem) * microbatches * 3;
  });
  if (!reader.ok()) return;
  if (problem->modules.empty()) {
    reader.Refuse("modules", "a list of at least one module");
  }
  if (tasks > kMaxTasks) {
    reader.Fail(reader.line(),
                absl::StrCat("ranks x chunks x microbatches x 3 passes are ",
                             tasks, " tasks; at most ", kMaxTasks));
  }
}

void ReadProblem(ObjectReader& reader, SuiteProblem* problem) {
  reader.Require("name");
  reader.Read("name", &problem->name);
  reader.Read("family", &problem->family);
  ReadTime(reader, "best_known_us", &problem->best_known);
  ReadTime(reader, "peer_us", &problem->peer);
  ReadTime(reader, "most_budget_us", &problem->most_budget);
  reader.Read("peer", &problem->peer_name);
  reader.ReadObject("pipeline", [&](ObjectReader& r) {
    ReadPipeline(r, &problem->pipeline.emplace());
  });
  reader.Read("graph", &problem->graph_file);
  JobProblem job;
  reader.Read("job", &job.job);
  reader.Read("batch", &job.batch);
  reader.Read("steps", 1, 1000, &job.steps);
  const int kinds = int{problem->pipeline.has_value()} +
                    int{!problem->graph_file.empty()} + int{!job.job.empty()};
  if (reader.ok() && kinds != 1) {
    reader.Fail(reader.line(),
                absl::StrCat("problem \"", problem->name, "\" has ", kinds,
                             " of the fields pipeline, graph and job; it must "
                             "have one"));
  }
  if (!job.job.empty()) {
    reader.Require("batch");
    problem->job = std::move(job);
  } else if (reader.ok() && (!job.batch.empty() || reader.Has("steps"))) {
    reader.Fail(reader.line(), "batch and steps belong to a job");
  }
}

}  // namespace

absl::StatusOr<StageGraph> MakePipelineGraph(const std::string& name,
                                             const PipelineProblem& problem) {
  struct Place {
    const PipelineModule* module = nullptr;
    ModuleId id{};
    StageId stage{};  // Counted in its line.
    RankId rank{};
  };
  // Stages that microbatches go through one after another.
  struct Line {
    int32_t microbatches = 0;
    std::vector<Place> stages{};
  };
  std::vector<Line> lines = {{.microbatches = problem.microbatches}};
  std::vector<std::string> module_names;
  for (const PipelineModule& module : problem.modules) {
    const ModuleId id(static_cast<int32_t>(module_names.size()));
    module_names.push_back(module.name);
    if (module.microbatches > 0) {
      lines.push_back({.microbatches = module.microbatches});
    }
    std::vector<Place>& stages =
        (module.microbatches > 0 ? lines.back() : lines.front()).stages;
    const int32_t count = RanksOf(module, problem);
    for (int32_t c = 0; c < module.chunks; ++c) {
      for (int32_t r = 0; r < count; ++r) {
        const bool back = (module.vee && c % 2 == 1) != module.reverse;
        stages.push_back(
            {&module, id, StageId(static_cast<int32_t>(stages.size())),
             RankId(module.first_rank + (back ? count - 1 - r : r))});
      }
    }
  }
  IdVector<RankId, RankSpec> ranks(problem.ranks);
  for (RankSpec& rank : ranks) rank.memory.limit = problem.memory_limit;
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  const auto add_microbatch = [&](const std::vector<Place>& stages, int32_t m) {
    const auto num_stages = static_cast<int32_t>(stages.size());
    TaskId before{};
    RankId from{};
    bool first = true;
    const auto add = [&](Pass pass, int32_t s, Duration time) {
      const Place& place = stages[static_cast<size_t>(s)];
      const PipelineModule& module = *place.module;
      const bool last = pass == Pass::kWeightGrad ||
                        (pass == Pass::kBackward && !problem.split_backward);
      const double scale =
          module.scale.empty()
              ? 1
              : module.scale[static_cast<size_t>(m) % module.scale.size()];
      const TaskId id = tasks.push_back(
          {.rank = place.rank,
           .pass = pass,
           .module = place.id,
           .stage = place.stage,
           .microbatch = MicrobatchId(m),
           .duration = Microseconds(ToMicroseconds(time) * scale),
           .alloc = pass == Pass::kForward ? module.activation : Bytes(0),
           .free = last ? module.activation : Bytes(0)});
      if (!first) {
        edges.push_back({.from = before,
                         .to = id,
                         .delay = from == place.rank ? kZero : problem.delay});
      }
      first = false;
      return id;
    };
    for (int32_t s = 0; s < num_stages; ++s) {
      before = add(Pass::kForward, s, stages[s].module->forward);
      from = stages[s].rank;
    }
    for (int32_t s = num_stages - 1; s >= 0; --s) {
      const PipelineModule& module = *stages[s].module;
      const Duration fused =
          problem.split_backward ? kZero : module.weight_grad;
      before = add(Pass::kBackward, s, module.backward + fused);
      from = stages[s].rank;
      if (problem.split_backward) {
        add(Pass::kWeightGrad, s, module.weight_grad);
      }
    }
  };
  for (const Line& line : lines) {
    if (line.stages.empty()) continue;
    for (int32_t m = 0; m < line.microbatches; ++m) {
      add_microbatch(line.stages, m);
    }
  }
  return StageGraph::Create(name, std::move(ranks), std::move(module_names),
                            std::move(tasks), std::move(edges));
}

absl::StatusOr<ProblemSuite> ParseProblemSuite(absl::string_view text,
                                               const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  ProblemSuite suite;
  std::set<std::string> names;
  reader.Require("problems");
  reader.Read("source", &suite.source);
  reader.ReadObjects("problems", [&](ObjectReader& r) {
    ReadProblem(r, &suite.problems.emplace_back());
    const std::string& name = suite.problems.back().name;
    if (r.ok() && !names.insert(name).second) {
      r.Refuse("name", "a name that no other problem has");
    }
  });
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  return suite;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> ParseAnswerOrders(
    absl::string_view text, const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  std::vector<std::vector<int64_t>> orders;
  reader.Require("order");
  reader.ForEach("order", [&](const JsonValue& list, const std::string& path) {
    std::vector<int64_t>& order = orders.emplace_back();
    if (list.kind != JsonValue::Kind::kList) {
      reader.Refuse(list, path, "a list of task ids");
      return;
    }
    for (size_t i = 0; i < list.items.size(); ++i) {
      reader.ParseInteger(list.items[i], absl::StrCat(path, "[", i, "]"),
                          std::numeric_limits<int64_t>::min(),
                          std::numeric_limits<int64_t>::max(),
                          &order.emplace_back());
    }
  });
  // An answer file has other fields too, with figures of its author.
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  if (orders.empty() && !reader.Has("order")) {
    return ErrorAt(file_name, 1,
                   "the field \"order\" is missing: the task ids of each rank "
                   "in the order in which they run");
  }
  return orders;
}

}  // namespace pipeloom::formats
