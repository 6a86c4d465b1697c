#include "cli/report/explain_words.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/console/flags.h"
#include "cli/console/table.h"

namespace pipeloom::cli {
namespace {

constexpr size_t kMaxWaits = 5;
constexpr int kBar = 30;

std::string ModuleOf(const StageGraph& graph, const Task& task) {
  return graph.module_names()[static_cast<size_t>(task.module.value())];
}

}  // namespace

std::string BubbleWords(const StageGraph& graph, const StepTrace& trace,
                        const trace::TraceAnalysis& analysis, RankId only) {
  const double whole = std::max(1e-12, ToSeconds(trace.step_time()));
  std::vector<std::string> head = {"why ranks are idle", "idle"};
  std::vector<int> shown;
  for (int k = 0; k < trace::kNumBubbleKinds; ++k) {
    Duration sum{};
    for (const trace::BubbleTimes& times : analysis.bubbles) {
      sum += times[static_cast<size_t>(k)];
    }
    if (sum == kZero) continue;
    shown.push_back(k);
    head.emplace_back(trace::BubbleName(static_cast<trace::BubbleKind>(k)));
  }
  head.emplace_back("");
  Table table(head);
  for (const RankId r : graph.rank_ids()) {
    if (!only.is_none() && r != only) continue;
    const trace::BubbleTimes& times = analysis.bubbles[r];
    const double idle = ToSeconds(trace::Total(times)) / whole;
    std::vector<std::string> row = {absl::StrCat("rank ", r.value()),
                                    FormatPercent(idle)};
    for (const int k : shown) {
      row.push_back(
          FormatPercent(ToSeconds(times[static_cast<size_t>(k)]) / whole));
    }
    row.push_back(std::string(
        static_cast<size_t>(std::clamp(idle, 0.0, 1.0) * kBar + 0.5), '.'));
    table.AddRow(row);
  }
  return absl::StrCat(
      "\n", table.ToString(), "\n",
      WrapText("dependency: what is awaited waits itself. imbalance: the "
               "awaited rank has more to do. order: a task that would fit "
               "stood ready. memory: the same, but there was no room.",
               0),
      "\n");
}

std::string WaitWords(const StageGraph& graph,
                      const trace::TraceAnalysis& analysis,
                      MicrobatchId microbatch) {
  const auto waited = [&](TaskId t) {
    return analysis.HasSpan(t)
               ? std::max(kZero, analysis.start[t] - analysis.causes[t].ready)
               : kZero;
  };
  if (microbatch.is_none()) {
    // Weight gradients do not count, as they are meant to wait.
    std::map<MicrobatchId, Duration> sums;
    for (const TaskId t : graph.task_ids()) {
      if (graph.task(t).pass != Pass::kWeightGrad) {
        sums[graph.task(t).microbatch] += waited(t);
      }
    }
    Duration most{-1};
    for (const auto& [id, sum] : sums) {
      if (sum > most) {
        most = sum;
        microbatch = id;
      }
    }
    if (microbatch.is_none()) return "";
  }
  std::vector<TaskId> tasks;
  Duration sum{};
  SimTime first = SimTime::max();
  SimTime last = kStepStart;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (task.microbatch != microbatch || !analysis.HasSpan(t)) continue;
    first = std::min(first, analysis.start[t]);
    last = std::max(last, analysis.end[t]);
    if (task.pass == Pass::kWeightGrad) continue;
    sum += waited(t);
    tasks.push_back(t);
  }
  if (tasks.empty()) {
    return absl::StrFormat("\nThere is no microbatch %d.\n",
                           microbatch.value());
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](TaskId a, TaskId b) { return waited(a) > waited(b); });
  std::string text = absl::StrFormat(
      "\nMicrobatch %d is in the pipeline for %s, from %s to %s. Its forwards "
      "and\nbackwards stand ready for %s together before their ranks take "
      "them; longest:\n",
      microbatch.value(), FormatDuration(last - first),
      FormatDuration(first - kStepStart), FormatDuration(last - kStepStart),
      FormatDuration(sum));
  for (size_t i = 0; i < std::min(tasks.size(), kMaxWaits); ++i) {
    const TaskId t = tasks[i];
    if (waited(t) == kZero) break;
    absl::StrAppend(
        &text, "  ",
        WrapText(absl::StrFormat(
                     "%s on rank %d: ready at %s, began %s later, as %s.",
                     DescribeTask(graph, t), graph.task(t).rank.value(),
                     FormatDuration(analysis.causes[t].ready - kStepStart),
                     FormatDuration(waited(t)),
                     trace::Words(graph, analysis.causes[t])),
                 4, 2),
        "\n");
  }
  return text;
}

