#include "formats/text/csv_reader.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/text/json_reader.h"

namespace pipeloom::formats {
namespace {

constexpr size_t kMaxColumns = 1000;
constexpr size_t kMaxRows = 10'000'000;

// A splitter of a text into rows, one after another.
class Splitter {
 public:
  Splitter(absl::string_view text, absl::string_view file)
      : text_(text), file_(file) {}

  // Reads the next row. Returns false at the end of the text.
  absl::StatusOr<bool> Next(CsvRow* row) {
    while (at_ < text_.size()) {
      row->line = line_;
      row->cells.clear();
      if (text_[at_] == '#') {
        SkipLine();
        continue;
      }
      PIPELOOM_RETURN_IF_ERROR(ReadRow(row));
      if (row->cells.size() == 1 && row->cells[0].empty()) continue;
      return true;
    }
    return false;
  }

 private:
  void SkipLine() {
    while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    if (at_ < text_.size()) ++at_;
    ++line_;
  }

  absl::Status ReadRow(CsvRow* row) {
    for (;;) {
      std::string cell;
      if (at_ < text_.size() && text_[at_] == '"') {
        PIPELOOM_RETURN_IF_ERROR(ReadQuoted(&cell));
      } else {
        const size_t begin = at_;
        while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
          ++at_;
        }
        cell = std::string(text_.substr(begin, at_ - begin));
      }
      absl::StripAsciiWhitespace(&cell);
      row->cells.push_back(std::move(cell));
      if (row->cells.size() > kMaxColumns) {
        return ErrorAt(file_, line_,
                       absl::StrCat("more than ", kMaxColumns, " columns"));
      }
      if (at_ >= text_.size()) return absl::OkStatus();
      if (text_[at_++] == '\n') {
        ++line_;
        return absl::OkStatus();
      }
    }
  }

  // Reads from the quote up to the next comma, line end or end of text.
  absl::Status ReadQuoted(std::string* cell) {
    const int32_t first_line = line_;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c != '"') {
        cell->push_back(c);
        continue;
      }
      if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        cell->push_back('"');
        ++at_;
        continue;
      }
      ++at_;
      while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\r')) {
        ++at_;
      }
      if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n') {
        return ErrorAt(file_, line_,
                       "text after a closing quote; a quote "
                       "inside a quoted cell is written \"\"");
      }
      return absl::OkStatus();
    }
    return ErrorAt(file_, first_line, "a quote opens here and never closes");
  }

  absl::string_view text_;
  absl::string_view file_;
  size_t at_ = 0;
  int32_t line_ = 1;
};

std::string ColumnName(absl::string_view cell) {
  std::string name = absl::AsciiStrToLower(cell);
  for (char& c : name) {
    if (c == ' ' || c == '-') c = '_';
  }
  return name;
}

bool IsPlain(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 &&
           static_cast<unsigned char>(c) < 0x7f;
  });
}

}  // namespace

int CsvTable::Column(std::initializer_list<absl::string_view> names) const {
  for (const absl::string_view name : names) {
    const auto found = std::find(columns.begin(), columns.end(), name);
    if (found != columns.end()) {
      return static_cast<int>(found - columns.begin());
    }
  }
  return -1;
}

absl::StatusOr<CsvTable> ParseCsv(absl::string_view text,
                                  absl::string_view file_name) {
  constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.substr(0, 3) == kByteOrderMark) text.remove_prefix(3);
  if (text.find('\0') != absl::string_view::npos) {
    return ErrorAt(file_name, 1, "holds a zero byte; it is no text");
  }
  Splitter splitter(text, file_name);
  CsvTable table;
  CsvRow row;
  PIPELOOM_ASSIGN_OR_RETURN(const bool has_header, splitter.Next(&row));
  if (!has_header) {
    return ErrorAt(file_name, 1,
                   "is empty; its first line must name the columns");
  }
  for (const std::string& cell : row.cells) {
    std::string name = ColumnName(cell);
    if (!IsPlain(name)) {
      return ErrorAt(file_name, row.line,
                     "the name of a column is not plain ASCII");
    }
    if (!name.empty() && table.Column({name}) >= 0) {
      return ErrorAt(file_name, row.line,
                     absl::StrCat("column \"", name, "\" stands twice"));
    }
    table.columns.push_back(std::move(name));
  }
  for (;;) {
    PIPELOOM_ASSIGN_OR_RETURN(const bool more, splitter.Next(&row));
    if (!more) return table;
    if (row.cells.size() != table.columns.size()) {
      return ErrorAt(
          file_name, row.line,
          absl::StrCat("has ", row.cells.size(), " cells; the header has ",
                       table.columns.size()));
    }
    if (table.rows.size() >= kMaxRows) {
      return ErrorAt(file_name, row.line,
                     absl::StrCat("more than ", kMaxRows, " rows"));
    }
    table.rows.push_back(row);
  }
}

}  // namespace pipeloom::formats
