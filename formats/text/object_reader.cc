#include "formats/text/object_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

// Returns whether `key` is `name` in camelCase: "memoryLimitBytes" for
// "memory_limit_bytes".
bool IsCamelCaseOf(absl::string_view key, absl::string_view name) {
  size_t k = 0;
  bool upper = false;
  for (const char c : name) {
    if (c == '_') {
      upper = true;
      continue;
    }
    const char expected =
        upper ? absl::ascii_toupper(static_cast<unsigned char>(c)) : c;
    upper = false;
    if (k == key.size() || key[k++] != expected) return false;
  }
  return k == key.size();
}

// Returns the value as a number, also from a string.
std::optional<double> AsNumber(const JsonValue& value) {
  if (value.is_number()) return value.number;
  double number = 0;
  if (value.kind == JsonValue::Kind::kString &&
      absl::SimpleAtod(value.string, &number)) {
    return number;
  }
  return std::nullopt;
}

std::optional<int64_t> AsInteger(const JsonValue& value) {
  if (value.kind == JsonValue::Kind::kInteger) return value.integer;
  int64_t integer = 0;
  if (value.kind == JsonValue::Kind::kString &&
      absl::SimpleAtoi(value.string, &integer)) {
    return integer;
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value.kind == JsonValue::Kind::kNumber &&
      std::abs(value.number) <= kExact &&
      value.number == std::floor(value.number)) {
    return static_cast<int64_t>(value.number);
  }
  return std::nullopt;
}

}  // namespace

ObjectReader::ObjectReader(absl::string_view file, const JsonValue& value,
                           std::string path)
    : file_(file), value_(value), path_(std::move(path)) {
  if (value.kind == JsonValue::Kind::kObject) {
    asked_.resize(value.keys.size());
    return;
  }
  absl::string_view name = path_;
  if (!name.empty()) name.remove_suffix(1);  // The dot.
  Fail(value.line,
       name.empty()
           ? absl::StrCat("holds ", Describe(value), "; it must be an object")
           : absl::StrCat("field \"", name, "\" is ", Describe(value),
                          "; it must be an object"));
}

std::string ObjectReader::Path(absl::string_view name) const {
  return absl::StrCat(path_, name);
}

const JsonValue* ObjectReader::Find(absl::string_view name) {
  if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
    known_.push_back(name);
  }
  if (!ok()) return nullptr;
  const JsonValue* found = nullptr;
  for (size_t i = 0; i < value_.keys.size(); ++i) {
    if (value_.keys[i] != name && !IsCamelCaseOf(value_.keys[i], name)) {
      continue;
    }
    asked_[i] = true;
    if (found != nullptr) {
      Fail(value_.items[i].line,
           absl::StrCat("field \"", Path(name),
                        "\" is given twice; it must stand once"));
      return nullptr;
    }
    found = &value_.items[i];
  }
  if (found != nullptr && found->kind == JsonValue::Kind::kNull) return nullptr;
  return found;
}

int32_t ObjectReader::LineOf(absl::string_view name) {
  const JsonValue* value = Find(name);
  return value == nullptr ? value_.line : value->line;
}

void ObjectReader::Require(absl::string_view name) {
  if (Find(name) == nullptr && missing_.empty()) missing_ = Path(name);
}

void ObjectReader::Fail(int32_t line, absl::string_view what) {
  if (ok()) status_ = ErrorAt(file_, line, what);
}

void ObjectReader::Refuse(const JsonValue& value, const std::string& path,
                          absl::string_view allowed) {
  Fail(value.line, absl::StrCat("field \"", path, "\" is ", Describe(value),
                                "; it must be ", allowed));
}

void ObjectReader::Refuse(absl::string_view name, absl::string_view allowed) {
  if (const JsonValue* value = Find(name)) Refuse(*value, Path(name), allowed);
}

void ObjectReader::ParseInteger(const JsonValue& value, const std::string& path,
                                int64_t low, int64_t high, int64_t* out) {
  const std::optional<int64_t> integer = AsInteger(value);
  if (integer.has_value() && *integer >= low && *integer <= high) {
    *out = *integer;
    return;
  }
  Refuse(value, path,
         absl::StrCat(
             value.is_number() && integer.has_value() ? "" : "an integer ",
             "in [", low, ", ", high, "]"));
}

void ObjectReader::ParseNumber(const JsonValue& value, const std::string& path,
                               double low, double high, double* out) {
  const std::optional<double> number = AsNumber(value);
  if (number.has_value() && *number >= low && *number <= high) {
    *out = *number;
    return;
  }
  Refuse(value, path,
         absl::StrFormat("%sin [%g, %g]", number.has_value() ? "" : "a number ",
                         low, high));
}

void ObjectReader::Read(absl::string_view name, int64_t low, int64_t high,
                        int64_t* out) {
  if (const JsonValue* value = Find(name)) {
    ParseInteger(*value, Path(name), low, high, out);
  }
}

