#include "studies/bench/bench_runs.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fingerprint.h"
#include "base/status_macros.h"
#include "formats/job/spec_loader.h"
#include "planner/bounds/lower_bound.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "studies/bench/bench_journal.h"
#include "studies/job/job_input.h"
#include "studies/job/planned_step.h"
#include "studies/job/planner_input.h"

namespace pipeloom::studies {
namespace {

using Clock = std::chrono::steady_clock;

bool Searches(const std::string& schedule) {
  return schedule == "pipeloom" || absl::StartsWith(schedule, "dip");
}

// Returns whether the strategy needs only a graph, not a job.
bool RunsOnGraphs(const std::string& schedule) {
  static const auto* const kNeedAJob =
      new std::set<std::string>{"megatron", "nnscaler", "optimus", "disttrain"};
  return !kNeedAJob->contains(schedule);
}

// Returns the stages of a graph as a partition: segment by segment, each with
// as many stages as there are ranks.
Partition PartitionOf(const StageGraph& graph) {
  Partition partition;
  partition.num_ranks = graph.num_ranks();
  int32_t num_stages = 0;
  for (const Task& task : graph.tasks()) {
    num_stages = std::max(num_stages, task.stage.value() + 1);
  }
  partition.stages.resize(num_stages);
  for (const StageId s : partition.stages.ids()) {
    partition.stages[s].segment = SegmentId(s.value() / graph.num_ranks());
    partition.num_segments = s.value() / graph.num_ranks() + 1;
  }
  for (const Task& task : graph.tasks()) {
    partition.stages[task.stage].module = task.module;
    partition.stages[task.stage].rank = task.rank;
  }
  partition.sub_microbatch_instances.resize(
      static_cast<int32_t>(graph.module_names().size()));
  return partition;
}

std::vector<Duration> BudgetsOf(const std::string& schedule,
                                const formats::SuiteProblem& problem,
                                const BenchOptions& options) {
  if (!Searches(schedule)) return {kZero};
  std::vector<Duration> budgets;
  for (const Duration budget : options.budgets) {
    const Duration most = problem.most_budget;
    if (most > kZero && budget > most && !budgets.empty()) continue;
    if (schedule != "pipeloom" && budget > options.most_of_others) continue;
    budgets.push_back(budget);
  }
  return budgets;
}

SearchSettings SettingsOf(Duration budget, const BenchOptions& options) {
  SearchSettings settings;
  if (budget > kZero) settings.deadline = budget;
  settings.seed = options.seed;
  settings.threads = options.threads;
  return settings;
}

struct Loaded {
  StageGraph graph{};
  IdVector<TaskId, int64_t> external_id{};
};

absl::StatusOr<Loaded> LoadGraph(const formats::SuiteProblem& problem,
                                 const formats::FileReader& read_file) {
  Loaded loaded;
  if (problem.pipeline) {
    PIPELOOM_ASSIGN_OR_RETURN(
        loaded.graph,
        formats::MakePipelineGraph(problem.name, *problem.pipeline));
    for (const TaskId t : loaded.graph.task_ids()) {
      loaded.external_id.push_back(t.value());
    }
    return loaded;
  }
  const std::string& path = problem.graph_file;
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  PIPELOOM_ASSIGN_OR_RETURN(formats::LoadedGraph read,
                            formats::ParseTaskGraph(text, path));
  loaded.graph = std::move(read.graph);
  loaded.external_id = std::move(read.external_id);
  return loaded;
}

absl::Status RunOnGraph(const StageGraph& graph, const BenchOptions& options,
                        const StudyContext& context, BenchRow* row) {
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy,
                            planner::MakeStrategy(row->schedule));
  if (graph.num_tasks() == 0) {
    return absl::InvalidArgumentError("the graph has no tasks");
  }
  const Partition partition = PartitionOf(graph);
  const Clock::time_point begin = Clock::now();
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::SearchResult found,
      strategy->MakeSchedule(
          graph, partition, options.seed,
          StartBudget(SettingsOf(row->budget, options), context.stop)));
  row->search_time = std::chrono::duration_cast<Duration>(Clock::now() - begin);
  PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(graph, found.schedule));
  row->step_time = found.schedule.step_time();
  row->lower_bound = found.lower_bound;
  row->evaluations = found.evaluations;
  return absl::OkStatus();
}

