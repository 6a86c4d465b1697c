// Reader of JSON text into a small tree that keeps line numbers, so that an
// error can name the line at fault.
//
// Stricter than JSON: a key may occur only once in an object, text must be
// UTF-8, nesting is limited. Cost is linear in the text. Throws no exceptions.
#ifndef PIPELOOM_FORMATS_TEXT_JSON_READER_H_
#define PIPELOOM_FORMATS_TEXT_JSON_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {

// A value of the tree.
struct JsonValue {
  enum class Kind {
    kNull,
    kBool,
    kInteger,   // Fits int64_t.
    kUnsigned,  // Above int64_t, fits uint64_t.
    kNumber,    // Anything else: has a fraction, an exponent or is huge.
    kString,
    kList,
    kObject,
  };
  Kind kind = Kind::kNull;
  int32_t line = 0;      // Line where it begins; 1 is the first.
  int64_t integer = 0;   // kInteger; kBool as 0 or 1; kUnsigned as bits.
  double number = 0;     // For every kind of number.
  std::string string{};  // kString.
  std::vector<JsonValue> items{};   // kList; values of kObject.
  std::vector<std::string> keys{};  // kObject, parallel to items.

  bool is_number() const {
    return kind == Kind::kInteger || kind == Kind::kUnsigned ||
           kind == Kind::kNumber;
  }
};

// Returns InvalidArgument with the text "FILE:LINE: what".
absl::Status ErrorAt(absl::string_view file, int32_t line,
                     absl::string_view what);

// Describes a value for an error text: `-3`, `"abc"`, `a list`. Short, plain
// ASCII.
std::string Describe(const JsonValue& value);

// Parses one JSON value and nothing after it. `first_line` is the number of the
// text's first line in `file`. InvalidArgument: "FILE:LINE: ..." with the
// mistake.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text,
                                    absl::string_view file,
                                    int32_t first_line = 1);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_TEXT_JSON_READER_H_
