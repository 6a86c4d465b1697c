#include "cli/commands/trainer_output.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/plan_file.h"
#include "ir/plan/trainer.h"
#include "planner/strategies/registry.h"

namespace pipeloom::cli {
namespace {

// Returns the path with another extension, and `suffix` before it.
std::string NextTo(const std::string& path, absl::string_view suffix,
                   absl::string_view extension) {
  const size_t name = path.find_last_of('/') + 1;
  const size_t dot = path.find_last_of('.');
  return absl::StrCat(
      path.substr(0,
                  dot == std::string::npos || dot <= name ? path.size() : dot),
      suffix, ".", extension);
}

// How far from the job's number of microbatches another is looked for.
constexpr int32_t kNearMicrobatches = 16;

// The number of microbatches of a replica's step.
struct Counted {
  size_t step = 0;
  int32_t replica = 0;
  size_t count = 0;
  std::string ToString() const {
    return absl::StrFormat("step %d, replica %d has %d", step, replica, count);
  }
};

std::vector<Counted> CountsOf(const std::vector<partition::PackedStep>& packed,
                              int32_t replicas) {
  std::vector<Counted> counts;
  for (size_t s = 0; s < packed.size(); ++s) {
    for (int32_t r = 0; r < replicas; ++r) {
      counts.push_back({s, r, packed[s].packed[static_cast<size_t>(r)].size()});
    }
  }
  return counts;
}

bool AllAsMany(const std::vector<Counted>& counts) {
  return absl::c_all_of(counts, [&](const Counted& one) {
    return one.count == counts.front().count;
  });
}

// Returns the number of microbatches next to the job's with which all steps
// have as many; 0: none was found.
int32_t AnotherNumber(studies::JobInput input, size_t num_steps,
                      const Context& context) {
  studies::StudyContext quiet = StudyContextOf(context);
  quiet.warn = nullptr;
  const int32_t asked = input.job.training.microbatches;
  for (int32_t distance = 1; distance <= kNearMicrobatches; ++distance) {
    for (const int32_t number : {asked - distance, asked + distance}) {
      if (number < 1) continue;
      input.job.training.microbatches = number;
      const auto packed =
          studies::PackSteps(input, static_cast<int64_t>(num_steps), quiet);
      if (!packed.ok()) continue;
      const std::vector<Counted> counts = CountsOf(*packed, input.replicas);
      if (static_cast<int32_t>(counts.front().count) == number &&
          AllAsMany(counts)) {
        return number;
      }
    }
  }
  return 0;
}

// Returns whether the trainer runs plans with different numbers of
// microbatches: its launch arguments and schedule files have one number.
bool MayDiffer(const TrainerLimits& trainer) {
  return trainer.everything || trainer.order == PassOrder::kAny;
}

// Returns whether the trainer loads one schedule file at its start, for all
// steps and replicas.
bool LoadsOneFile(const TrainerLimits& trainer) {
  return trainer.name == "torchtitan";
}

std::string OneFileNote(const TrainerLimits& trainer) {
  return absl::StrCat(trainer.name,
                      " loads one file at its start, for all steps and "
                      "replicas: the one named is the first plan's, and the "
                      "others' times are those of their own files");
}

constexpr absl::string_view kAsMany =
    "every step and replica needs as many microbatches, but ";

// Returns FailedPrecondition if steps have different numbers of microbatches
// and the trainer cannot run that.
absl::Status CheckCounts(const TrainerLimits& trainer,
                         const studies::JobInput& input,
                         const std::vector<partition::PackedStep>& packed,
                         const Context& context) {
  if (MayDiffer(trainer)) return absl::OkStatus();
  const std::vector<Counted> counts = CountsOf(packed, input.replicas);
  if (AllAsMany(counts)) return absl::OkStatus();
  const auto [fewest, most] = std::minmax_element(
      counts.begin(), counts.end(),
      [](const Counted& a, const Counted& b) { return a.count < b.count; });
  const int32_t other = AnotherNumber(input, packed.size(), context);
  return CannotExecute(
      trainer,
      absl::StrFormat(
          "%s%s and %s, as the samples do not fill the %d that "
          "training.microbatches asks for; %s",
          kAsMany, fewest->ToString(), most->ToString(),
          input.job.training.microbatches,
          other > 0
              ? absl::StrFormat("with --microbatches %d all have as many",
                                other)
              : "take other samples, or a larger training.microbatch_tokens"));
}

// Returns the path of a schedule file, or of the plan where the trainer takes
// that, if plans go to `out`.
std::string SchedulePath(const TrainerOutput& output,
                         const std::vector<studies::PlannedStep>& steps,
                         size_t step, size_t replica, const std::string& out) {
  const std::string plan = PlanPath(out, steps[step].step, steps.size() > 1,
                                    steps[step].replicas[replica].plan.replica);
  const std::string& extension = output.schedules[step][replica].extension;
  return extension.empty() ? plan : NextTo(plan, "", extension);
}

std::string NameOfPlan(const studies::PlannedStep& step, size_t replica) {
  return absl::StrCat("step ", step.step, ", replica ",
                      step.replicas[replica].plan.replica);
}

// Returns comments on schedule files that have no place for them: which plan a
// file is of where there are several, and in which order its microbatches are
// fed.
std::string PlanComments(const TrainerLimits& trainer,
                         const TrainerOutput& output,
                         const std::vector<studies::PlannedStep>& steps,
                         const std::string& out) {
  std::string text;
  if (output.schedules[0][0].extension != "csv") return text;
  const bool several = steps.size() * steps[0].replicas.size() > 1;
  if (several && LoadsOneFile(trainer)) {
    absl::StrAppend(&text, "# ", OneFileNote(trainer), "\n");
  }
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t r = 0; r < steps[s].replicas.size(); ++r) {
      const std::vector<int32_t>& order = output.schedules[s][r].feed_order;
      const std::string file =
          several && !out.empty() ? SchedulePath(output, steps, s, r, out) : "";
      const bool is_fed = !order.empty();
      if (file.empty() && !is_fed) continue;
      absl::StrAppend(&text, "# ", NameOfPlan(steps[s], r),
                      file.empty() ? "" : ", ", file,
                      is_fed ? ": feed microbatches in the order " : "",
                      is_fed ? absl::StrJoin(order, ",") : "", "\n");
    }
  }
  return text;
}

}  // namespace

