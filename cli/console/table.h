// A plain text table for a terminal. Columns are padded to their widest cell.
#ifndef PIPELOOM_CLI_CONSOLE_TABLE_H_
#define PIPELOOM_CLI_CONSOLE_TABLE_H_

#include <string>
#include <vector>

namespace pipeloom::cli {

class Table {
 public:
  // The first `left_columns` columns are left-aligned, the others right.
  explicit Table(std::vector<std::string> header, int left_columns = 1);

  // Adds a row. One with fewer cells than columns ends with its last cell,
  // which may be of any length, such as a reason instead of figures.
  void AddRow(std::vector<std::string> cells);

  // Returns header, rule and rows. Each line ends with '\n' and has no trailing
  // spaces.
  std::string ToString() const;

  // Returns the rows, the first of which is the header.
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }
  int left_columns() const { return left_columns_; }

 private:
  int left_columns_;
  std::vector<std::vector<std::string>> rows_{};
};

// Returns a ratio as "12.3 %".
std::string FormatPercent(double ratio, int digits = 1);
// Returns the same of a ratio above 0, and "-" for 0: not known.
std::string FormatKnownPercent(double ratio);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_TABLE_H_
