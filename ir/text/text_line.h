// Reader of lines of words, for the text form of ir/text/text_format.h.
#ifndef PIPELOOM_IR_TEXT_TEXT_LINE_H_
#define PIPELOOM_IR_TEXT_TEXT_LINE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pipeloom {

// A reader that walks over the lines of a text and the words of a line. Words
// are separated by blanks; a word in double quotes is a C-escaped string. The
// first mistake is kept in status() and every read after it returns 0 or "", so
// a caller checks once per line.
class TextReader {
 public:
  explicit TextReader(absl::string_view text);

  // Goes to the next line that has words. Returns false at the end or after a
  // mistake.
  bool NextLine();
  // Returns whether the next word of the line is `word`, without consuming it.
  bool At(absl::string_view word) const;
  bool AtEndOfLine() const { return next_ == words_.size(); }

  // Consumes the next word; a mistake unless it is `word`.
  void Expect(absl::string_view word);
  // Consumes the word `name` and a number of at least `least`, and returns the
  // number.
  int64_t Int(absl::string_view name,
              int64_t least = std::numeric_limits<int64_t>::min());
  int32_t Int32(absl::string_view name,
                int32_t least = std::numeric_limits<int32_t>::min());
  // The same for a finite number of at least 0.
  double Double(absl::string_view name);
  // Consumes the word `name` and a quoted UTF-8 string, and returns the string.
  std::string String(absl::string_view name);
  // Consumes and returns the next word.
  std::string Word();
  // Consumes the rest of the line: whole numbers of at least `least`.
  std::vector<int64_t> Ints(int64_t least);
  // Fails if words of the line are left.
  void ExpectEndOfLine();

  // Records that `expected` was not found, unless an earlier mistake is kept.
  // The status names the line.
  void Fail(absl::string_view expected);
  const absl::Status& status() const { return status_; }

 private:
  std::string Take();
  void SplitWords(absl::string_view line);

  absl::string_view rest_;
  int64_t line_ = 0;
  std::vector<std::string> words_;
  size_t next_ = 0;
  absl::Status status_;
};

}  // namespace pipeloom

#endif  // PIPELOOM_IR_TEXT_TEXT_LINE_H_
