// A view of one object of another program's configuration file, read
// tolerantly: a field that is absent takes the value that the other program
// would take, and a note says so; fields that nobody asks for are ignored.
//
//   ConfigNotes notes;
//   const ConfigNode config("config.json", &json, "", &notes);
//   const int64_t width = config.Int("hidden_size", kWidth);
//   const int64_t heads = config.Int("num_attention_heads", kHeads, 16);
//
// A field of the wrong type or out of its range is an error, of which the first
// is kept. Not thread-safe: nodes of one file share their notes.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_CONFIG_NODE_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_CONFIG_NODE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "formats/text/json_reader.h"

namespace pipeloom::formats {

// The gathered remarks of reading one configuration.
struct ConfigNotes {
  std::vector<std::string> assumed{};  // In words, without duplicates.
  std::vector<std::string> missing{};  // Paths of fields, or in words.
  absl::Status error{};                // The first.

  void Assume(absl::string_view what);
  void Miss(absl::string_view what);
};

// The values that a field may have.
struct ConfigRange {
  int64_t low = 0;
  int64_t high = 0;
};
// The ranges of the model file (formats/job/model_reader.cc). Products of three
// such values stay within int64_t.
inline constexpr ConfigRange kWidth{1, 1 << 20};
inline constexpr ConfigRange kHeads{1, 1 << 14};
inline constexpr ConfigRange kLayers{1, 4096};
inline constexpr ConfigRange kExperts{0, 1 << 14};
inline constexpr ConfigRange kVocab{1, 1 << 24};
inline constexpr ConfigRange kPixels{1, 1 << 16};
inline constexpr ConfigRange kCount{0, 1 << 20};

class ConfigNode {
 public:
  // `value` may be null: an object without fields. Anything but an object is an
  // error. REQUIRES: `value` and `notes` outlive the node.
  ConfigNode(absl::string_view file, const JsonValue* value, std::string path,
             ConfigNotes* notes);

  // Returns whether the field exists and is not null.
  bool Has(absl::string_view name) const;
  // Returns whether the field is written as null, which some classes take for
  // "none" where they have a default for an absent one.
  bool IsNull(absl::string_view name) const;
  // Returns the object of a field, without fields if it is absent.
  ConfigNode Child(absl::string_view name) const;

  // Return an integer. Without the field: notes that it is missing and returns
  // 0, or notes that `otherwise` is assumed and returns that.
  int64_t Int(absl::string_view name, ConfigRange range) const;
  int64_t Int(absl::string_view name, ConfigRange range,
              int64_t otherwise) const;
  // Returns an integer or, for [height, width] and the like, the first of a
  // list.
  int64_t FirstInt(absl::string_view name, ConfigRange range,
                   int64_t otherwise) const;
  // Returns the value, without a note if the field is absent: for switches
  // that configurations leave out unless they are set.
  bool Flag(absl::string_view name, bool otherwise) const;
  std::optional<int64_t> Optional(absl::string_view name,
                                  ConfigRange range) const;
  double Number(absl::string_view name, double low, double high,
                double otherwise) const;
  std::string Text(absl::string_view name) const;  // "" if absent.
  std::vector<int64_t> Ints(absl::string_view name, ConfigRange range) const;
  // Returns the items of a list; 1 for anything else, and for an empty list.
  int64_t Items(absl::string_view name) const;
  // Returns a list of lists.
  std::vector<std::vector<int64_t>> IntLists(absl::string_view name,
                                             ConfigRange range) const;
  std::vector<std::string> Texts(absl::string_view name) const;
  int64_t NumFields() const;
  // Returns the names of the fields that hold an object, in their order.
  std::vector<std::string> Objects() const;

  // Records an error: FILE:LINE: field "x" `what`.
  void Fail(absl::string_view name, absl::string_view what) const;

  ConfigNotes& notes() const { return *notes_; }
  // Returns the path of a field for a note: "vision_config.depth".
  std::string Path(absl::string_view name) const;

 private:
  const JsonValue* Find(absl::string_view name) const;
  std::optional<int64_t> Parse(const JsonValue& value, absl::string_view name,
                               ConfigRange range) const;

  absl::string_view file_;
  const JsonValue* value_;
  std::string path_;
  ConfigNotes* notes_;
};

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_CONFIG_NODE_H_
