#include "cli/studies/partition_layouts.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "cli/console/table.h"
#include "emulator/cost/profile_cost.h"
#include "formats/job/partition_reader.h"

namespace pipeloom::cli {
namespace {

constexpr size_t kRowsShown = 12;

std::string FateWords(planner::LayoutFate fate) {
  switch (fate) {
    case planner::LayoutFate::kNoMemory:
      return "does not fit";
    case planner::LayoutFate::kBound:
      return "cannot be faster";
    case planner::LayoutFate::kNotTried:
      return "not tried";
    case planner::LayoutFate::kScreened:
      return "screened";
    case planner::LayoutFate::kSearched:
      return "searched";
  }
  return "";
}

}  // namespace

void AppendLayoutFlags(LayoutFlags* values, std::vector<Flag>* flags) {
  flags->push_back({"layouts", &values->layouts, "",
                    "search the job's tp, cp, ep, pp and dp too"});
  flags->push_back({"gpus",
                    &values->gpus,
                    "N",
                    "with --layouts: GPUs of each layout; 0: the job's",
                    {},
                    0,
                    1e9});
  flags->push_back({"by-module", &values->by_module, "",
                    "with --layouts: also smaller tp and cp for modules other "
                    "than the largest, whose copies share a rank's GPUs"});
  const struct {
    const char* name;
    int64_t* value;
    const char* help;
  } sizes[] = {
      {"tp", &values->tp, "with --layouts: tensor parallelism; 0: any"},
      {"cp", &values->cp, "with --layouts: context parallelism; 0: any"},
      {"ep", &values->ep, "with --layouts: expert parallelism; 0: any"},
      {"pp", &values->pp, "with --layouts: pipeline ranks; 0: any"},
      {"dp", &values->dp, "with --layouts: replicas; 0: any"}};
  for (const auto& size : sizes) {
    flags->push_back({size.name, size.value, "N", size.help, {}, 0, 65536});
  }
}

planner::PriceLayout PricesOf(const studies::JobInput& input) {
  studies::JobInput priced = input;
  priced.batch = {};
  const std::shared_ptr<const emulator::OpCostModel> first =
      studies::CostsOf(priced);
  return [priced, first](const JobSpec& job) {
    // Layouts are many, so they share the large tables of measurements.
    if (job.cluster == priced.job.cluster) {
      auto costs = emulator::OpCostsForLayout(*first, job.parallel);
      if (costs != nullptr) return costs;
    }
    studies::JobInput one = priced;
    one.job = job;
    return studies::CostsOf(one);
  };
}

absl::Status CheckLayoutFlags(const LayoutFlags& flags) {
  if (flags.layouts ||
      (!flags.by_module && std::max({flags.gpus, flags.tp, flags.cp, flags.ep,
                                     flags.pp, flags.dp}) == 0)) {
    return absl::OkStatus();
  }
  return UsageError(
      "--gpus, --tp, --cp, --ep, --pp, --dp and --by-module are for --layouts; "
      "without it the layout is the job's");
}

absl::StatusOr<planner::LayoutSearchResult> RunLayoutSearch(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const LayoutFlags& flags, const planner::PartitionSearchOptions& search,
    const Context& context) {
  planner::LayoutSearchOptions options;
  options.fixed = {.gpus = flags.gpus,
                   .tp = static_cast<int32_t>(flags.tp),
                   .cp = static_cast<int32_t>(flags.cp),
                   .ep = static_cast<int32_t>(flags.ep),
                   .pp = static_cast<int32_t>(flags.pp),
                   .dp = static_cast<int32_t>(flags.dp),
                   .by_module = flags.by_module};
  options.search = search;
  Progress progress(context, "searching layouts", 100);
  options.progress = [&](int32_t done, int32_t all, Duration best) {
    progress.Set(int64_t{100} * done / std::max(all, 1),
                 absl::StrCat("best ", FormatDuration(best)));
  };
  return planner::SearchLayout(strategy, input.job,
                               studies::SampleOf(input.batch), PricesOf(input),
                               options);
}

std::string LayoutWords(const ParallelLayout& layout,
                        const std::vector<ModuleParallelism>& modules) {
  std::string words = absl::StrFormat("tp %d", layout.tp);
  if (layout.cp > 1) absl::StrAppend(&words, " cp ", layout.cp);
  if (layout.ep > 1) absl::StrAppend(&words, " ep ", layout.ep);
  absl::StrAppendFormat(&words, " pp %d dp %d", layout.pp, layout.dp);
  for (const ModuleParallelism& own : modules) {
    absl::StrAppend(&words, ", ", own.module);
    if (own.tp > 0) absl::StrAppend(&words, " tp ", own.tp);
    if (own.cp > 0 && layout.cp > 1) absl::StrAppend(&words, " cp ", own.cp);
  }
  return words;
}

std::string LayoutReport(const planner::LayoutSearchResult& result) {
  Table table({"layout", "microbatches", "step time", "bound", ""});
  for (const planner::LayoutOutcome& o : result.layouts) {
    if (table.rows().size() > kRowsShown) break;
    table.AddRow(
        {LayoutWords(o.layout, o.modules), absl::StrCat(o.microbatches),
         o.step_time > kZero ? FormatDuration(o.step_time) : "-",
         o.bound > kZero ? FormatDuration(o.bound) : "-", FateWords(o.fate)});
  }
  std::string text = table.ToString();
  if (result.layouts.size() > kRowsShown) {
    const auto count = [&](planner::LayoutFate fate) {
      return std::count_if(
          result.layouts.begin() + static_cast<int64_t>(kRowsShown),
          result.layouts.end(),
          [&](const planner::LayoutOutcome& o) { return o.fate == fate; });
    };
    absl::StrAppendFormat(
        &text, "and %d more: %d slower, %d cannot be faster, %d do not fit\n",
        result.layouts.size() - kRowsShown,
        count(planner::LayoutFate::kScreened) +
            count(planner::LayoutFate::kSearched),
        count(planner::LayoutFate::kBound),
        count(planner::LayoutFate::kNoMemory));
  }
  return text;
}

absl::Status TakeLayoutOfFile(const PartitionFlags& partition,
                              const JobFlags& flags, const Context& context,
                              studies::JobInput* input) {
  const std::string& source = partition.source;
  if (source.empty() || source == "dip" || source == "search") {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> text = ReadFile(source);
  if (!text.ok()) return absl::OkStatus();  // PrepareWithPartition says why.
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::optional<formats::PartitionLayout> layout,
      formats::ParsePartitionLayout(*text, source));
  if (!layout.has_value()) return absl::OkStatus();
  JobSpec& job = input->job;
  const std::string before = absl::StrFormat(
      "%s, %d microbatches", LayoutWords(job.parallel, job.module_parallelism),
      job.training.microbatches);
  const JobSpec own = job;
  const ContextParallelism context_kind = job.parallel.context;
  job.parallel = layout->parallel;
  job.parallel.context = context_kind;
  job.module_parallelism = layout->modules;
  if (!flags.microbatches.has_value() && layout->microbatches > 0) {
    job.training.microbatches = layout->microbatches;
  }
  const absl::Status valid = ValidateJobSpec(job);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--partition ", source, ": its layout is ",
                     LayoutWords(job.parallel, job.module_parallelism), ": ",
                     valid.message()));
  }
  if (flags.replicas > job.parallel.dp) {
    return UsageError(absl::StrFormat("--replicas %d: the layout of %s has %d",
                                      flags.replicas, source, job.parallel.dp));
  }
  input->replicas = flags.replicas > 0 ? static_cast<int32_t>(flags.replicas)
                                       : job.parallel.dp;
  if (job == own) return absl::OkStatus();
  context.warn(absl::StrFormat(
      "note: %s has its own layout: %s, %d microbatches; job %s has %s. The "
      "file's is used",
      source, LayoutWords(job.parallel, job.module_parallelism),
      job.training.microbatches, job.name, before));
  return absl::OkStatus();
}

}  // namespace pipeloom::cli
