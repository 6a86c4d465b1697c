#include "ir/text_line.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom {

TextReader::TextReader(absl::string_view text) : rest_(text) {}

bool TextReader::NextLine() {
  while (status_.ok() && !rest_.empty()) {
    const size_t end = rest_.find('\n');
    const absl::string_view line = rest_.substr(0, end);
    rest_ = end == absl::string_view::npos ? absl::string_view()
                                           : rest_.substr(end + 1);
    ++line_;
    SplitWords(line);
    if (!words_.empty() && words_[0][0] != '#') return status_.ok();
  }
  words_.clear();
  next_ = 0;
  return false;
}

void TextReader::SplitWords(absl::string_view line) {
  words_.clear();
  next_ = 0;
  size_t i = 0;
  while (i < line.size()) {
    if (line[i] == ' ' || line[i] == '\t' || line[i] == '\r') {
      ++i;
      continue;
    }
    size_t j = i + 1;
    if (line[i] == '"') {
      while (j < line.size() && line[j] != '"') j += line[j] == '\\' ? 2 : 1;
      ++j;
      if (j > line.size()) {
        next_ = 0;
        words_ = {std::string(line.substr(i))};
        Fail("a closing quote");
        return;
      }
    } else {
      while (j < line.size() && line[j] != ' ' && line[j] != '\t' &&
             line[j] != '\r') {
        ++j;
      }
    }
    words_.emplace_back(line.substr(i, j - i));
    i = j;
  }
}

bool TextReader::At(absl::string_view word) const {
  return next_ < words_.size() && words_[next_] == word;
}

std::string TextReader::Take() {
  return next_ < words_.size() ? words_[next_++] : std::string();
}

void TextReader::Expect(absl::string_view word) {
  if (!At(word)) {
    Fail(absl::StrCat("\"", word, "\""));
    return;
  }
  ++next_;
}

int64_t TextReader::Int(absl::string_view name) {
  Expect(name);
  int64_t value = 0;
  if (status_.ok() &&
      (AtEndOfLine() || !absl::SimpleAtoi(words_[next_], &value))) {
    Fail(absl::StrCat("a whole number after \"", name, "\""));
  }
  Take();
  return status_.ok() ? value : 0;
}

int32_t TextReader::Int32(absl::string_view name) {
  const int64_t value = Int(name);
  if (value < std::numeric_limits<int32_t>::min() ||
      value > std::numeric_limits<int32_t>::max()) {
    --next_;
    Fail(absl::StrCat("a number of 32 bits after \"", name, "\""));
    return 0;
  }
  return static_cast<int32_t>(value);
}

double TextReader::Double(absl::string_view name) {
  Expect(name);
  double value = 0;
  if (status_.ok() &&
      (AtEndOfLine() || !absl::SimpleAtod(words_[next_], &value))) {
    Fail(absl::StrCat("a number after \"", name, "\""));
  }
  Take();
  return status_.ok() ? value : 0;
}

std::string TextReader::String(absl::string_view name) {
  Expect(name);
  std::string value;
  if (status_.ok()) {
    const std::string word = AtEndOfLine() ? std::string() : words_[next_];
    if (word.size() < 2 || word.front() != '"' || word.back() != '"' ||
        !absl::CUnescape(absl::string_view(word).substr(1, word.size() - 2),
                         &value)) {
      Fail(absl::StrCat("a quoted string after \"", name, "\""));
    }
  }
  Take();
  return status_.ok() ? value : std::string();
}

std::string TextReader::Word() { return Take(); }

void TextReader::ExpectEndOfLine() {
  if (!AtEndOfLine()) Fail("the end of the line");
}

void TextReader::Fail(absl::string_view expected) {
  if (!status_.ok()) return;
  const std::string found =
      AtEndOfLine() ? "the end of the line"
                    : absl::StrCat("\"", absl::CEscape(words_[next_]), "\"");
  status_ = absl::InvalidArgumentError(absl::StrFormat(
      "line %d: expected %s, found %s", line_, std::string(expected), found));
}

}  // namespace pipeloom
