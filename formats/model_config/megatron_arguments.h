// The arguments of a Megatron-LM training by the names of its argument parser,
// read from any of
//
//   --num-layers 32 --swiglu          command-line flags, or the shell script
//                                     that holds them
//   {"num_layers": 32}                the arguments of a checkpoint as JSON
//   num_layers: 32                    the same as YAML
//   num_layers ........ 32            the list that Megatron-LM logs
//
// Sections of YAML and JSON are read as one list. Assignments of a script
// (LAYERS=32) are put in for $LAYERS; its other commands are ignored.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MEGATRON_ARGUMENTS_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MEGATRON_ARGUMENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/model_config/config_node.h"

namespace pipeloom::formats {

// The arguments with the questions that were asked of them. The first error is
// kept in the notes: FILE:LINE: argument "x" ... Not thread-safe.
class MegatronArguments {
 public:
  // InvalidArgument names file and line: text in none of the forms, or JSON
  // with a mistake.
  static absl::StatusOr<MegatronArguments> Parse(absl::string_view text,
                                                 absl::string_view file);

  // Return an argument's value, or nothing if it is absent or None.
  std::optional<int64_t> Int(absl::string_view name, ConfigRange range,
                             ConfigNotes* notes) const;
  std::string Text(absl::string_view name) const;  // "" if absent.
  bool Flag(absl::string_view name, bool otherwise) const;
  // Returns 0s and 1s, one a layer: of a number n every n-th is 1, else the
  // value is a list in Python such as ([0]*3+[1]*58).
  std::vector<bool> Pattern(absl::string_view name, int64_t layers,
                            ConfigNotes* notes) const;
  // Returns the integers of "(127, 0)", [127, 0] and the like.
  std::vector<int64_t> Ints(absl::string_view name, ConfigRange range,
                            ConfigNotes* notes) const;

  bool Has(absl::string_view name) const;
  // Records the error of an argument.
  void Fail(absl::string_view name, absl::string_view what,
            ConfigNotes* notes) const;
  // Returns the arguments that nobody has asked for, as they were written.
  std::vector<std::string> Unused() const;
  // Returns the error of an argument that was asked for and is given twice with
  // different values, if there is one.
  absl::Status UsedTwice() const;

 private:
  struct Value {
    std::vector<std::string> words{};  // Empty: a flag without a value.
    int64_t line = 1;
    std::string written{};  // "--num-layers", "num_layers".
    std::string clash{};    // The error of a second value that differs.
    mutable bool used = false;
  };

  const Value* Find(absl::string_view name) const;
  void Add(absl::string_view argument, std::vector<std::string> words,
           int64_t line);
  void AddFlags(absl::string_view text);
  void AddLines(absl::string_view text);
  void AddObject(const struct JsonValue& object);

  std::string file_{};
  std::map<std::string, Value, std::less<>> values_{};
};

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MEGATRON_ARGUMENTS_H_
