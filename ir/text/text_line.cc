#include "ir/text/text_line.h"

#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom {
namespace {

constexpr size_t kLongestFound = 80;  // Bytes of a word that an error shows.

// Checks a text by RFC 3629: no overlong forms, no surrogates, nothing above
// U+10FFFF.
bool IsUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  for (size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    const int more = lead < 0x80                    ? 0
                     : lead >= 0xc2 && lead <= 0xdf ? 1
                     : lead >= 0xe0 && lead <= 0xef ? 2
                     : lead >= 0xf0 && lead <= 0xf4 ? 3
                                                    : -1;
    if (more < 0) return false;
    const unsigned second = byte(i + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    for (int k = 1; k <= more; ++k) {
      if ((byte(i + static_cast<size_t>(k)) & 0xc0) != 0x80) return false;
    }
    i += static_cast<size_t>(more) + 1;
  }
  return true;
}

}  // namespace

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

int64_t TextReader::Int(absl::string_view name, int64_t least) {
  Expect(name);
  int64_t value = 0;
  if (status_.ok() &&
      (AtEndOfLine() || !absl::SimpleAtoi(words_[next_], &value))) {
    Fail(absl::StrCat("a whole number after \"", name, "\""));
  }
  if (status_.ok() && value < least) {
    Fail(absl::StrCat("a number of at least ", least, " after \"", name, "\""));
  }
  Take();
  return status_.ok() ? value : 0;
}

int32_t TextReader::Int32(absl::string_view name, int32_t least) {
  const int64_t value = Int(name, least);
  if (value < std::numeric_limits<int32_t>::min() ||
      value > std::numeric_limits<int32_t>::max()) {
    --next_;
    Fail(absl::StrCat("a number of 32 bits after \"", name, "\""));
    return 0;
  }
  return static_cast<int32_t>(value);
}

std::vector<int64_t> TextReader::Ints(int64_t least) {
  std::vector<int64_t> values;
  while (status_.ok() && !AtEndOfLine()) {
    int64_t value = 0;
    if (!absl::SimpleAtoi(words_[next_], &value) || value < least) {
      Fail(absl::StrCat("a whole number of at least ", least));
      break;
    }
    values.push_back(value);
    Take();
  }
  return values;
}

double TextReader::Double(absl::string_view name) {
  Expect(name);
  double value = 0;
  if (status_.ok() &&
      (AtEndOfLine() || !absl::SimpleAtod(words_[next_], &value) ||
       !std::isfinite(value) || value < 0)) {
    Fail(absl::StrCat("a finite number of at least 0 after \"", name, "\""));
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
    } else if (!IsUtf8(value)) {
      Fail(absl::StrCat("UTF-8 text after \"", name, "\""));
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
  std::string found = "the end of the line";
  if (!AtEndOfLine()) {
    const absl::string_view word = words_[next_];
    found = absl::StrCat("\"", absl::CEscape(word.substr(0, kLongestFound)),
                         word.size() > kLongestFound ? "..." : "", "\"");
  }
  status_ = absl::InvalidArgumentError(absl::StrFormat(
      "line %d: expected %s, found %s", line_, std::string(expected), found));
}

}  // namespace pipeloom