std::string MemoryLimitWords(const StageGraph& graph, const StepTrace& trace,
                             const trace::TraceAnalysis& analysis) {
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(trace);
  RankId rank;
  double fullest = -1;
  for (const RankId r : graph.rank_ids()) {
    if (!peaks.Contains(r)) continue;
    const Bytes limit = graph.rank(r).memory.limit;
    const auto total = static_cast<double>(peaks[r].total.count());
    const double full = limit > Bytes(0)
                            ? total / static_cast<double>(limit.count())
                            : total * 1e-30;
    if (full > fullest) {
      fullest = full;
      rank = r;
    }
  }
  if (rank.is_none()) return "";
  const MemoryPeak& peak = peaks[rank];
  const Bytes limit = graph.rank(rank).memory.limit;
  std::map<std::string, Bytes> held;
  std::set<MicrobatchId> in_flight;
  std::map<std::pair<int32_t, int32_t>, Bytes> by_microbatch;
  for (const TaskId t : graph.tasks_of(rank)) {
    const Task& task = graph.task(t);
    if (!analysis.HasSpan(t)) continue;
    Bytes mine;
    if (analysis.start[t] <= peak.at) mine += task.alloc;
    if (analysis.end[t] <= peak.at) mine -= task.free;
    held[ModuleOf(graph, task)] += mine;
    by_microbatch[{task.module.value(), task.microbatch.value()}] += mine;
  }
  for (const auto& [key, bytes] : by_microbatch) {
    if (bytes > Bytes(0)) in_flight.insert(MicrobatchId(key.second));
  }
  std::string text = absl::StrFormat(
      "rank %d comes nearest to its memory limit: %s%s at %s. ", rank.value(),
      FormatBytes(peak.total),
      limit > Bytes(0) ? absl::StrFormat(" of %s (%s)", FormatBytes(limit),
                                         FormatPercent(fullest))
                       : std::string(", without a limit,"),
      FormatDuration(peak.at - kStepStart));
  int largest = 0;
  for (int i = 0; i < kNumMemoryItems; ++i) {
    if (peak.items[i] > peak.items[largest]) largest = i;
  }
  absl::StrAppendFormat(&text, "Most of it is %s, %s. ",
                        MemoryItemName(static_cast<MemoryItem>(largest)),
                        FormatBytes(peak.items[largest]));
  absl::StrAppendFormat(&text, "It then holds activations of %d microbatches",
                        in_flight.size());
  std::string modules;
  for (const auto& [module, bytes] : held) {
    if (bytes <= Bytes(0)) continue;
    absl::StrAppendFormat(&modules, "%s%s of %s", modules.empty() ? "" : ", ",
                          FormatBytes(bytes), module);
  }
  absl::StrAppend(&text, modules.empty() ? "" : ": ", modules, ".");
  int64_t room_lost = 0;
  for (const trace::BubbleTimes& times : analysis.bubbles) {
    room_lost += times[static_cast<size_t>(trace::BubbleKind::kMemory)].count();
  }
  if (room_lost > 0) {
    absl::StrAppend(&text, " For want of memory ranks stand idle for ",
                    FormatDuration(Duration(room_lost)), " together.");
  }
  return absl::StrCat("\n", WrapText(text, 0), "\n");
}

}  // namespace pipeloom::cli
