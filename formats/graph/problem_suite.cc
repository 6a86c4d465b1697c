#include "formats/graph/problem_suite.h"

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
}

void ReadPipeline(ObjectReader& reader, PipelineProblem* problem) {
  for (const char* field : {"ranks", "microbatches", "modules"}) {
    reader.Require(field);
  }
  reader.Read("ranks", 1, 4096, &problem->ranks);
  reader.Read("microbatches", 1, 100'000, &problem->microbatches);
  reader.Read("split_backward", &problem->split_backward);
  ReadSize(reader, "memory_limit_bytes", &problem->memory_limit);
  ReadTime(reader, "delay_us", &problem->delay);
  int64_t chunks = 0;
  reader.ReadObjects("modules", [&](ObjectReader& r) {
    ReadModule(r, &problem->modules.emplace_back());
    chunks += problem->modules.back().chunks;
  });
  if (!reader.ok()) return;
  if (problem->modules.empty()) {
    reader.Refuse("modules", "a list of at least one module");
  }
  const int64_t tasks = chunks * problem->ranks * problem->microbatches * 3;
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
    RankId rank{};
  };
  std::vector<Place> stages;
  std::vector<std::string> module_names;
  for (const PipelineModule& module : problem.modules) {
    const ModuleId id(static_cast<int32_t>(module_names.size()));
    module_names.push_back(module.name);
    for (int32_t c = 0; c < module.chunks; ++c) {
      for (int32_t r = 0; r < problem.ranks; ++r) {
        const bool back = module.vee && c % 2 == 1;
        stages.push_back(
            {&module, id, RankId(back ? problem.ranks - 1 - r : r)});
      }
    }
  }
  IdVector<RankId, RankSpec> ranks(problem.ranks);
  for (RankSpec& rank : ranks) rank.memory.limit = problem.memory_limit;
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  const auto num_stages = static_cast<int32_t>(stages.size());
  for (int32_t m = 0; m < problem.microbatches; ++m) {
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
           .stage = StageId(s),
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