Flag TrainerFlag(std::string* trainer, absl::string_view help) {
  Flag flag{"for", trainer, "TRAINER",
            absl::StrCat(help, "; default: pipeloom, everything")};
  for (const TrainerLimits& one : Trainers()) {
    flag.choices.emplace_back(one.name);
  }
  return flag;
}

absl::StatusOr<std::unique_ptr<planner::Strategy>> MakeStrategyFor(
    absl::string_view trainer, absl::string_view strategy) {
  const TrainerLimits* const limits = FindTrainer(trainer);
  if (trainer.empty() || limits == nullptr || limits->everything) {
    return planner::MakeStrategy(strategy);
  }
  if (strategy != "pipeloom") {
    return UsageError(absl::StrCat(
        "--for ", trainer, " with strategy ", strategy,
        ": only pipeloom plans within a trainer's limits; leave one out"));
  }
  return std::make_unique<planner::TrainerStrategy>(*limits);
}

planner::TrainerStrategy* AsTrainerStrategy(planner::Strategy* strategy) {
  return dynamic_cast<planner::TrainerStrategy*>(strategy);
}

PartitionFlags PartitionFlagsFor(const planner::TrainerStrategy* trainer,
                                 const PartitionFlags& flags) {
  PartitionFlags own = flags;
  if (trainer != nullptr && own.source.empty()) own.source = "rule";
  return own;
}

absl::StatusOr<planner::PreparedJob> PrepareForTrainer(
    const studies::JobInput& input,
    const std::vector<partition::PackedStep>& packed,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const studies::SearchSettings& settings, const Context& context,
    planner::TrainerStrategy* strategy) {
  if (settings.robust.has_value()) {
    return UsageError(absl::StrCat("--for ", strategy->trainer().name,
                                   " with --robust: use one of the two"));
  }
  PIPELOOM_RETURN_IF_ERROR(
      CheckCounts(strategy->trainer(), input, packed, context));
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::PreparedJob prepared,
      PrepareWithPartition(input, *strategy, costs,
                           PartitionFlagsFor(strategy, flags), settings,
                           context));
  PIPELOOM_RETURN_IF_ERROR(
      strategy->FixRecompute(prepared, packed, input.replicas, context.stop));
  return prepared;
}

