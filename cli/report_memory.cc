// The memory of a rank over a step as SVG.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report_drawing.h"

namespace pipeloom::cli {
namespace {

constexpr int kWidth = 300;
constexpr int kHeight = 110;
constexpr int kSlices = 300;

using Items = std::array<Bytes, kNumMemoryItems>;

Bytes Sum(const Items& items) {
  Bytes sum;
  for (const Bytes b : items) sum += b;
  return sum;
}

// The items held at the fullest instant of each slice of time.
std::vector<Items> FullestBySlice(const StepTrace& trace, RankId rank) {
  std::vector<Items> slices(kSlices);
  const auto total =
      std::max(1.0, static_cast<double>(trace.step_time().count()));
  Items held{};
  size_t slice = 0;
  // Slices up to the change begin with what was held before it.
  const auto advance = [&](size_t to) {
    while (slice < to) slices[++slice] = held;
  };
  for (const MemoryStep& step : trace.memory) {
    if (step.rank != rank) continue;
    const double at = static_cast<double>(step.at.time_since_epoch().count());
    advance(static_cast<size_t>(
        std::clamp(at / total * kSlices, 0.0, kSlices - 1.0)));
    held[static_cast<size_t>(step.item)] += step.delta;
    if (Sum(held) > Sum(slices[slice])) slices[slice] = held;
  }
  advance(kSlices - 1);
  return slices;
}

}  // namespace

std::string MemorySvg(const StageGraph& graph, const StepTrace& trace,
                      RankId rank) {
  const std::vector<Items> slices = FullestBySlice(trace, rank);
  const Bytes limit = graph.rank(rank).memory.limit;
  Bytes top = limit;
  for (const Items& items : slices) top = std::max(top, Sum(items));
  const double scale =
      (kHeight - 6) / std::max(1.0, static_cast<double>(top.count()));
  const auto y = [&](Bytes b) {
    return kHeight - static_cast<double>(b.count()) * scale;
  };
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Memory of rank "
      "%d\"><rect class=\"row\" width=\"%d\" height=\"%d\"/>\n",
      kWidth, kHeight, rank.value(), kWidth, kHeight);
  // Each item is painted from the bottom up to the sum of itself and those
  // below it, the uppermost first.
  for (int item = kNumMemoryItems - 1; item >= 0; --item) {
    const auto height = [&](size_t s) {
      Bytes sum;
      for (int i = 0; i <= item; ++i) sum += slices[s][static_cast<size_t>(i)];
      return sum;
    };
    bool held = false;
    std::string path = absl::StrFormat("M0 %d", kHeight);
    Bytes last{-1};
    for (size_t s = 0; s < kSlices; ++s) {
      held = held || slices[s][static_cast<size_t>(item)] > Bytes(0);
      const Bytes sum = height(s);
      if (sum == last) continue;
      last = sum;
      absl::StrAppendFormat(&path, "H%d V%.1f",
                            static_cast<int>(s) * kWidth / kSlices, y(sum));
    }
    absl::StrAppendFormat(&path, "H%d V%d Z", kWidth, kHeight);
    if (!held) continue;
    absl::StrAppendFormat(
        &svg, "<path d=\"%s\" fill=\"var(--i%d)\"><title>%s</title></path>\n",
        path, item, MemoryItemName(static_cast<MemoryItem>(item)));
  }
  if (limit > Bytes(0)) {
    absl::StrAppendFormat(&svg,
                          "<path class=\"limit\" d=\"M0 %.1fH%d\"><title>limit "
                          "%s</title></path>\n",
                          y(limit), kWidth, FormatBytes(limit));
  }
  return svg + "</svg>\n";
}

std::string MemoryLegend() {
  std::string text = "<div class=\"legend\">";
  for (int item = 0; item < kNumMemoryItems; ++item) {
    absl::StrAppendFormat(
        &text,
        "<span class=\"item\"><svg viewBox=\"0 0 12 12\"><rect width=\"12\" "
        "height=\"12\" fill=\"var(--i%d)\"/></svg>%s</span>",
        item, MemoryItemName(static_cast<MemoryItem>(item)));
  }
  return text +
         "<span class=\"item\"><svg viewBox=\"0 0 12 12\"><path class=\"limit\""
         " d=\"M0 6H12\"/></svg>limit</span></div>\n";
}

}  // namespace pipeloom::cli
