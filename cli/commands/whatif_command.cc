// `pipeloom whatif`: shows how a step would change with the job, the cluster or
// the batch.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "cli/input/planning_flags.h"
#include "cli/report/report.h"
#include "cli/report/whatif_files.h"
#include "cli/report/whatif_tables.h"
#include "formats/job/spec_loader.h"
#include "studies/whatif/bucket_choice.h"
#include "studies/whatif/whatif_case.h"
#include "studies/whatif/whatif_run.h"

namespace pipeloom::cli {
namespace {

constexpr int64_t kQuickEvaluations = 32;
constexpr size_t kMaxRows = 60;

class WhatIfCommand : public Command {
 public:
  CommandText text() const override {
    // A paragraph for each thing that is asked about.
    std::string questions;
    std::string about;
    for (const studies::WhatIfQuestion& q : studies::WhatIfQuestions()) {
      if (q.about != about) {
        absl::StrAppend(&questions, "\n\n", "About ", q.about, ": ");
      } else {
        absl::StrAppend(&questions, "; ");
      }
      about = q.about;
      absl::StrAppend(&questions, "`", q.name, "`: ", q.asks);
    }
    return {"whatif", "JOB --batch FILE [options]",
            "try changes of a job: sweeps and named questions",
            absl::StrCat(
                "Plans and emulates the job with other values of its fields "
                "and shows the result next to the unchanged job. --set "
                "changes a field for all configurations, --sweep tries several "
                "values; several sweeps are combined. A path is as in the job "
                "file: training.microbatches, parallel.tp, "
                "cluster.inter_node.bandwidth_bytes_per_second, "
                "model.modules[vision_encoder].precision; [*] means every "
                "item, and *0.5 as a value is a factor.\n\n"
                "--ask tries what a question needs.",
                questions,
                "; `domains`: GPUs that node faults waste, by the kind of "
                "high-bandwidth domain; `compress`: compressed gradients.\n\n"
                "With --journal an interrupted run goes on where it stopped. "
                "The search is a short one (--evaluations 32) unless told "
                "otherwise.")};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendPlanningFlags(&planning_, true, &flags);
    for (Flag& flag : flags) {
      if (flag.name == "partition") {
        flag = PartitionOfEachFlag(&planning_.partition);
      }
    }
    std::vector<std::string> names;
    for (const studies::WhatIfQuestion& q : studies::WhatIfQuestions())
      names.push_back(q.name);
    names.insert(names.end(), {"domains", "compress"});
    flags.push_back({"sweep", &sweeps_, "PATH=A,B,C",
                     "try each value; several sweeps are combined"});
    flags.push_back(
        {"ask", &questions_, "QUESTIONS", "named questions", names});
    flags.push_back({"gpus",
                     &gpus_,
                     "N",
                     "of the layouts of --ask layout, instead of the job's",
                     {},
                     1,
                     1'000'000});
    flags.push_back({"budget", &budget_, "PRICE",
                     "of all GPUs and an hour, for --ask budget"});
    flags.push_back({"prices", &prices_, "CLUSTER=PRICE,...",
                     "of a GPU and hour, for --ask budget, such as "
                     "h100-sxm=2.5,b200-sxm=5"});
    flags.push_back(OutputFlag("journal", &journal_,
                               "keep every outcome there, and go on from it",
                               Output::kNamedFile));
    flags.push_back(OutputFlag("csv", &csv_, "write the outcomes as CSV"));
    flags.push_back(OutputFlag("json", &json_, "write them as JSON"));
    flags.push_back(OutputFlag("report", &report_, "write an HTML report"));
    flags.push_back(OutputFlag("out", &out_,
                               "of a single configuration: write the first "
                               "step's plan, of its slowest replica",
                               Output::kNamedFile));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
    studies::SearchOptions& search = planning_.search;
    if (!search.evaluations && !search.deadline) {
      search.evaluations = kQuickEvaluations;
    }
    PIPELOOM_ASSIGN_OR_RETURN(const WhatIfBase read,
                              ReadWhatIfBase(name, planning_, context));
    studies::WhatIfInput input = read.input;
    const std::vector<formats::JobOverride>& base = read.changes;
    std::vector<std::string> sets;
    for (const formats::JobOverride& change : base) {
      sets.push_back(absl::StrCat(change.path, "=", change.value));
    }
    PIPELOOM_ASSIGN_OR_RETURN(std::vector<studies::WhatIfCase> cases,
                              Swept(sets, input.job));
    PIPELOOM_ASSIGN_OR_RETURN(const JobSpec job, input.job.With(base));
    // The job as it is comes first, to compare with.
    const bool compares = !sweeps_.values.empty() || !questions_.empty();
    if (compares && !sweeps_.values.empty()) {
      for (const std::string& sweep : sweeps_.values) {
        PIPELOOM_ASSIGN_OR_RETURN(const formats::JobOverride change,
                                  formats::ParseOverride(sweep));
        NoteMeasured({change}, input.base, context);
      }
      studies::WhatIfCase reference;
      reference.label = "as it is";
      reference.changes = base;
      cases.insert(cases.begin(), reference);
    }
    PIPELOOM_ASSIGN_OR_RETURN(studies::WhatIfGiven given, Given());
    if (Asked("graphs")) {
      PIPELOOM_ASSIGN_OR_RETURN(
          given.buckets,
          studies::BucketChoices(input, base, StudyContextOf(context)));
    }
    for (const std::string& question : questions_) {
      std::vector<studies::WhatIfCase> asked =
          studies::CasesOf(question, job, given);
      if (asked.empty()) NoteNothingToTry(question, job, context);
      for (studies::WhatIfCase& c : asked) {
        c.changes.insert(c.changes.begin(), base.begin(), base.end());
        cases.push_back(std::move(c));
      }
    }
    if (!out_.empty() && cases.size() != 1) {
      return UsageError("--out needs a single configuration");
    }
    const int32_t threads = search.threads > 0
                                ? static_cast<int32_t>(search.threads)
                                : static_cast<int32_t>(std::max(
                                      1u, std::thread::hardware_concurrency()));
    if (compares) {
      PIPELOOM_ASSIGN_OR_RETURN(
          input.start,
          studies::PlanStart(input, cases, threads, StudyContextOf(context)));
    }
    std::vector<studies::WhatIfOutcome> outcomes;
    if (!out_.empty()) {
      studies::PlannedStep planned;
      PIPELOOM_ASSIGN_OR_RETURN(
          studies::WhatIfOutcome outcome,
          studies::RunCase(input, cases[0], StudyContextOf(context), &planned));
      if (!outcome.ok()) return absl::FailedPreconditionError(outcome.error);
      PIPELOOM_RETURN_IF_ERROR(WritePlan(out_, planned.slowest().plan));
      outcomes.push_back(std::move(outcome));
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(
          outcomes, studies::RunCases(input, cases, threads, journal_,
                                      StudyContextOf(context)));
    }
    NoteComparison(outcomes, context);
    const std::string json = WhatIfJson(job.name, cases, outcomes);
    if (!json_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(json_, json));
    }
    if (!csv_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(
          WriteFileAtomically(csv_, WhatIfCsv(cases, outcomes)));
    }
    const std::vector<Report::NamedTable> tables = Tables(job, cases, outcomes);
    if (!report_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_,
          ReportHtml(MakeReport(job, cases, outcomes, tables, context))));
    }
    if (format_ == "json") {
      context.print(json);
    } else {
      context.print(absl::StrCat(job.name, ", batch ", input.base.batch_name,
                                 ": ", cases.size(), " configuration",
                                 cases.size() == 1 ? "" : "s", "; ",
                                 MemoryLimitText(job), "\n"));
      for (const Report::NamedTable& table : tables) {
        context.print(
            absl::StrCat("\n", table.title.empty() ? "" : table.title + "\n\n",
                         table.table.ToString()));
      }
      for (const std::string& path : {csv_, json_, report_, out_}) {
        if (!path.empty()) context.print(absl::StrCat("wrote ", path, "\n"));
      }
    }
    // The job as it is tells nothing of the changes.
    const bool changed = compares && outcomes.size() > 1;
    const auto first = outcomes.begin() + (changed ? 1 : 0);
    if (std::any_of(first, outcomes.end(),
                    [](const studies::WhatIfOutcome& o) { return o.ok(); })) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(changed && outcomes.front().ok()
                         ? "none of the changed configurations can run: "
                         : "no configuration can run: ",
                     first->error));
  }

 private:
  // Returns the configurations of --sweep. A UsageError: a path or a value of
  // them that no job has. Values that only do not fit the job are left to their
  // rows.
  absl::StatusOr<std::vector<studies::WhatIfCase>> Swept(
      const std::vector<std::string>& sets,
      const formats::JobTemplate& job) const {
    absl::StatusOr<std::vector<studies::WhatIfCase>> cases =
        studies::SweepCases(sets, sweeps_.values);
    if (!cases.ok()) return UsageError(cases.status().message());
    if (sweeps_.values.empty()) return cases;
    for (const studies::WhatIfCase& swept : *cases) {
      const absl::Status readable = job.CheckReadable(swept.changes);
      if (!readable.ok()) {
        return UsageError(absl::StrCat("--sweep: ", readable.message()));
      }
    }
    return cases;
  }

  // Returns what --gpus, --budget and --prices say.
  absl::StatusOr<studies::WhatIfGiven> Given() const {
    studies::WhatIfGiven given;
    const auto asked = [&](const char* question) {
      return std::find(questions_.begin(), questions_.end(), question) !=
             questions_.end();
    };
    if (gpus_.has_value()) {
      if (!asked("layout")) return UsageError("--gpus needs --ask layout");
      given.gpus = *gpus_;
    }
    if (!asked("budget")) {
      if (budget_.empty() && prices_.empty()) return given;
      return UsageError("--budget and --prices need --ask budget");
    }
    if (!absl::SimpleAtod(budget_, &given.budget) || !(given.budget > 0) ||
        !(given.budget < 1e12)) {
      return UsageError(absl::StrCat(
          "--ask budget needs --budget PRICE, what all GPUs may cost an hour, "
          "a number > 0",
          budget_.empty() ? "" : absl::StrCat("; it is \"", budget_, "\"")));
    }
    for (const absl::string_view part :
         absl::StrSplit(prices_, ',', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> words =
          absl::StrSplit(part, absl::MaxSplits('=', 1));
      double price = 0;
      if (!absl::SimpleAtod(words.second, &price) || !(price > 0)) {
        return UsageError(absl::StrCat("--prices: \"", part,
                                       "\" is no CLUSTER=PRICE with a price of "
                                       "a GPU and hour > 0"));
      }
      const std::vector<std::string> names = formats::ShippedClusterNames();
      if (std::find(names.begin(), names.end(), words.first) == names.end()) {
        return UsageError(absl::StrCat("--prices: there is no cluster \"",
                                       words.first, "\"; shipped are ",
                                       absl::StrJoin(names, ", ")));
      }
      given.prices.emplace_back(words.first, price);
    }
    if (given.prices.empty()) {
      return UsageError(
          "--ask budget needs --prices CLUSTER=PRICE,..., the price of a GPU "
          "and hour of each cluster that you can rent");
    }
    return given;
  }

  // Prints a note on a question without a configuration.
  static void NoteNothingToTry(const std::string& question, const JobSpec& job,
                               const Context& context) {
    if (question == "domains" || question == "compress") return;
    context.warn(absl::StrCat(
        "note: --ask ", question, " has nothing to try for this job",
        question == "layout"
            ? absl::StrCat(": DP must divide the ",
                           int64_t{job.training.microbatches} * job.parallel.dp,
                           " microbatches of a step")
            : ""));
  }

  // Returns whether steps have different numbers of samples.
  static bool SamplesDiffer(
      const std::vector<studies::WhatIfOutcome>& outcomes) {
    std::set<int64_t> samples;
    for (const studies::WhatIfOutcome& o : outcomes) {
      if (o.ok()) samples.insert(o.samples);
    }
    return samples.size() > 1;
  }

  // Prints notes on how configurations are compared.
  static void NoteComparison(
      const std::vector<studies::WhatIfOutcome>& outcomes,
      const Context& context) {
    if (SamplesDiffer(outcomes)) {
      context.warn(
          "note: not all configurations take as many samples a step: they are "
          "compared by the time of a sample");
    }
    const auto cut = std::count_if(
        outcomes.begin(), outcomes.end(),
        [](const studies::WhatIfOutcome& o) { return o.ok() && o.cuts_more; });
    if (cut == 0) return;
    context.warn(absl::StrFormat(
        "note: %d of %d configurations cut samples into more pieces than the "
        "job as it is: they train on shorter contexts, and their times are not "
        "compared",
        cut, outcomes.size()));
  }

  static std::vector<std::string> Row(const studies::WhatIfCase& c,
                                      const studies::WhatIfOutcome& o,
                                      const studies::WhatIfOutcome& first,
                                      bool best) {
    if (!o.ok()) return {c.label, o.error};
    return {c.label,
            absl::StrCat(o.gpus),
            FormatDuration(o.step_time),
            first.ok() && first.step_time > kZero && !o.cuts_more
                ? absl::StrFormat("%+.1f %%",
                                  100 * (o.seconds_per_sample() /
                                             first.seconds_per_sample() -
                                         1))
                : "-",
            absl::StrFormat("%.2f", o.samples_per_second()),
            FormatPercent(o.bubble_ratio),
            FormatPercent(o.epilogue_ratio),
            FormatPercent(o.mfu),
            FormatBytes(o.peak),
            absl::StrCat(o.peak > o.limit ? "too much" : "fits",
                         best ? ", best" : "",
                         o.cuts_more ? ", cuts samples" : "")};
  }

  static Table OutcomeTable() {
    return Table({"configuration", "GPUs", "step time", "against the first",
                  "samples/s", "bubble", "epilogue", "MFU", "peak memory",
                  "memory"});
  }

  std::vector<Report::NamedTable> Tables(
      const JobSpec& job, const std::vector<studies::WhatIfCase>& cases,
      const std::vector<studies::WhatIfOutcome>& outcomes) const {
    std::vector<Report::NamedTable> tables;
    const std::vector<bool> front = studies::ParetoFront(cases, outcomes);
    Table all = OutcomeTable();
    for (size_t i = 0; i < std::min(cases.size(), kMaxRows); ++i) {
      all.AddRow(Row(cases[i], outcomes[i], outcomes[0], front[i]));
    }
    if (cases.size() > kMaxRows) {
      all.AddRow({"...", absl::StrCat(cases.size() - kMaxRows,
                                      " more: --csv or --json has them")});
    }
    tables.push_back({"", all});
    if (cases.size() > 2) {
      Table best = OutcomeTable();
      std::vector<size_t> order;
      for (size_t i = 0; i < cases.size(); ++i) {
        if (front[i]) order.push_back(i);
      }
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return std::pair(outcomes[a].gpus, outcomes[a].seconds_per_sample()) <
               std::pair(outcomes[b].gpus, outcomes[b].seconds_per_sample());
      });
      for (size_t k = 0; k < std::min(order.size(), kMaxRows); ++k) {
        best.AddRow(
            Row(cases[order[k]], outcomes[order[k]], outcomes[0], true));
      }
      tables.push_back(
          {"Best: none is better in GPUs, time of a sample and memory together",
           best});
    }
    if (Asked("graphs")) {
      Table shapes({"configuration", "training.shape_buckets"});
      for (const studies::WhatIfCase& c : cases) {
        const std::string value = ValueOf(c, "training.shape_buckets");
        if (value.size() > 2) shapes.AddRow({c.label, value});
      }
      tables.push_back({"Tokens of each shape", shapes});
    }
    if (Asked("scale"))
      tables.push_back({"Step time by GPUs", ScaleTable(cases, outcomes)});
    if (Asked("domains")) {
      const int64_t nodes = std::max<int64_t>(400, job.cluster.num_nodes);
      tables.push_back(
          {absl::StrFormat("GPUs that node faults waste: %d nodes of %d, "
                           "groups of %d",
                           nodes, job.cluster.gpus_per_node,
                           job.parallel.gpus_per_rank()),
           DomainTable(studies::CompareDomains(job, nodes),
                       outcomes[0].ok() ? outcomes[0].mfu : 0)});
    }
    if (Asked("compress")) {
      const int64_t parameters =
          Parameters(job.model) / (job.parallel.tp * job.parallel.pp);
      const int64_t replicas = job.parallel.dp > 1 ? job.parallel.dp : 8;
      tables.push_back(
          {absl::StrFormat("Gradients of %.2f billion parameters a GPU over "
                           "%d replicas",
                           static_cast<double>(parameters) / 1e9, replicas),
           CompressionTable(
               studies::CompareCompression(job, parameters, replicas))});
    }
    return tables;
  }

  bool Asked(absl::string_view question) const {
    return std::find(questions_.begin(), questions_.end(), question) !=
           questions_.end();
  }

  // Returns a table of the best configuration for each number of GPUs.
  static Table ScaleTable(const std::vector<studies::WhatIfCase>& cases,
                          const std::vector<studies::WhatIfOutcome>& outcomes) {
    Table table(
        {"GPUs", "step time", "samples/s", "samples/s of a GPU", "efficiency"});
    double first = 0;
    for (const auto& [gpus, o] : studies::BestByGpus(cases, outcomes)) {
      const double each = o->samples_per_second() / static_cast<double>(gpus);
      if (first == 0) first = each;
      table.AddRow({absl::StrCat(gpus), FormatDuration(o->step_time),
                    absl::StrFormat("%.2f", o->samples_per_second()),
                    absl::StrFormat("%.4f", each),
                    FormatPercent(first > 0 ? each / first : 0)});
    }
    return table;
  }

  static Report MakeReport(const JobSpec& job,
                           const std::vector<studies::WhatIfCase>& cases,
                           const std::vector<studies::WhatIfOutcome>& outcomes,
                           const std::vector<Report::NamedTable>& tables,
                           const Context& context) {
    Report report;
    report.title = absl::StrCat("What if: ", job.name);
    report.subtitle = absl::StrCat(cases.size(), " configurations");
    report.command = context.command_line;
    const bool by_sample = SamplesDiffer(outcomes);
    const std::string time = by_sample ? "time of a sample, s" : "step time, s";
    Report::Scatter gpus{"Time and GPUs", "GPUs", time, {}};
    Report::Scatter memory{
        "Time and memory", "peak memory of a GPU, GiB", time, {}};
    const auto best = [&](size_t i, auto value) {
      if (outcomes[i].cuts_more) return false;
      return std::none_of(
          outcomes.begin(), outcomes.end(),
          [&](const studies::WhatIfOutcome& o) {
            const auto mine =
                std::pair(value(outcomes[i]), outcomes[i].seconds_per_sample());
            const auto its = std::pair(value(o), o.seconds_per_sample());
            return o.ok() && !o.cuts_more && its.first <= mine.first &&
                   its.second <= mine.second && its != mine;
          });
    };
    for (size_t i = 0; i < cases.size(); ++i) {
      const studies::WhatIfOutcome& o = outcomes[i];
      if (!o.ok()) continue;
      const double seconds =
          by_sample ? o.seconds_per_sample() : ToSeconds(o.step_time);
      const double gib = static_cast<double>(o.peak.count()) / (1 << 30);
      const std::string label = absl::StrFormat(
          "%s: %s, %d GPUs, %s", cases[i].label, FormatDuration(o.step_time),
          o.gpus, FormatBytes(o.peak));
      gpus.points.push_back(
          {label, static_cast<double>(o.gpus), seconds,
           best(i, [](const studies::WhatIfOutcome& x) { return x.gpus; })});
      memory.points.push_back(
          {label, gib, seconds,
           best(i, [](const studies::WhatIfOutcome& x) { return x.peak; })});
    }
    report.scatters = {gpus, memory};
    report.tables = tables;
    report.tables[0].title = "Configurations";
    report.notes = {"Every configuration is planned and emulated."};
    return report;
  }

  PlanningFlags planning_{};
  Repeated sweeps_{};
  std::vector<std::string> questions_{};
  std::optional<int64_t> gpus_{};
  std::string budget_{};
  std::string prices_{};
  std::string journal_{};
  std::string csv_{};
  std::string json_{};
  std::string report_{};
  std::string out_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeWhatIfCommand() {
  return std::make_unique<WhatIfCommand>();
}

}  // namespace pipeloom::cli
