// Reader of a JSON object field by field. Checks type and range, and refuses
// fields that were not asked for.
//
//   ObjectReader reader(file, value, "training.");
//   reader.Require("microbatches");
//   reader.Read("microbatches", 1, 1'000'000, &training.microbatches);
//   PIPELOOM_RETURN_IF_ERROR(reader.Finish());
//
// The first error is kept and returned by Finish(); reads after it do nothing.
// Absent and null fields leave the target unchanged. As in proto3 JSON, a field
// may be written in snake_case or camelCase, a number may be in a string, and
// an integer may be written 3.0. Errors read
//   FILE:LINE: field "training.microbatches" is -3; it must be in [1, 1000000]
#ifndef PIPELOOM_FORMATS_TEXT_OBJECT_READER_H_
#define PIPELOOM_FORMATS_TEXT_OBJECT_READER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "formats/text/json_reader.h"

namespace pipeloom::formats {

// The reader of one object.
class ObjectReader {
 public:
  // Reads `value`. `path` precedes field names in errors: "" or "training.".
  // REQUIRES: `value`, `file` and the names read outlive the reader.
  ObjectReader(absl::string_view file, const JsonValue& value,
               std::string path);

  ObjectReader(const ObjectReader&) = delete;
  ObjectReader& operator=(const ObjectReader&) = delete;

  bool ok() const { return status_.ok(); }
  // Returns the first error so far.
  const absl::Status& status() const { return status_; }
  // Returns whether the object has the field.
  bool Has(absl::string_view name) { return Find(name) != nullptr; }
  // Return the line of the object, or of a field that exists.
  int32_t line() const { return value_.line; }
  int32_t LineOf(absl::string_view name);

  // Makes Finish() fail unless the field exists.
  void Require(absl::string_view name);

  // Reads a number in [low, high], a flag, a string or a list of strings.
  void Read(absl::string_view name, int64_t low, int64_t high, int64_t* out);
  void Read(absl::string_view name, int32_t low, int32_t high, int32_t* out);
  void Read(absl::string_view name, double low, double high, double* out);
  // Reads a number > 0 and at most `high`.
  void ReadPositive(absl::string_view name, double high, double* out);
  void Read(absl::string_view name, bool* out);
  void Read(absl::string_view name, std::string* out);
  void Read(absl::string_view name, uint64_t* out);
  void Read(absl::string_view name, std::vector<std::string>* out);

  // Read an enum, or a list of them, by proto name: "MODULE_ROLE_ENCODER".
  template <typename Enum>
  using EnumNames = absl::Span<const std::pair<absl::string_view, Enum>>;
  template <typename Enum>
  void ReadEnum(absl::string_view name, EnumNames<Enum> names, Enum* out) {
    if (const JsonValue* value = Find(name)) {
      ParseEnum(*value, Path(name), names, out);
    }
  }
  template <typename Enum>
  void ReadEnums(absl::string_view name, EnumNames<Enum> names,
                 std::vector<Enum>* out) {
    out->clear();
    ForEach(name, [&](const JsonValue& item, const std::string& path) {
      ParseEnum(item, path, names, &out->emplace_back());
    });
  }

  // Calls `read` with a reader of the object; then calls its Finish().
  void ReadObject(absl::string_view name,
                  absl::FunctionRef<void(ObjectReader&)> read);
  // Does the same for each object of a list.
  void ReadObjects(absl::string_view name,
                   absl::FunctionRef<void(ObjectReader&)> read);
  // Calls `visit` with each value of a list and its path: "videos[3]".
  void ForEach(
      absl::string_view name,
      absl::FunctionRef<void(const JsonValue&, const std::string&)> visit);

  // Read single values, for lists that ForEach visits.
  void ParseNumber(const JsonValue& value, const std::string& path, double low,
                   double high, double* out);
  void ParseInteger(const JsonValue& value, const std::string& path,
                    int64_t low, int64_t high, int64_t* out);

  // Record an error of this object or of a field: `FILE:LINE: field "x" is
  // VALUE; it must be ALLOWED`.
  void Refuse(const JsonValue& value, const std::string& path,
              absl::string_view allowed);
  void Refuse(absl::string_view name, absl::string_view allowed);
  void Fail(int32_t line, absl::string_view what);

  // Returns the first field that no call has asked for, or null, and sets
  // `count` to the number of such fields.
  const std::string* FirstUnknown(int32_t* line, int32_t* count) const;

  // Returns the first error; otherwise an error if there is a field that no
  // call has asked for, which may be misspelt (with the names of the known
  // fields); otherwise an error if a required field is missing.
  absl::Status Finish();

 private:
  const JsonValue* Find(absl::string_view name);
  std::string Path(absl::string_view name) const;
  template <typename Enum>
  void ParseEnum(const JsonValue& value, const std::string& path,
                 EnumNames<Enum> names, Enum* out) {
    std::string allowed;
    for (const auto& [enum_name, enum_value] : names) {
      if (value.kind == JsonValue::Kind::kString && value.string == enum_name) {
        *out = enum_value;
        return;
      }
      if (!allowed.empty()) allowed += ", ";
      allowed.append(enum_name.data(), enum_name.size());
    }
    Refuse(value, path, "one of " + allowed);
  }

  absl::string_view file_;
  const JsonValue& value_;
  std::string path_;
  absl::Status status_{};
  std::string missing_{};    // Path of the first missing required field.
  std::vector<bool> asked_;  // Indexed by field of the object.
  std::vector<absl::string_view> known_{};  // Names asked for.
};

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_TEXT_OBJECT_READER_H_