// Judges another program's answer by the same rules as Pipeloom's own.
absl::Status JudgeAnswer(const Loaded& loaded, const std::string& path,
                         const absl::StatusOr<std::string>& text,
                         BenchRow* row) {
  PIPELOOM_RETURN_IF_ERROR(text.status());
  PIPELOOM_ASSIGN_OR_RETURN(const auto answer,
                            formats::ParseAnswerOrders(*text, path));
  std::vector<std::pair<int64_t, TaskId>> ids;
  for (const TaskId t : loaded.graph.task_ids()) {
    ids.emplace_back(loaded.external_id[t], t);
  }
  std::sort(ids.begin(), ids.end());
  RankOrders orders;
  for (const std::vector<int64_t>& list : answer) {
    std::vector<TaskId>& order = orders[orders.push_back({})];
    for (const int64_t id : list) {
      const auto at =
          std::lower_bound(ids.begin(), ids.end(), std::pair(id, TaskId(0)));
      if (at == ids.end() || at->first != id) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": order has task ", id, ", which the problem has not"));
      }
      order.push_back(at->second);
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(const Schedule schedule,
                            TimeSchedule(loaded.graph, std::move(orders)));
  PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(loaded.graph, schedule));
  row->step_time = schedule.step_time();
  return absl::OkStatus();
}

absl::StatusOr<JobInput> LoadJob(const formats::JobProblem& problem,
                                 const BenchOptions& options,
                                 const StudyContext& context) {
  JobOptions changes;
  changes.data_dir = options.data_dir;
  PIPELOOM_ASSIGN_OR_RETURN(JobInput input,
                            LoadJobInput(problem.job, changes, context));
  input.replicas = 1;
  PIPELOOM_RETURN_IF_ERROR(
      LoadBatch(problem.batch, options.data_dir, context, &input));
  return input;
}

absl::Status RunOnJob(const formats::JobProblem& problem,
                      const BenchOptions& options, const StudyContext& context,
                      const ProgressCallback& progress, BenchRow* row) {
  // Notes on the batch are printed for the first schedule only.
  StudyContext quiet = context;
  if (row->schedule != options.schedules.front()) quiet.warn = nullptr;
  PIPELOOM_ASSIGN_OR_RETURN(const JobInput input,
                            LoadJob(problem, options, quiet));
  PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                            PackSteps(input, problem.steps, quiet));
  PIPELOOM_ASSIGN_OR_RETURN(const auto planner,
                            MakeJobPlanner(input, row->schedule));
  std::vector<PlannedStep> steps;
  for (size_t s = 0; s < packed.size(); ++s) {
    PIPELOOM_ASSIGN_OR_RETURN(
        PlannedStep planned,
        PlanReplicas(planner->prepared(), packed[s], static_cast<int64_t>(s), 1,
                     SettingsOf(row->budget, options), context.stop, progress,
                     row->schedule));
    row->lower_bound += planned.lower_bound() / problem.steps;
    row->evaluations += planned.evaluations();
    steps.push_back(std::move(planned));
  }
  const StepMeans means = MeansOf(steps);
  row->step_time = means.step_time;
  row->search_time = means.search_time;
  return absl::OkStatus();
}

// Returns the fingerprint of all that a row depends on, except the program and
// the files of a job.
Fingerprint KeyOf(const formats::SuiteProblem& problem, const StageGraph& graph,
                  const std::string& schedule, Duration budget,
                  const BenchOptions& options) {
  FingerprintBuilder builder;
  builder.Add(problem.name).Add(schedule).Add(budget.count());
  builder.Add(options.seed).Add(options.threads);
  if (problem.job) {
    builder.Add(problem.job->job).Add(problem.job->batch);
    builder.Add(problem.job->steps);
  }
  for (const RankId r : graph.rank_ids()) {
    builder.Add(graph.rank(r).memory.limit.count());
  }
  for (const Task& task : graph.tasks()) {
    builder.Add(task.rank.value()).Add(task.duration.count());
    builder.Add(task.alloc.count()).Add(task.free.count());
  }
  for (const Dependency& edge : graph.edges()) {
    builder.Add(edge.from.value()).Add(edge.to.value());
    builder.Add(edge.delay.count());
  }
  return builder.Build();
}

// Notes the folders of answers in which no problem has one.
void NoteUnusedAnswers(const std::vector<BenchResult>& results,
                       const BenchOptions& options,
                       const StudyContext& context) {
  std::string right;  // Names that would be.
  for (const BenchResult& result : results) {
    if (result.problem.job || !result.status.ok()) continue;
    if (!right.empty()) {
      right += ", ...";
      break;
    }
    right = absl::StrCat(result.problem.name, ".json");
  }
  for (const auto& [name, folder] : options.answers) {
    const auto is_of = [&, &name = name](const BenchRow& row) {
      return row.is_answer && row.schedule == name;
    };
    if (std::any_of(results.begin(), results.end(), [&](const BenchResult& r) {
          return std::any_of(r.rows.begin(), r.rows.end(), is_of);
        })) {
      continue;
    }
    context.Warn(absl::StrCat(
        "note: ", folder, " has no answer of ", name, " to any problem; ",
        right.empty() ? "only problems with a graph have answers"
                      : absl::StrCat("files would be named ", right)));
  }
}

}  // namespace

