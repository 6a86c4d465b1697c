#include "formats/text/json_reader.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

constexpr size_t kMaxDepth = 64;

// The position of the reader. A token is reported when its last character, or
// the one after it, has been read: the line of the last character other than a
// line end is the token's.
struct LineCounter {
  int32_t line = 1;
  int32_t last_line = 1;
};

class CountingIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator() = default;
  CountingIterator(const char* at, LineCounter* counter)
      : at_(at), counter_(counter) {}

  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') {
      ++counter_->line;
    } else {
      counter_->last_line = counter_->line;
    }
    ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const {
    return at_ == other.at_;
  }

 private:
  const char* at_ = nullptr;
  LineCounter* counter_ = nullptr;
};

std::string PlainAscii(absl::string_view text, size_t longest) {
  std::string result;
  for (const char c : text.substr(0, longest)) {
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  if (text.size() > longest) result += "...";
  return result;
}

// Returns the first index whose key occurs before it too, or -1.
ptrdiff_t FindDuplicate(const std::vector<std::string>& keys) {
  std::vector<size_t> by_key(keys.size());
  std::iota(by_key.begin(), by_key.end(), size_t{0});
  std::sort(by_key.begin(), by_key.end(), [&](size_t a, size_t b) {
    return keys[a] != keys[b] ? keys[a] < keys[b] : a < b;
  });
  ptrdiff_t first = -1;
  for (size_t i = 1; i < by_key.size(); ++i) {
    const auto index = static_cast<ptrdiff_t>(by_key[i]);
    if (keys[by_key[i - 1]] == keys[by_key[i]] &&
        (first < 0 || index < first)) {
      first = index;
    }
  }
  return first;
}

// A builder of the tree from the parser's events. After false is returned,
// there are no more events.
class TreeBuilder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  TreeBuilder(absl::string_view file, const LineCounter* counter)
      : file_(file), counter_(counter) {}

  const absl::Status& status() const { return status_; }
  JsonValue TakeRoot() { return std::move(root_); }

  bool null() { return Add(JsonValue::Kind::kNull); }
  bool boolean(bool value) {
    return Add(JsonValue::Kind::kBool, value ? 1 : 0, value ? 1 : 0);
  }
  bool number_integer(number_integer_t value) {
    return Add(JsonValue::Kind::kInteger, value, static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) {
    const auto bits = static_cast<int64_t>(value);
    return Add(
        bits < 0 ? JsonValue::Kind::kUnsigned : JsonValue::Kind::kInteger, bits,
        static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) {
    return Add(JsonValue::Kind::kNumber, 0, value);
  }
  bool string(string_t& value) {
    if (!Add(JsonValue::Kind::kString)) return false;
    Last().string = std::move(value);
    return true;
  }
  bool binary(binary_t& /*value*/) { return Fail("binary data"); }
  bool start_object(size_t /*size*/) { return Open(JsonValue::Kind::kObject); }
  bool key(string_t& value) {
    open_.back()->keys.push_back(std::move(value));
    return true;
  }
  bool end_object() {
    const JsonValue& object = *open_.back();
    if (const ptrdiff_t i = FindDuplicate(object.keys); i >= 0) {
      const auto index = static_cast<size_t>(i);
      status_ =
          ErrorAt(file_, object.items[index].line,
                  absl::StrCat("field \"", PlainAscii(object.keys[index], 60),
                               "\" is given twice; it must stand once"));
      return false;
    }
    open_.pop_back();
    return true;
  }
  bool start_array(size_t /*size*/) { return Open(JsonValue::Kind::kList); }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) {
    // "[json.exception...] parse error at line 3, column 7: what"
    absl::string_view what = error.what();
    if (const size_t column = what.find("column ");
        column != absl::string_view::npos) {
      if (const size_t colon = what.find(": ", column);
          colon != absl::string_view::npos) {
        what.remove_prefix(colon + 2);
      }
    } else if (const size_t close = what.find("] ");
               close != absl::string_view::npos) {
      what.remove_prefix(close + 2);
    }
    return Fail(absl::StrCat("not valid JSON: ", PlainAscii(what, 200)));
  }

 private:
  bool Fail(absl::string_view what) {
    status_ = ErrorAt(file_, counter_->last_line, what);
    return false;
  }
  JsonValue& Last() {
    return open_.empty() ? root_ : open_.back()->items.back();
  }
  bool Add(JsonValue::Kind kind, int64_t integer = 0, double number = 0) {
    if (!open_.empty()) open_.back()->items.emplace_back();
    JsonValue& value = Last();
    value.kind = kind;
    value.line = counter_->last_line;
    value.integer = integer;
    value.number = number;
    return true;
  }
  bool Open(JsonValue::Kind kind) {
    if (open_.size() >= kMaxDepth) {
      return Fail(absl::StrFormat(
          "nested deeper than %d levels; no format of ours is", kMaxDepth));
    }
    Add(kind);
    open_.push_back(&Last());
    return true;
  }

  absl::string_view file_;
  const LineCounter* counter_;
  absl::Status status_{};
  JsonValue root_{};
  // The open objects and lists. Each is the last item of the one before it, so
  // none moves while it is open.
  std::vector<JsonValue*> open_{};
};

}  // namespace

absl::Status ErrorAt(absl::string_view file, int32_t line,
                     absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ": ", what));
}

std::string Describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBool:
      return value.integer != 0 ? "true" : "false";
    case JsonValue::Kind::kInteger:
      return absl::StrCat(value.integer);
    case JsonValue::Kind::kUnsigned:
      return absl::StrCat(static_cast<uint64_t>(value.integer));
    case JsonValue::Kind::kNumber:
      return absl::StrFormat("%g", value.number);
    case JsonValue::Kind::kString:
      return absl::StrCat("\"", PlainAscii(value.string, 60), "\"");
    case JsonValue::Kind::kList:
      return "a list";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "";
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view text,
                                    absl::string_view file,
                                    int32_t first_line) {
  LineCounter counter{.line = first_line, .last_line = first_line};
  TreeBuilder builder(file, &counter);
  try {
    const bool parsed = nlohmann::json::sax_parse(
        CountingIterator(text.data(), &counter),
        CountingIterator(text.data() + text.size(), &counter), &builder);
    if (!builder.status().ok()) return builder.status();
    if (!parsed) return ErrorAt(file, counter.last_line, "not valid JSON");
  } catch (const std::exception& error) {
    return ErrorAt(
        file, counter.last_line,
        absl::StrCat("not valid JSON: ", PlainAscii(error.what(), 200)));
  }
  return builder.TakeRoot();
}

}  // namespace pipeloom::formats
