#include "cli/console/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::cli {
namespace {

// Counts code points, so that "µ" counts as one column.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> header, int left_columns)
    : left_columns_(left_columns) {
  rows_.push_back(std::move(header));
}

void Table::AddRow(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  const size_t columns = rows_[0].size();
  std::vector<size_t> width(columns, 0);
  for (const std::vector<std::string>& row : rows_) {
    const bool is_short = row.size() < columns;
    for (size_t c = 0; c < row.size(); ++c) {
      if (is_short && c + 1 == row.size()) break;
      width[c] = std::max(width[c], Width(row[c]));
    }
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const std::vector<std::string>& row = rows_[r];
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      const bool last_of_short = row.size() < columns && c + 1 == row.size();
      const size_t used = Width(row[c]);
      const std::string padding(
          last_of_short || used > width[c] ? 0 : width[c] - used, ' ');
      const bool left = static_cast<int>(c) < left_columns_;
      absl::StrAppend(&line, left ? "" : padding, row[c], left ? padding : "");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
    if (r > 0) continue;
    size_t total = 2 * (columns - 1);
    for (const size_t w : width) total += w;
    absl::StrAppend(&text, std::string(total, '-'), "\n");
  }
  return text;
}

std::string FormatPercent(double ratio, int digits) {
  const std::string text = absl::StrFormat("%.*f", digits, 100 * ratio);
  // A number that rounds to zero has no sign.
  const bool zero = text.find_first_not_of("-0.") == std::string::npos;
  return absl::StrCat(zero ? absl::string_view(text).substr(text[0] == '-')
                           : absl::string_view(text),
                      " %");
}

std::string FormatKnownPercent(double ratio) {
  return ratio > 0 ? FormatPercent(ratio) : "-";
}

}  // namespace pipeloom::cli