void ObjectReader::Read(absl::string_view name, int32_t low, int32_t high,
                        int32_t* out) {
  int64_t wide = *out;
  Read(name, int64_t{low}, int64_t{high}, &wide);
  *out = static_cast<int32_t>(wide);
}

void ObjectReader::Read(absl::string_view name, double low, double high,
                        double* out) {
  if (const JsonValue* value = Find(name)) {
    ParseNumber(*value, Path(name), low, high, out);
  }
}

void ObjectReader::ReadPositive(absl::string_view name, double high,
                                double* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  const std::optional<double> number = AsNumber(*value);
  if (number.has_value() && *number > 0 && *number <= high) {
    *out = *number;
  } else {
    Refuse(*value, Path(name),
           absl::StrFormat("%sin (0, %g]",
                           number.has_value() ? "" : "a number ", high));
  }
}

void ObjectReader::Read(absl::string_view name, bool* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  if (value->kind == JsonValue::Kind::kBool) {
    *out = value->integer != 0;
  } else {
    Refuse(*value, Path(name), "true or false");
  }
}

void ObjectReader::Read(absl::string_view name, std::string* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  if (value->kind == JsonValue::Kind::kString) {
    *out = value->string;
  } else {
    Refuse(*value, Path(name), "a string");
  }
}

void ObjectReader::Read(absl::string_view name, uint64_t* out) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  const std::optional<int64_t> integer = AsInteger(*value);
  if (integer.has_value() && *integer >= 0) {
    *out = static_cast<uint64_t>(*integer);
  } else if (value->kind == JsonValue::Kind::kUnsigned) {
    *out = static_cast<uint64_t>(value->integer);
  } else if (uint64_t wide = 0; value->kind == JsonValue::Kind::kString &&
                                absl::SimpleAtoi(value->string, &wide)) {
    *out = wide;
  } else {
    Refuse(*value, Path(name),
           absl::StrCat("an integer in [0, ",
                        std::numeric_limits<uint64_t>::max(), "]"));
  }
}

void ObjectReader::Read(absl::string_view name, std::vector<std::string>* out) {
  out->clear();
  ForEach(name, [&](const JsonValue& item, const std::string& path) {
    if (item.kind != JsonValue::Kind::kString) {
      Refuse(item, path, "a string");
      return;
    }
    out->push_back(item.string);
  });
}

void ObjectReader::ReadObject(absl::string_view name,
                              absl::FunctionRef<void(ObjectReader&)> read) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  ObjectReader reader(file_, *value, Path(name) + ".");
  if (reader.ok()) read(reader);
  if (absl::Status status = reader.Finish(); !status.ok()) status_ = status;
}

void ObjectReader::ReadObjects(absl::string_view name,
                               absl::FunctionRef<void(ObjectReader&)> read) {
  ForEach(name, [&](const JsonValue& item, const std::string& path) {
    ObjectReader reader(file_, item, path + ".");
    if (reader.ok()) read(reader);
    if (absl::Status status = reader.Finish(); !status.ok()) status_ = status;
  });
}

void ObjectReader::ForEach(
    absl::string_view name,
    absl::FunctionRef<void(const JsonValue&, const std::string&)> visit) {
  const JsonValue* value = Find(name);
  if (value == nullptr) return;
  if (value->kind != JsonValue::Kind::kList) {
    Refuse(*value, Path(name), "a list");
    return;
  }
  for (size_t i = 0; i < value->items.size() && ok(); ++i) {
    visit(value->items[i], absl::StrCat(path_, name, "[", i, "]"));
  }
}

const std::string* ObjectReader::FirstUnknown(int32_t* line,
                                              int32_t* count) const {
  const std::string* first = nullptr;
  *count = 0;
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (asked_[i]) continue;
    if (first == nullptr) {
      first = &value_.keys[i];
      *line = value_.items[i].line;
    }
    ++*count;
  }
  return first;
}

absl::Status ObjectReader::Finish() {
  int32_t line = 0;
  int32_t count = 0;
  if (!ok()) return status_;
  const std::string* unknown = FirstUnknown(&line, &count);
  if (unknown == nullptr) {
    if (!missing_.empty()) {
      Fail(value_.line, absl::StrCat("field \"", missing_,
                                     "\" is missing; it must be given"));
    }
    return status_;
  }
  std::vector<std::string> known(known_.begin(), known_.end());
  std::sort(known.begin(), known.end());
  std::string names;
  for (const std::string& name : known) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  JsonValue key;
  key.kind = JsonValue::Kind::kString;
  key.string = Path(*unknown);
  Fail(line, absl::StrCat("field ", Describe(key),
                          " is not known; it must be one of ", names));
  return status_;
}

}  // namespace pipeloom::formats