absl::StatusOr<TrainerOutput> TrainerOutputOf(
    const planner::TrainerStrategy& strategy,
    const std::vector<studies::PlannedStep>& steps) {
  TrainerOutput output;
  const auto note = [&](const std::string& text) {
    if (std::find(output.notes.begin(), output.notes.end(), text) ==
        output.notes.end()) {
      output.notes.push_back(text);
    }
  };
  for (const studies::PlannedStep& step : steps) {
    output.schedules.emplace_back();
    for (const planner::PlanResult& result : step.replicas) {
      PIPELOOM_ASSIGN_OR_RETURN(
          adapters::TrainerFile file,
          adapters::ScheduleFileOf(strategy.trainer(), result.plan));
      const std::string of = NameOfPlan(step, output.schedules.back().size());
      for (const std::string& text : file.notes) {
        note(steps.size() * step.replicas.size() > 1
                 ? absl::StrCat(of, ": ", text)
                 : text);
      }
      output.schedules.back().push_back(std::move(file));
      // The launch is for all plans.
      adapters::TrainerFile& first = output.schedules[0][0];
      const adapters::TrainerFile& last = output.schedules.back().back();
      first.rows_differ |= last.rows_differ;
      if (MayDiffer(strategy.trainer())) {
        first.most_microbatches =
            std::max(first.most_microbatches, last.most_microbatches);
        first.fewest_microbatches =
            std::min(first.fewest_microbatches, last.fewest_microbatches);
      } else if (last.most_microbatches != first.most_microbatches ||
                 last.group != first.group) {
        return CannotExecute(
            strategy.trainer(),
            absl::StrFormat(
                "%s%s has %d in groups of %d, and the first %d in groups of %d",
                kAsMany, of, last.most_microbatches, last.group,
                first.most_microbatches, first.group));
      }
    }
  }
  if (steps.size() * steps[0].replicas.size() > 1 &&
      LoadsOneFile(strategy.trainer())) {
    note(OneFileNote(strategy.trainer()));
  }
  return output;
}

absl::StatusOr<std::string> LaunchArgumentsOf(
    const planner::TrainerStrategy& strategy, const planner::PreparedJob& job,
    const TrainerOutput& output, const std::vector<studies::PlannedStep>& steps,
    const std::string& out) {
  const std::string name = out.substr(out.find_last_of('/') + 1);
  const std::string first =
      name.empty() ? "" : SchedulePath(output, steps, 0, 0, name);
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::string arguments,
      adapters::LaunchArguments(
          strategy.trainer(), job.costs->job(), job.partition,
          strategy.recompute().value_or(RecomputeSetting{}),
          output.schedules[0][0], first));
  return absl::StrCat(arguments,
                      PlanComments(strategy.trainer(), output, steps, name));
}

absl::string_view LaunchExtension(const TrainerLimits& trainer) {
  return trainer.name == "torchtitan" ? "py" : "txt";
}

absl::StatusOr<std::vector<std::string>> WriteTrainerOutput(
    const TrainerOutput& output, const std::string& arguments,
    const TrainerLimits& trainer,
    const std::vector<studies::PlannedStep>& steps, const std::string& out) {
  std::vector<std::string> written;
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t r = 0; r < steps[s].replicas.size(); ++r) {
      const adapters::TrainerFile& file = output.schedules[s][r];
      if (file.extension.empty()) continue;
      const std::string path = SchedulePath(output, steps, s, r, out);
      if (path == PlanPath(out, steps[s].step, steps.size() > 1,
                           steps[s].replicas[r].plan.replica)) {
        return UsageError(
            absl::StrCat("--out ", out,
                         ": that is the name of the trainer's file; plans "
                         "end in .pb or .txt"));
      }
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(path, file.text));
      written.push_back(path);
    }
  }
  const std::string launch = NextTo(out, "-launch", LaunchExtension(trainer));
  PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(launch, arguments));
  written.push_back(launch);
  return written;
}

}  // namespace pipeloom::cli
