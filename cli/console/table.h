// A plain text table for a terminal: columns padded to their widest cell,
// numbers to the right.
#ifndef PIPELOOM_CLI_CONSOLE_TABLE_H_
#define PIPELOOM_CLI_CONSOLE_TABLE_H_

#include <string>
#include <vector>

namespace pipeloom::cli {

class Table {
 public:
  // The first `left_columns` columns are left-aligned, the others right.
  explicit Table(std::vector<std::string> header, int left_columns = 1);

  // A row with fewer cells than columns ends with its last cell, which may be
  // of any length (a reason instead of figures).
  void AddRow(std::vector<std::string> cells);

  // Header, rule, rows; each line ends with '\n' and has no trailing spaces.
  std::string ToString() const;

  // The header first.
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }
  int left_columns() const { return left_columns_; }

 private:
  int left_columns_;
  std::vector<std::vector<std::string>> rows_{};
};

// "12.3 %" of a ratio.
std::string FormatPercent(double ratio, int digits = 1);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_TABLE_H_
