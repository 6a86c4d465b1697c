// Lines of words for the text form: the reader of ir/text/text_format.h.
#ifndef PIPELOOM_IR_TEXT_TEXT_LINE_H_
#define PIPELOOM_IR_TEXT_TEXT_LINE_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pipeloom {

// Walks over the lines of a text and the words of a line. Words are separated
// by blanks; a word in double quotes is a C-escaped string. The first mistake
// is kept in status() and every read after it returns 0 or "", so a caller
// checks once per line.
class TextReader {
 public:
  explicit TextReader(absl::string_view text);

  // Goes to the next line that has words. False at the end or after a mistake.
  bool NextLine();
  // Whether the line's next word is `word`, without taking it.
  bool At(absl::string_view word) const;
  bool AtEndOfLine() const { return next_ == words_.size(); }

  void Expect(absl::string_view word);
  // The number after the word `name`, at least `least`.
  int64_t Int(absl::string_view name,
              int64_t least = std::numeric_limits<int64_t>::min());
  int32_t Int32(absl::string_view name,
                int32_t least = std::numeric_limits<int32_t>::min());
  // Finite and at least 0.
  double Double(absl::string_view name);
  // The quoted string after the word `name`; UTF-8, as everywhere.
  std::string String(absl::string_view name);
  std::string Word();
  // The whole numbers, at least `least`, that end the line.
  std::vector<int64_t> Ints(int64_t least);
  // Reports the line's words that nobody has read.
  void ExpectEndOfLine();

  // Keeps the first mistake; names the line.
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
