// A writer of JSON text value by value, so that large documents need no tree.
//
//   JsonWriter json;
//   json.BeginObject().Key("ranks").Int(4).EndObject();
//   json.text();   // {"ranks": 4}
//
// Strings are escaped; bytes that are not UTF-8 become U+FFFD. Numbers have the
// shortest form that reads back the same; those without a JSON form become
// null. REQUIRES: each Begin has its End.
#ifndef PIPELOOM_FORMATS_TEXT_JSON_WRITER_H_
#define PIPELOOM_FORMATS_TEXT_JSON_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/units.h"

namespace pipeloom::formats {

class JsonWriter {
 public:
  // With `lines`, members of the outermost two levels stand on lines of their
  // own, except plain values in lists. Without, all is on one line.
  explicit JsonWriter(bool lines = false) : lines_(lines) {}

  JsonWriter& BeginObject() { return Begin('{'); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray() { return Begin('['); }
  JsonWriter& EndArray() { return End(']'); }
  JsonWriter& Key(absl::string_view key);
  JsonWriter& String(absl::string_view value);
  JsonWriter& Int(int64_t value);
  JsonWriter& Number(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  // Writes a duration exactly, in microseconds: 12.345.
  JsonWriter& Micros(Duration value);
  JsonWriter& Count(Bytes value) { return Int(value.count()); }

  const std::string& text() const { return text_; }

 private:
  JsonWriter& Begin(char bracket);
  JsonWriter& End(char bracket);
  void BeforeValue(bool plain);
  void NewLine();

  bool lines_;
  bool after_key_ = false;
  struct Level {
    int count = 0;          // Number of values so far.
    bool on_lines = false;  // Whether one of them began a line.
  };
  std::vector<Level> levels_{};  // One for each open bracket.
  std::string text_{};
};

// Returns `text` with quotes and escapes.
std::string QuoteJson(absl::string_view text);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_TEXT_JSON_WRITER_H_
