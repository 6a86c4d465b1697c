// `pipeloom emulate`: carries out a plan in simulated time.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/commands/slow_flags.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/table.h"
#include "cli/input/attention_density.h"
#include "cli/input/plan_source.h"
#include "cli/report/backtest_tables.h"
#include "cli/report/report.h"
#include "emulator/cluster/emulate_cluster.h"
#include "emulator/stage/sample_step.h"
#include "emulator/step/emulate_step.h"
#include "formats/text/json_writer.h"
#include "trace/chrome_trace.h"
#include "trace/trace_summary.h"

namespace pipeloom::cli {
namespace {

class EmulateCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "emulate", "PLAN | JOB --batch FILE [options]",
        "time and memory of a step, by emulation alone",
        "Carries a plan out in simulated time: compute, transfers over "
        "links, waiting, memory. With JOB the first step of the batch is "
        "planned first (its slowest replica); a PLAN is taken as it "
        "is.\n\n"
        "--sharing says which transfers wait for each other: none; those "
        "from one rank to one other; all out of a rank and all into a "
        "rank; or all out of and into a network card (--ranks-per-nic), "
        "served in turn (per-nic) or at once at a share of its rate "
        "(fair-nic).\n\n"
        "A JOB's cluster file says what its network and GPUs are like, and a "
        "PLAN keeps how links are shared "
        "(docs/emulator_model.md): high-bandwidth domains, cards and how "
        "they are shared, devices and precision by node, slow GPUs and "
        "links, jitter. Options add to it or stand instead of it.\n\n"
        "Of a JOB the step of all its replicas is emulated too: equal "
        "replicas and the GPUs of a rank once, gradients reduced during "
        "the last backwards.\n\n"
        "--slow-rank 3=1.2 makes all that rank 3 computes take 1.2 times "
        "as long, --slow-link 0-1=2 its transfers from rank 0 to 1; "
        "--jitter 0.05 draws every duration --samples times with a "
        "deviation of 5 %, by --seed.\n\n"
        "--against TABLE.csv is another name of `pipeloom backtest`."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendPlanSourceFlags(&source_, &flags);
    flags.push_back(AttentionDensityFlag(&source_.attention_density, false));
    flags.push_back({"against", &against_file_, "FILE",
                     "the measured runs of a CSV, as `backtest` does"});
    flags.push_back(
        Needing({"against"},
                OutputFlag("csv", &against_.csv_out,
                           "with --against: write the comparison as CSV")));
    flags.push_back(
        Needing({"against"}, {"fit", &against_.fit, "",
                              "with --against: fit one scalar a framework"}));
    flags.push_back(
        {"sharing",
         &sharing_,
         "MODE",
         "which transfers share a link; default: as the cluster "
         "says, else per-pair",
         {"none", "per-pair", "both-ways", "per-rank", "per-nic", "fair-nic"}});
    flags.push_back({"ranks-per-nic",
                     &ranks_per_nic_,
                     "N",
                     "neighbouring ranks that share a network card; default: "
                     "as the plan or cluster says, else 1",
                     {},
                     1,
                     1e6});
    flags.push_back({"slow-rank", &slow_ranks_, "RANK=FACTOR",
                     "stragglers, several divided by commas"});
    flags.push_back({"slow-link", &slow_links_, "FROM-TO=FACTOR",
                     "slow links, several divided by commas"});
    flags.push_back({"jitter",
                     &compute_jitter_,
                     "SHARE",
                     "standard deviation of task durations, of their mean; "
                     "default: the cluster's, else 0",
                     {},
                     0,
                     1});
    flags.push_back({"link-jitter",
                     &link_jitter_,
                     "SHARE",
                     "the same of transfers; default: the cluster's, else 0",
                     {},
                     0,
                     1});
    flags.push_back({"samples",
                     &samples_,
                     "N",
                     "steps drawn with jitter; default 100",
                     {},
                     1,
                     1e6});
    flags.push_back({"blocking-sends", &blocking_sends_, "",
                     "a rank computes nothing while it sends, also if "
                     "plan or cluster do not say so"});
    flags.push_back(OutputFlag("trace", &trace_,
                               "write the timeline as Chrome trace JSON"));
    flags.push_back(OutputFlag("report", &report_, "write an HTML report"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& arguments,
                   const Context& context) override {
    if (!against_file_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(CheckOnlyAgainst(arguments));
      against_.files = {against_file_};
      against_.report = report_;
      against_.data_dir = source_.job.data_dir;
      against_.json = format_ == "json";
      against_.costs = source_.job.costs;
      against_.profile_files = source_.job.profile_files;
      return PrintBacktest(against_, context);
    }
    std::vector<std::string> args = arguments;
    PIPELOOM_RETURN_IF_ERROR(SettlePlanFile(&source_, &args, {"seed"}));
    PIPELOOM_ASSIGN_OR_RETURN(const SourcedPlan sourced,
                              GetPlan(source_, args, context));
    PIPELOOM_ASSIGN_OR_RETURN(const emulator::EmulateOptions options,
                              OptionsFor(sourced));
    const auto begin = std::chrono::steady_clock::now();
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                              emulator::EmulateStep(sourced.plan, options));
    const auto took = std::chrono::duration_cast<Duration>(
        std::chrono::steady_clock::now() - begin);
    for (const std::string& line : sourced.missing_lookups) {
      context.warn(absl::StrCat("note: not measured: ", line));
    }
    Extras extras;
    if (!sourced.replicas.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(extras.job, EmulateJob(sourced, options));
    }
    emulator::Jitter jitter{
        .compute = compute_jitter_.value_or(sourced.jitter.compute),
        .links = link_jitter_.value_or(sourced.jitter.links)};
    const bool draws = jitter.compute > 0 || jitter.links > 0;
    if (samples_ && !draws) {
      return UsageError(
          "--samples needs --jitter or --link-jitter above 0: nothing else has "
          "jitter here; add one, or leave out --samples");
    }
    if (draws) {
      jitter.samples = static_cast<int32_t>(samples_.value_or(100));
      jitter.seed = static_cast<uint64_t>(source_.search.seed.value_or(1));
      PIPELOOM_ASSIGN_OR_RETURN(
          extras.sampled,
          emulator::SampleSteps(sourced.plan, options, jitter, context.stop));
    }
    if (!trace_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          trace_, trace::ChromeTrace({{{&sourced.plan, &trace}}})));
    }
    if (!report_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_,
          ReportHtml(MakeReport(sourced.plan, trace, extras, context))));
    }
    if (format_ == "json") {
      context.print(Json(sourced, trace, took, extras));
    } else {
      PrintTable(sourced, trace, took, extras, context);
    }
    return absl::OkStatus();
  }

 private:
  // Results of emulations other than that of the one plan.
  struct Extras {
    std::optional<emulator::ClusterResult> job{};
    std::optional<emulator::SampledStep> sampled{};
  };

  // Checks that nothing is given that the comparison of --against ignores.
  absl::Status CheckOnlyAgainst(const std::vector<std::string>& args) const {
    std::string given =
        PlanningFlagsGiven(source_, {"costs", "profile", "data-dir"});
    const auto add = [&](absl::string_view name, bool is_given) {
      if (is_given) absl::StrAppend(&given, given.empty() ? "" : ", ", name);
    };
    add("PLAN or JOB", !args.empty());
    add("--plan", !source_.plan_file.empty());
    add("--learned", !source_.learned.empty());
    add("--attention-density", !source_.attention_density.empty());
    add("--sharing", sharing_.has_value());
    add("--ranks-per-nic", ranks_per_nic_.has_value());
    add("--slow-rank", !slow_ranks_.empty());
    add("--slow-link", !slow_links_.empty());
    add("--jitter", compute_jitter_.has_value());
    add("--link-jitter", link_jitter_.has_value());
    add("--samples", samples_.has_value());
    add("--blocking-sends", blocking_sends_);
    add("--trace", !trace_.empty());
    if (given.empty()) return absl::OkStatus();
    return UsageError(absl::StrCat("--against takes no ", given,
                                   ": it compares the jobs of its table; leave "
                                   "out one of them"));
  }

  static absl::Status CheckRank(const char* option, const std::string& text,
                                int32_t rank, const SourcedPlan& sourced) {
    const int32_t ranks = sourced.plan.graph.num_ranks();
    if (rank >= 0 && rank < ranks) return absl::OkStatus();
    return UsageError(
        absl::StrFormat("%s %s: there is no rank %d; ranks are 0 to %d", option,
                        text, rank, ranks - 1));
  }

  static absl::Status CheckFactor(const char* option, const std::string& text,
                                  double factor) {
    if (factor > 0 && factor <= 1e6) return absl::OkStatus();
    return UsageError(
        absl::StrFormat("%s %s: the factor is %g; it must be in (0, 1e6]",
                        option, text, factor));
  }

  absl::StatusOr<emulator::EmulateOptions> OptionsFor(
      const SourcedPlan& sourced) const {
    emulator::EmulateOptions options;
    SharedLinks& links = options.links.emplace(sourced.plan.links);
    links.blocking_sends |= blocking_sends_;
    if (sharing_) {
      links.sharing = *sharing_ == "none"        ? LinkSharing::kNone
                      : *sharing_ == "per-pair"  ? LinkSharing::kPerPair
                      : *sharing_ == "both-ways" ? LinkSharing::kBothWays
                      : *sharing_ == "per-rank"  ? LinkSharing::kPerRank
                      : *sharing_ == "per-nic"   ? LinkSharing::kPerNic
                                                 : LinkSharing::kFairNic;
    }
    if (links.sharing >= LinkSharing::kPerNic && ranks_per_nic_) {
      links.nic_of_rank.clear();
      for (int32_t r = 0; r < sourced.plan.graph.num_ranks(); ++r) {
        links.nic_of_rank.push_back(static_cast<int32_t>(r / *ranks_per_nic_));
      }
    }
    std::set<std::string> named;
    for (const std::string& text : slow_ranks_) {
      const std::vector<std::string> parts = absl::StrSplit(text, '=');
      int32_t rank = 0;
      double factor = 0;
      if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &rank) ||
          !absl::SimpleAtod(parts[1], &factor)) {
        return UsageError(absl::StrFormat(
            "--slow-rank %s: give RANK=FACTOR, such as 3=1.2", text));
      }
      PIPELOOM_RETURN_IF_ERROR(
          NameOnce("--slow-rank", text, absl::StrCat("rank ", rank), &named));
      PIPELOOM_RETURN_IF_ERROR(CheckRank("--slow-rank", text, rank, sourced));
      PIPELOOM_RETURN_IF_ERROR(CheckFactor("--slow-rank", text, factor));
      options.slow_ranks.push_back({RankId(rank), factor});
    }
    for (const std::string& text : slow_links_) {
      const std::vector<std::string> parts =
          absl::StrSplit(text, absl::ByAnyChar("-="));
      int32_t from = 0;
      int32_t to = 0;
      double factor = 0;
      if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &from) ||
          !absl::SimpleAtoi(parts[1], &to) ||
          !absl::SimpleAtod(parts[2], &factor)) {
        return UsageError(absl::StrFormat(
            "--slow-link %s: give FROM-TO=FACTOR, such as 0-1=2", text));
      }
      PIPELOOM_RETURN_IF_ERROR(NameOnce("--slow-link", text,
                                        absl::StrFormat("link %d-%d", from, to),
                                        &named));
      PIPELOOM_RETURN_IF_ERROR(CheckRank("--slow-link", text, from, sourced));
      PIPELOOM_RETURN_IF_ERROR(CheckRank("--slow-link", text, to, sourced));
      PIPELOOM_RETURN_IF_ERROR(CheckFactor("--slow-link", text, factor));
      options.slow_links.push_back({RankId(from), RankId(to), factor});
    }
    return options;
  }

  static absl::StatusOr<emulator::ClusterResult> EmulateJob(
      const SourcedPlan& sourced, const emulator::EmulateOptions& options) {
    std::vector<const ExecutionPlan*> plans;
    for (const ExecutionPlan& plan : sourced.replicas) plans.push_back(&plan);
    emulator::ClusterOptions cluster;
    cluster.step = options;
    cluster.gpus_per_rank = sourced.gpus_per_rank;
    const bool overlaps = sourced.setup.overlap != CommunicationOverlap::kNone;
    cluster.overlap_reduction = overlaps;
    cluster.gather_in_forwards = overlaps && !sourced.setup.gathers_wait;
    cluster.contention = sourced.setup.update_contention;
    cluster.clip_gradients = true;
    return emulator::EmulateCluster(plans, sourced.updates, cluster);
  }

  static void WriteExtras(const SourcedPlan& sourced, const Extras& extras,
                          formats::JsonWriter& json) {
    if (extras.job) {
      const emulator::ClusterStep& step = extras.job->step;
      const emulator::ClusterCounters& counters = extras.job->counters;
      json.Key("whole_job").BeginObject();
      json.Key("step_time_us").Micros(step.step_time());
      json.Key("tail_us").Micros(step.tail());
      if (sourced.together > kZero) {
        json.Key("together_us").Micros(sourced.together);
      }
      json.Key("slowest_replica").Int(step.slowest_replica());
      json.Key("replicas").Int(counters.replicas);
      json.Key("replicas_emulated").Int(counters.replicas_emulated);
      json.Key("gpus").Int(counters.gpus);
      json.Key("gpus_emulated").Int(counters.gpus_emulated);
      json.Key("hit_ratio").Number(counters.hit_ratio());
      json.EndObject();
    }
    if (extras.sampled) {
      const emulator::SampledStep& sampled = *extras.sampled;
      json.Key("jitter").BeginObject();
      json.Key("samples").Int(static_cast<int64_t>(sampled.samples.size()));
      json.Key("mean_us").Micros(sampled.mean);
      json.Key("p50_us").Micros(sampled.p50);
      json.Key("p90_us").Micros(sampled.p90);
      json.Key("p99_us").Micros(sampled.p99);
      json.EndObject();
    }
  }

  static void PrintExtras(const Extras& extras, const Context& context) {
    if (extras.job) {
      const emulator::ClusterStep& step = extras.job->step;
      const emulator::ClusterCounters& counters = extras.job->counters;
      context.print(absl::StrFormat(
          "whole job  %s, of which %s after the slowest pipeline (replica "
          "%d)\n%d replicas on %d GPUs: %d replicas, %d GPUs emulated (%s "
          "of all tasks known already)\n",
          FormatDuration(step.step_time()), FormatDuration(step.tail()),
          step.slowest_replica(), counters.replicas, counters.gpus,
          counters.replicas_emulated, counters.gpus_emulated,
          FormatPercent(counters.hit_ratio())));
    }
    if (extras.sampled) {
      const emulator::SampledStep& sampled = *extras.sampled;
      context.print(absl::StrFormat(
          "jitter     mean %s, p50 %s, p90 %s, p99 %s of %d samples\n",
          FormatDuration(sampled.mean), FormatDuration(sampled.p50),
          FormatDuration(sampled.p90), FormatDuration(sampled.p99),
          sampled.samples.size()));
    }
  }

  std::string Json(const SourcedPlan& sourced, const StepTrace& trace,
                   Duration took, const Extras& extras) const {
    const ExecutionPlan& plan = sourced.plan;
    const trace::TraceSummary summary = trace::Summarize(plan.graph, trace);
    formats::JsonWriter json(true);
    json.BeginObject().Key("job").String(plan.job);
    json.Key("step").Int(plan.step).Key("replica").Int(plan.replica);
    json.Key("strategy").String(plan.schedule);
    json.Key("schedule").String(plan.schedule);
    json.Key("step_time_us").Micros(trace.step_time());
    json.Key("lower_bound_us");
    // It holds for the durations of the plan.
    if (plan.lower_bound > kZero && slow_ranks_.empty() &&
        slow_links_.empty()) {
      json.Micros(plan.lower_bound);
    } else {
      json.Null();
    }
    json.Key("bubble_ratio").Number(summary.bubble_ratio);
    json.Key("epilogue_ratio").Number(summary.epilogue_ratio);
    json.Key("mfu");
    if (const double mfu = Mfu(plan, trace.step_time()); mfu > 0) {
      json.Number(mfu);
    } else {
      json.Null();
    }
    json.Key("peak_bytes").BeginArray();
    for (const trace::RankSummary& rank : summary.ranks)
      json.Count(rank.peak.total);
    json.EndArray().Key("ranks").BeginArray();
    for (const RankId r : plan.graph.rank_ids()) {
      const trace::RankSummary& rank = summary.ranks[r];
      json.BeginObject().Key("rank").Int(r.value());
      json.Key("busy_us").Micros(rank.busy());
      json.Key("warm_up_us").Micros(rank.warm_up);
      json.Key("stalls_us").Micros(rank.stalls);
      json.Key("drain_us").Micros(rank.drain);
      json.Key("epilogue_us").Micros(rank.epilogue);
      json.Key("peak_at_us").Micros(rank.peak.at - kStepStart);
      json.Key("peak_items_bytes").BeginObject();
      for (int i = 0; i < kNumMemoryItems; ++i) {
        json.Key(MemoryItemName(static_cast<MemoryItem>(i)));
        json.Count(rank.peak.items[i]);
      }
      json.EndObject().EndObject();
    }
    json.EndArray().Key("emulation_us").Micros(took);
    if (sourced.cache) {
      json.Key("cache_hits").Int(sourced.cache->hits);
      json.Key("cache_misses").Int(sourced.cache->misses);
    }
    json.Key("missing_lookups").BeginArray();
    for (const std::string& line : sourced.missing_lookups) json.String(line);
    json.EndArray();
    WriteExtras(sourced, extras, json);
    return json.EndObject().text() + "\n";
  }

  void PrintTable(const SourcedPlan& sourced, const StepTrace& trace,
                  Duration took, const Extras& extras,
                  const Context& context) const {
    const ExecutionPlan& plan = sourced.plan;
    const trace::TraceSummary summary = trace::Summarize(plan.graph, trace);
    context.print(absl::StrFormat(
        "%s, strategy %s, step %d, replica %d: %d tasks on %d ranks%s\n\n"
        "step time  %s\nbubble     %s\nepilogue   %s\nMFU        %s\n"
        "emulated in %s, %.0f ns a task\n",
        plan.job, plan.schedule, plan.step, plan.replica,
        plan.graph.num_tasks(), plan.graph.num_ranks(),
        sourced.memory_limit.empty() ? ""
                                     : absl::StrCat(", ", sourced.memory_limit),
        FormatDuration(trace.step_time()), FormatPercent(summary.bubble_ratio),
        FormatPercent(summary.epilogue_ratio),
        FormatKnownPercent(Mfu(plan, trace.step_time())), FormatDuration(took),
        static_cast<double>(took.count()) /
            std::max(1, plan.graph.num_tasks())));
    if (sourced.cache) {
      const double total =
          static_cast<double>(sourced.cache->hits + sourced.cache->misses);
      context.print(absl::StrFormat(
          "stage costs: %d priced, %d known already (%s)\n",
          sourced.cache->misses, sourced.cache->hits,
          FormatPercent(total > 0
                            ? static_cast<double>(sourced.cache->hits) / total
                            : 0)));
    }
    PrintExtras(extras, context);
    Table table({"rank", "busy", "warm-up", "stalls", "drain", "epilogue",
                 "peak memory", "weights", "gradients", "optimizer",
                 "activations", "received", "sent", "overhead"});
    const bool has_memory = trace::HasMemory(trace);
    const auto bytes = [&](Bytes b) {
      return has_memory ? FormatBytes(b) : std::string("-");
    };
    const auto item = [&](const trace::RankSummary& rank, MemoryItem i) {
      return bytes(rank.peak.items[static_cast<int>(i)]);
    };
    for (const RankId r : plan.graph.rank_ids()) {
      const trace::RankSummary& rank = summary.ranks[r];
      table.AddRow(
          {absl::StrCat("rank ", r.value()), FormatDuration(rank.busy()),
           FormatDuration(rank.warm_up), FormatDuration(rank.stalls),
           FormatDuration(rank.drain), FormatDuration(rank.epilogue),
           bytes(rank.peak.total), item(rank, MemoryItem::kWeights),
           item(rank, MemoryItem::kGradients),
           item(rank, MemoryItem::kOptimizer),
           item(rank, MemoryItem::kActivations),
           item(rank, MemoryItem::kReceived), item(rank, MemoryItem::kSent),
           item(rank, MemoryItem::kOverhead)});
    }
    context.print(absl::StrCat("\n", table.ToString()));
    for (const std::string& path : {trace_, report_}) {
      if (!path.empty()) context.print(absl::StrCat("wrote ", path, "\n"));
    }
  }

  static Report MakeReport(const ExecutionPlan& plan, const StepTrace& trace,
                           const Extras& extras, const Context& context) {
    const trace::TraceSummary summary = trace::Summarize(plan.graph, trace);
    Report report;
    report.title = absl::StrCat("Emulation of ", plan.job);
    report.subtitle = absl::StrFormat(
        "strategy %s, step %d, replica %d, %d tasks on %d "
        "ranks",
        plan.schedule, plan.step, plan.replica, plan.graph.num_tasks(),
        plan.graph.num_ranks());
    report.figures = {
        {"step time", FormatDuration(trace.step_time()), ""},
        {"bubble", FormatPercent(summary.bubble_ratio), "idle rank time"},
        {"epilogue", FormatPercent(summary.epilogue_ratio),
         "rank time of gradient reduction and optimizer"},
        {"MFU", FormatKnownPercent(Mfu(plan, trace.step_time())),
         "of bf16 peak"}};
    report.command = context.command_line;
    report.steps = {{.title = absl::StrCat("Step ", plan.step),
                     .plan = &plan,
                     .trace = &trace}};
    report.notes = {"Times and memory are emulated."};
    if (extras.job) {
      const emulator::ClusterStep& step = extras.job->step;
      report.figures.push_back({"whole job", FormatDuration(step.step_time()),
                                absl::StrCat(FormatDuration(step.tail()),
                                             " after the slowest pipeline")});
    }
    if (extras.sampled) {
      const emulator::SampledStep& sampled = *extras.sampled;
      Table table({"samples", "mean", "p50", "p90", "p99"});
      table.AddRow({absl::StrCat(sampled.samples.size()),
                    FormatDuration(sampled.mean), FormatDuration(sampled.p50),
                    FormatDuration(sampled.p90), FormatDuration(sampled.p99)});
      report.tables.push_back({"Step time with jitter", std::move(table)});
      report.notes.emplace_back(
          "Each sample with jitter draws all durations; the timeline shows "
          "the step without.");
    }
    return report;
  }

  PlanSource source_{};
  std::string against_file_{};
  BacktestFlags against_{};
  std::optional<std::string> sharing_{};
  bool blocking_sends_ = false;
  std::optional<int64_t> ranks_per_nic_{};
  std::vector<std::string> slow_ranks_{};
  std::vector<std::string> slow_links_{};
  std::optional<double> compute_jitter_{};  // Absent: the cluster's.
  std::optional<double> link_jitter_{};
  std::optional<int64_t> samples_{};
  std::string trace_{};
  std::string report_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeEmulateCommand() {
  return std::make_unique<EmulateCommand>();
}

}  // namespace pipeloom::cli
