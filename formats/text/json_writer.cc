#include "formats/text/json_writer.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

constexpr size_t kLineLevels = 2;

// Returns the length of the valid UTF-8 sequence at the front of `text`; 0 if
// there is none. RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

}  // namespace

std::string QuoteJson(absl::string_view text) {
  std::string result = "\"";
  while (!text.empty()) {
    const char c = text[0];
    const size_t length = Utf8Length(text);
    if (length == 0) {
      result += "\\ufffd";
      text.remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (length == 1 &&
               (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) {
      absl::StrAppendFormat(&result, "\\u%04x", static_cast<unsigned>(c));
    } else {
      absl::StrAppend(&result, text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return result + "\"";
}

JsonWriter& JsonWriter::Key(absl::string_view key) {
  BeforeValue(/*plain=*/false);
  absl::StrAppend(&text_, QuoteJson(key), ": ");
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::String(absl::string_view value) {
  BeforeValue(/*plain=*/true);
  text_ += QuoteJson(value);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  BeforeValue(/*plain=*/true);
  absl::StrAppend(&text_, value);
  return *this;
}

JsonWriter& JsonWriter::Number(double value) {
  if (!std::isfinite(value)) return Null();
  BeforeValue(/*plain=*/true);
  char buffer[32];
  const std::to_chars_result end =
      std::to_chars(buffer, buffer + sizeof(buffer), value);
  text_.append(buffer, end.ptr);
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  BeforeValue(/*plain=*/true);
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Null() {
  BeforeValue(/*plain=*/true);
  text_ += "null";
  return *this;
}

JsonWriter& JsonWriter::Micros(Duration value) {
  BeforeValue(/*plain=*/true);
  const int64_t count = value.count();
  const uint64_t magnitude = count < 0 ? 0 - static_cast<uint64_t>(count)
                                       : static_cast<uint64_t>(count);
  absl::StrAppendFormat(&text_, "%s%d.%03d", count < 0 ? "-" : "",
                        magnitude / 1000, magnitude % 1000);
  return *this;
}

JsonWriter& JsonWriter::Begin(char bracket) {
  BeforeValue(/*plain=*/false);
  text_ += bracket;
  levels_.emplace_back();
  return *this;
}

JsonWriter& JsonWriter::End(char bracket) {
  const bool on_lines = levels_.back().on_lines;
  levels_.pop_back();
  if (on_lines) NewLine();
  text_ += bracket;
  return *this;
}

void JsonWriter::BeforeValue(bool plain) {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) return;
  Level& level = levels_.back();
  if (level.count++ > 0) text_ += ',';
  if (lines_ && !plain && levels_.size() <= kLineLevels) {
    level.on_lines = true;
    NewLine();
  } else if (level.count > 1) {
    text_ += ' ';
  }
}

void JsonWriter::NewLine() {
  text_ += '\n';
  text_.append(2 * levels_.size(), ' ');
}

}  // namespace pipeloom::formats
