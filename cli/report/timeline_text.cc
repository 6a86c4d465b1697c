#include "cli/report/timeline_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trace/trace_summary.h"

namespace pipeloom::cli {
namespace {

constexpr absl::string_view kMarks = ".FBWfbw+";

// Returns the module that computes longest, which has the capital letters.
ModuleId MainModule(const trace::TraceSummary& summary) {
  ModuleId main;
  Duration most{};
  for (const ModuleId m : summary.modules.ids()) {
    const trace::ModuleTimes& times = summary.modules[m];
    const Duration total = times.pass[0] + times.pass[1] + times.pass[2];
    if (main.is_none() || total > most) {
      main = m;
      most = total;
    }
  }
  return main;
}

}  // namespace

std::string TimelineText(const StageGraph& graph, const StepTrace& trace,
                         int columns, RankId only) {
  const ModuleId main = MainModule(trace::Summarize(graph, trace));
  const auto num_columns = static_cast<size_t>(columns);
  // The time of each mark in each slice.
  using Slice = std::array<Duration, kMarks.size()>;
  IdVector<RankId, std::vector<Slice>> slices(
      graph.num_ranks(), std::vector<Slice>(num_columns, Slice{}));
  const int64_t total = std::max<int64_t>(1, trace.step_time().count());
  const auto slice_begin = [&](size_t c) {
    return static_cast<int64_t>(static_cast<double>(total) *
                                static_cast<double>(c) / columns);
  };
  for (const Span& span : trace.spans) {
    size_t mark = 0;
    if (span.kind == SpanKind::kTask) {
      const Task& task = graph.task(span.task);
      mark = 1 + static_cast<size_t>(task.pass) + (task.module == main ? 0 : 3);
    } else if (span.kind == SpanKind::kEpilogue) {
      mark = kMarks.size() - 1;
    } else {
      continue;
    }
    const int64_t start = span.start.time_since_epoch().count();
    const int64_t end = span.end.time_since_epoch().count();
    auto c = static_cast<size_t>(static_cast<double>(start) /
                                 static_cast<double>(total) * columns);
    if (c > 0) --c;  // In case `c` was rounded up.
    for (; c < num_columns && slice_begin(c) < end; ++c) {
      const int64_t overlap =
          std::min(end, slice_begin(c + 1)) - std::max(start, slice_begin(c));
      if (overlap > 0) slices[span.rank][c][mark] += Duration(overlap);
    }
  }
  std::string text;
  const int digits =
      static_cast<int>(absl::StrCat(graph.num_ranks() - 1).size());
  bool others = false;
  for (const RankId r : graph.rank_ids()) {
    if (!only.is_none() && r != only) continue;
    absl::StrAppendFormat(&text, "rank %*d  ", digits, r.value());
    for (size_t c = 0; c < num_columns; ++c) {
      Slice& slice = slices[r][c];
      Duration idle(slice_begin(c + 1) - slice_begin(c));
      for (const Duration d : slice) idle -= d;
      slice[0] = idle;
      const auto most = std::max_element(slice.begin(), slice.end());
      const char mark = kMarks[static_cast<size_t>(most - slice.begin())];
      others = others || std::islower(static_cast<unsigned char>(mark)) != 0;
      text += mark;
    }
    text += '\n';
  }
  const std::string end = FormatDuration(trace.step_time());
  const std::string indent(static_cast<size_t>(digits) + 7, ' ');
  absl::StrAppend(
      &text, indent, "0",
      std::string(
          num_columns > end.size() + 1 ? num_columns - end.size() - 1 : 1, ' '),
      end, "\n");
  if (!main.is_none()) {
    const bool split =
        std::any_of(graph.tasks().begin(), graph.tasks().end(),
                    [](const Task& t) { return t.pass == Pass::kWeightGrad; });
    absl::StrAppend(&text, indent, "F forward, B backward",
                    split ? ", W weight gradient of " : " of ",
                    graph.module_names()[static_cast<size_t>(main.value())],
                    "\n");
  }
  if (others) {
    std::string names;
    for (size_t m = 0; m < graph.module_names().size(); ++m) {
      if (static_cast<int32_t>(m) == main.value()) continue;
      absl::StrAppend(&names, names.empty() ? "" : ", ",
                      graph.module_names()[m]);
    }
    absl::StrAppend(&text, indent, "small letters the same of ", names, "\n");
  }
  absl::StrAppend(&text, indent,
                  ". idle, + gradient reduction and optimizer step\n");
  return text;
}

}  // namespace pipeloom::cli