Duration BenchResult::lower_bound() const {
  Duration bound{};
  for (const BenchRow& row : rows) {
    if (!row.status.ok() || (problem.job && row.schedule != "pipeloom")) {
      continue;
    }
    bound = std::max(bound, row.lower_bound);
  }
  return bound;
}

bool BenchResult::IsPossible(Duration time) const {
  return problem.job || time == kZero || time >= lower_bound();
}

Duration BenchResult::best() const {
  Duration best = IsPossible(problem.best_known) ? problem.best_known : kZero;
  for (const BenchRow& row : rows) {
    if (row.status.ok() && (best == kZero || row.step_time < best)) {
      best = row.step_time;
    }
  }
  return best;
}

absl::Status BenchResult::unsolved() const {
  if (!status.ok()) return absl::OkStatus();
  absl::Status why =
      absl::InvalidArgumentError("none of the schedules runs on a graph");
  bool is_pipeloom = false;  // Its reason says the most.
  for (const BenchRow& row : rows) {
    if (row.status.ok()) return absl::OkStatus();
    if (is_pipeloom || row.is_answer) continue;
    why = row.status;
    is_pipeloom = row.schedule == "pipeloom";
  }
  return why;
}

const BenchRow* BenchResult::Find(const std::string& schedule,
                                  Duration budget) const {
  for (const BenchRow& row : rows) {
    if (row.status.ok() && row.schedule == schedule && row.budget == budget) {
      return &row;
    }
  }
  return nullptr;
}

Duration MostSearchTime(const std::vector<formats::SuiteProblem>& problems,
                        const BenchOptions& options) {
  Duration sum{};
  for (const formats::SuiteProblem& problem : problems) {
    for (const std::string& schedule : options.schedules) {
      if (!problem.job && !RunsOnGraphs(schedule)) continue;
      for (const Duration budget : BudgetsOf(schedule, problem, options)) {
        sum += budget * (problem.job ? problem.job->steps : 1);
      }
    }
  }
  return sum;
}

absl::StatusOr<std::vector<BenchResult>> RunBench(
    const std::vector<formats::SuiteProblem>& problems,
    const BenchOptions& options, const StudyContext& context,
    BenchJournal* journal) {
  std::vector<BenchResult> results;
  const ProgressCallback progress = context.StartProgress(
      "benchmarking", static_cast<int64_t>(problems.size()));
  for (const formats::SuiteProblem& problem : problems) {
    BenchResult& result = results.emplace_back();
    result.problem = problem;
    Loaded loaded;
    if (problem.job) {
      StudyContext quiet = context;
      quiet.warn = nullptr;
      result.status = LoadJob(*problem.job, options, quiet).status();
      if (!result.status.ok()) continue;
    } else {
      absl::StatusOr<Loaded> read = LoadGraph(problem, context.read);
      if (!read.ok()) {
        result.status = read.status();
        continue;
      }
      loaded = *std::move(read);
      result.tasks = loaded.graph.num_tasks();
    }
    for (const std::string& schedule : options.schedules) {
      if (!problem.job && !RunsOnGraphs(schedule)) continue;
      for (const Duration budget : BudgetsOf(schedule, problem, options)) {
        progress(static_cast<int64_t>(results.size()) - 1,
                 absl::StrCat(problem.name, ", ", schedule));
        BenchRow row{.schedule = schedule, .budget = budget};
        const BenchRow* const before =
            result.rows.empty() ? nullptr : &result.rows.back();
        if (before != nullptr && before->schedule == schedule &&
            before->status.ok() && !problem.job &&
            before->step_time == before->lower_bound) {
          row = *before;  // Proven optimal: more time changes nothing.
          row.budget = budget;
          result.rows.push_back(std::move(row));
          continue;
        }
        const Fingerprint key =
            KeyOf(problem, loaded.graph, schedule, budget, options);
        if (const BenchRow* known = journal->Find(key); known != nullptr) {
          row = *known;
        } else {
          row.status =
              problem.job
                  ? RunOnJob(*problem.job, options, context, progress, &row)
                  : RunOnGraph(loaded.graph, options, context, &row);
          if (context.stop.stop_requested()) {
            return absl::CancelledError("stopped");
          }
          PIPELOOM_RETURN_IF_ERROR(journal->Append(key, row));
        }
        result.rows.push_back(std::move(row));
      }
    }
    if (problem.job) continue;
    for (const auto& [name, folder] : options.answers) {
      const std::string path = absl::StrCat(folder, "/", problem.name, ".json");
      const absl::StatusOr<std::string> text = context.read(path);
      if (absl::IsNotFound(text.status())) continue;
      BenchRow row{.schedule = name, .is_answer = true};
      row.status = JudgeAnswer(loaded, path, text, &row);
      result.rows.push_back(std::move(row));
    }
  }
  NoteUnusedAnswers(results, options, context);
  return results;
}

}  // namespace pipeloom::studies
