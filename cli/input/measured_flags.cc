#include "cli/input/measured_flags.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/learned_file.h"
#include "emulator/calibration/cost_learner.h"
#include "partition/batching/batch_split.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "studies/job/job_input.h"
#include "studies/job/planned_step.h"
#include "studies/job/study_context.h"
#include "trace/captured_times.h"
#include "trace/measured_costs.h"
#include "trace/trace_files.h"
#include "trace/trace_import.h"

namespace pipeloom::cli {
namespace {

// A batch that is shuffled has no last step.
constexpr int32_t kMaxStep = 10'000;

absl::StatusOr<emulator::CostLearner> LearnWith(
    const StageGraph& measured, const studies::JobInput& input,
    const partition::PackedStep& packed, const emulator::StageCostModel& priced,
    const std::string& schedule, const PartitionFlags& partition,
    const studies::SearchSettings& settings, const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<planner::Strategy> strategy,
                            planner::MakeStrategy(schedule));
  PIPELOOM_ASSIGN_OR_RETURN(const planner::PreparedJob prepared,
                            PrepareWithPartition(input, *strategy, priced,
                                                 partition, settings, context));
  PIPELOOM_ASSIGN_OR_RETURN(
      const Microbatches microbatches,
      partition::SplitMicrobatches(input.job, packed, /*replica=*/0,
                                   prepared.partition));
  return trace::LearnFromTasks(measured, priced, prepared.partition,
                               microbatches);
}

// Returns the samples of the step that the trace says it is of; those of the
// first step if it says none, or the batch ends before it, as does a batch of
// the measured step alone.
absl::StatusOr<partition::PackedStep> StepOf(const trace::ImportedStep& trace,
                                             const studies::JobInput& input,
                                             const Context& context) {
  const int32_t number = trace.number.value_or(0);
  studies::StudyContext quiet = StudyContextOf(context);
  quiet.warn = nullptr;
  if (number > 0 && number < kMaxStep) {
    auto steps = studies::PackSteps(input, number + 1, quiet);
    if (steps.ok()) return std::move(steps->back());
  }
  if (number > 0) {
    context.warn(absl::StrFormat(
        "note: --costs-from: the trace is of step %d, which the batch %s does "
        "not reach; it is taken to be of the batch's first step",
        number, input.batch_name));
  }
  PIPELOOM_ASSIGN_OR_RETURN(auto steps, studies::PackSteps(input, 1, quiet));
  return std::move(steps.front());
}

// Returns whether a path is a file of pipeloom.capture's times; reads no more
// than its beginning, as traces may be large.
bool HasCapturedTimes(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string head(256, '\0');
  file.read(head.data(), std::ssize(head));
  head.resize(static_cast<size_t>(file.gcount()));
  return trace::IsCapturedTimes(head);
}

std::string FactorWords(const emulator::CostLearner& learned,
                        const ModelSpec& model) {
  std::string words;
  for (const ModuleSpec& module : model.modules) {
    absl::StrAppendFormat(&words, "%s%s forward %.3g, backward %.3g",
                          words.empty() ? "" : "; ", module.name,
                          learned.Factor(module.name, Pass::kForward),
                          learned.Factor(module.name, Pass::kBackward));
  }
  return words;
}

// Corrects `costs` by a file of pipeloom.capture's times.
absl::Status ApplyCaptured(const std::string& path,
                           const studies::JobInput& input,
                           const Context& context,
                           emulator::StageCostModel* costs) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<trace::CapturedModule> captured,
                            trace::ParseCapturedTimes(text, path));
  const absl::StatusOr<emulator::CostLearner> learned =
      trace::LearnFromCapture(captured, input.job, studies::CostsOf(input));
  if (!learned.ok()) {
    return absl::Status(
        learned.status().code(),
        absl::StrCat("--costs-from ", path, ": ", learned.status().message()));
  }
  SetLearned(*learned, emulator::CostLearner::kMaxFactor, costs);
  std::vector<std::string> unknown;
  for (const ModuleSpec& module : input.job.model.modules) {
    if (learned->Tasks(module.name, Pass::kForward) == 0) {
      unknown.push_back(module.name);
    }
  }
  context.warn(absl::StrFormat(
      "note: measured over priced, %s: %s%s", path,
      FactorWords(*learned, input.job.model),
      unknown.empty() ? ""
                      : absl::StrFormat("; no times of %s were measured",
                                        absl::StrJoin(unknown, ", "))));
  return absl::OkStatus();
}

}  // namespace

void AppendMeasuredFlags(MeasuredFlags* values, std::vector<Flag>* flags) {
  flags->push_back({"learned", &values->learned, "FILE",
                    "price tasks as `run --learn` has measured them"});
  flags->push_back(
      {"costs-from", &values->traces, "TRACE,...",
       "price them as in these traces of a step of the job (files, "
       "one a rank or one for all, or a folder), or by the times of "
       "pipeloom.capture in Python"});
}

absl::Status ApplyMeasured(const MeasuredFlags& flags,
                           const studies::JobInput& input,
                           const std::string& schedule,
                           const PartitionFlags& partition,
                           const studies::SearchSettings& settings,
                           const Context& context,
                           emulator::StageCostModel* costs) {
  if (flags.traces.empty()) {
    PIPELOOM_RETURN_IF_ERROR(ApplyLearned(flags.learned, costs));
    return CheckLearned(flags.learned, emulator::CostLearner::kMaxCorrection,
                        input.job, context);
  }
  if (!flags.learned.empty()) {
    return UsageError("--learned and --costs-from: give one of them");
  }
  for (const std::string& path : flags.traces) {
    if (!HasCapturedTimes(path)) continue;
    if (flags.traces.size() > 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--costs-from: %s has times of pipeloom.capture; it must be the only "
          "file: capture.save_times writes all modules to one",
          path));
    }
    return ApplyCaptured(path, input, context, costs);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<trace::TraceSource> sources,
                            trace::OpenTraces(flags.traces));
  PIPELOOM_ASSIGN_OR_RETURN(const trace::ImportedStep step,
                            trace::ImportTrace(sources));
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            StepOf(step, input, context));
  const emulator::StageCostModel priced(input.job, studies::CostsOf(input));
  // No measured step was run with a partition that is yet to be searched.
  PartitionFlags of_trace = partition;
  if (of_trace.source == "search") of_trace.source.clear();
  std::vector<std::pair<std::string, std::string>> tries = {
      {schedule, of_trace.source}};
  if (of_trace.source.empty()) {
    // The partition of the strategy's rule, and those of others.
    tries.emplace_back(schedule, "rule");
    for (const std::string& name : studies::UsualSchedules()) {
      if (name != schedule) tries.emplace_back(name, "rule");
    }
  }
  absl::Status first;
  for (const auto& [name, source] : tries) {
    of_trace.source = source;
    const absl::StatusOr<emulator::CostLearner> learned =
        LearnWith(step.plan.graph, input, packed, priced, name, of_trace,
                  settings, context);
    if (!learned.ok()) {
      if (first.ok()) first = learned.status();
      continue;
    }
    SetLearned(*learned, emulator::CostLearner::kMaxFactor, costs);
    context.warn(
        absl::StrFormat("note: measured over priced, %d tasks of %s: %s",
                        step.plan.graph.num_tasks(),
                        source.empty() || source == "rule"
                            ? absl::StrCat("strategy ", name, "'s partition")
                            : source,
                        FactorWords(*learned, input.job.model)));
    return absl::OkStatus();
  }
  return absl::Status(first.code(),
                      absl::StrCat("--costs-from: ", first.message()));
}

}  // namespace pipeloom::cli
