// Reader of comma-separated values with a header, RFC 4180: quoted fields may
// hold commas, quotes ("") and line ends; lines end with LF or CRLF. Empty
// lines and lines that begin with '#' are skipped. Linear in the text.
#ifndef PIPELOOM_FORMATS_TEXT_CSV_READER_H_
#define PIPELOOM_FORMATS_TEXT_CSV_READER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {

// One row of a table.
struct CsvRow {
  int32_t line = 0;  // Line where it begins; 1 is the first.
  // One per column; without blanks around them.
  std::vector<std::string> cells{};
};

// A parsed table.
struct CsvTable {
  // Names in lower case, with '_' for blanks and dashes.
  std::vector<std::string> columns{};
  std::vector<CsvRow> rows{};
  // Returns the index of the first of `names` that is a column; -1 if none is.
  int Column(std::initializer_list<absl::string_view> names) const;
};

// Parses a text. InvalidArgument "FILE:LINE: ...": no header, a duplicate
// column, a row with another number of cells, an open quote, a zero byte, more
// than 10 million rows or 1000 columns.
absl::StatusOr<CsvTable> ParseCsv(absl::string_view text,
                                  absl::string_view file_name);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_TEXT_CSV_READER_H_
