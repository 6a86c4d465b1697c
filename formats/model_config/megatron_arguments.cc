#include "formats/model_config/megatron_arguments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "formats/text/json_reader.h"

namespace pipeloom::formats {
namespace {

constexpr int kMaxDepth = 16;
constexpr size_t kMaxItems = 1 << 16;

struct Word {
  std::string text{};
  int64_t line = 1;
};

// Splits a shell's text: quotes, backslashes at the ends of lines and comments
// are resolved.
std::vector<Word> SplitWords(absl::string_view text) {
  std::vector<Word> words;
  Word word;
  bool in_word = false;
  char quote = 0;
  int64_t line = 1;
  const auto end_word = [&] {
    if (in_word) words.push_back(std::move(word));
    word = {};
    in_word = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word.text += c;
      }
      continue;
    }
    if (c == '\\' && i + 1 < text.size()) {
      if (text[i + 1] == '\n') {
        ++line;
      } else if (text[i + 1] != '\r') {
        word.text += text[i + 1];
        in_word = true;
      }
      ++i;
    } else if (c == '#' && !in_word) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (absl::ascii_isspace(c) || c == ';') {
      end_word();
    } else {
      if (!in_word) word.line = line;
      in_word = true;
      if (c == '"' || c == '\'') {
        quote = c;
      } else {
        word.text += c;
      }
    }
  }
  end_word();
  return words;
}

bool IsName(absl::string_view text) {
  if (text.empty() || absl::ascii_isdigit(text[0])) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

bool IsFlag(absl::string_view word) {
  return word.size() > 2 && absl::StartsWith(word, "--") &&
         absl::ascii_isalpha(word[2]);
}

// Returns whether a word of the text looks like a flag.
bool HasFlag(absl::string_view text) {
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty())) {
    if (IsFlag(word)) return true;
  }
  return false;
}

// Returns the name of a shell's variable: N of $N, ${N} and ${N:-32}, whose
// default goes to `otherwise`. "": not a variable.
absl::string_view VariableOf(absl::string_view word,
                             absl::string_view* otherwise) {
  if (!absl::ConsumePrefix(&word, "$")) return {};
  if (absl::ConsumePrefix(&word, "{")) {
    if (!absl::ConsumeSuffix(&word, "}")) return {};
    const size_t colon = word.find(":-");
    if (colon != absl::string_view::npos) {
      *otherwise = word.substr(colon + 2);
      word = word.substr(0, colon);
    }
  }
  return IsName(word) ? word : absl::string_view();
}

bool IsNone(absl::string_view text) {
  return text.empty() || text == "None" || text == "null" || text == "~";
}

std::string Normalized(absl::string_view written) {
  absl::ConsumePrefix(&written, "--");
  return absl::AsciiStrToLower(absl::StrReplaceAll(written, {{"-", "_"}}));
}

// Reads lists of integers as Python writes them: sums and multiples of lists.
class PatternReader {
 public:
  explicit PatternReader(absl::string_view text) : text_(text) {}

  std::optional<std::vector<int64_t>> Read() {
    std::vector<int64_t> list;
    if (!Sum(&list, 0) || Peek() != 0) return std::nullopt;
    return list;
  }

 private:
  char Peek() {
    while (!text_.empty() && absl::ascii_isspace(text_[0])) {
      text_.remove_prefix(1);
    }
    return text_.empty() ? 0 : text_[0];
  }
  bool Take(char c) {
    if (Peek() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool Number(int64_t* number) {
    Peek();
    size_t digits = 0;
    while (digits < text_.size() && absl::ascii_isdigit(text_[digits])) {
      ++digits;
    }
    const bool read = absl::SimpleAtoi(text_.substr(0, digits), number);
    text_.remove_prefix(digits);
    return read;
  }
  bool Sum(std::vector<int64_t>* list, int depth) {
    do {
      if (!Product(list, depth)) return false;
    } while (Take('+'));
    return true;
  }
  bool Product(std::vector<int64_t>* list, int depth) {
    std::vector<int64_t> one;
    if (depth > kMaxDepth) return false;
    if (Take('(')) {
      if (!Sum(&one, depth + 1) || !Take(')')) return false;
    } else if (Take('[')) {
      while (!Take(']')) {
        int64_t number = 0;
        if (!Number(&number)) return false;
        one.push_back(number);
        if (Peek() != ']' && !Take(',')) return false;
      }
    } else {
      return false;
    }
    int64_t times = 1;
    if (Take('*') && !Number(&times)) return false;
    if (times > static_cast<int64_t>(kMaxItems) ||
        one.size() * times + list->size() > kMaxItems) {
      return false;
    }
    for (int64_t i = 0; i < times; ++i) {
      list->insert(list->end(), one.begin(), one.end());
    }
    return true;
  }

  absl::string_view text_;
};

// Returns a JSON value as the word that a command line would have.
std::string WordOf(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "None";
    case JsonValue::Kind::kBool:
      return value.integer != 0 ? "True" : "False";
    case JsonValue::Kind::kInteger:
      return absl::StrCat(value.integer);
    case JsonValue::Kind::kString:
      return value.string;
    case JsonValue::Kind::kList: {
      std::vector<std::string> items;
      for (const JsonValue& item : value.items) items.push_back(WordOf(item));
      return absl::StrCat("[", absl::StrJoin(items, ","), "]");
    }
    default:
      return absl::StrCat(value.number);
  }
}

}  // namespace

absl::StatusOr<MegatronArguments> MegatronArguments::Parse(
    absl::string_view text, absl::string_view file) {
  MegatronArguments arguments;
  arguments.file_ = std::string(file);
  const absl::string_view stripped = absl::StripLeadingAsciiWhitespace(text);
  if (absl::StartsWith(stripped, "{")) {
    PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file));
    arguments.AddObject(json);
  } else if (HasFlag(text)) {
    arguments.AddFlags(text);
  } else {
    arguments.AddLines(text);
  }
  for (const char* name : {"num_layers", "hidden_size"}) {
    if (arguments.values_.contains(name)) return arguments;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file,
      ": has neither --num-layers nor --hidden-size; write the arguments of "
      "Megatron-LM as flags (--num-layers 32 ...), or those of a checkpoint as "
      "JSON or YAML"));
}

void MegatronArguments::Add(absl::string_view argument,
                            std::vector<std::string> words, int64_t line) {
  // Errors quote it.
  std::string written(argument);
  for (char& c : written) c = absl::ascii_isprint(c) ? c : '?';
  std::string name = Normalized(written);
  // Flags whose argument has another name.
  if (absl::StartsWith(written, "--")) {
    if (name == "disable_bias_linear") {
      name = "add_bias_linear";
      words = {"False"};
    } else if (name == "use_rotary_position_embeddings") {
      name = "position_embedding_type";
      words = {"rope"};
    }
  }
  for (std::string& word : words) {
    for (char& c : word) c = absl::ascii_isprint(c) ? c : '?';
  }
  const auto [at, is_new] =
      values_.try_emplace(name, Value{words, line, written});
  Value& value = at->second;
  if (!is_new && value.words != words && value.clash.empty()) {
    value.clash = absl::StrFormat(
        "%s:%d: argument \"%s\" is given a second time, as %s; in line %d it "
        "is %s; leave one of them",
        file_, line, written, absl::StrJoin(words, " "), value.line,
        absl::StrJoin(value.words, " "));
  }
}

void MegatronArguments::AddFlags(absl::string_view text) {
  std::map<std::string, std::string, std::less<>> variables;
  const std::vector<Word> words = SplitWords(text);
  const auto resolved = [&](const std::string& word) {
    absl::string_view otherwise;
    const auto at = variables.find(VariableOf(word, &otherwise));
    if (at != variables.end()) return at->second;
    return otherwise.empty() ? word : std::string(otherwise);
  };
  for (size_t i = 0; i < words.size();) {
    const std::string& word = words[i].text;
    const int64_t line = words[i].line;
    ++i;
    if (!IsFlag(word)) {
      const size_t equals = word.find('=');
      if (equals != std::string::npos && IsName(word.substr(0, equals))) {
        variables[word.substr(0, equals)] = resolved(word.substr(equals + 1));
      }
      continue;
    }
    std::vector<std::string> values;
    const size_t equals = word.find('=');
    if (equals != std::string::npos) {
      values.push_back(resolved(word.substr(equals + 1)));
    }
    for (; i < words.size(); ++i) {
      const std::string& next = words[i].text;
      const size_t assigned = next.find('=');
      if (IsFlag(next) || next == "(" || next == ")" ||
          (assigned != std::string::npos && IsName(next.substr(0, assigned)))) {
        break;
      }
      std::string value = resolved(next);
      // The flags of another variable.
      if (absl::StartsWith(value, "$") && absl::StrContains(value, "[@]")) {
        continue;
      }
      // The end of a shell's list behind the last word.
      while (absl::EndsWith(value, ")") &&
             std::count(value.begin(), value.end(), ')') >
                 std::count(value.begin(), value.end(), '(')) {
        value.pop_back();
      }
      values.push_back(std::move(value));
    }
    Add(absl::string_view(word).substr(0, equals), std::move(values), line);
  }
}

void MegatronArguments::AddLines(absl::string_view text) {
  int64_t number = 0;
  std::string last;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const size_t comment = line.find(" #");
    line = absl::StripAsciiWhitespace(line.substr(0, comment));
    if (line.empty() || line[0] == '#') continue;
    // An item of a list of several lines.
    if (!last.empty() && absl::ConsumePrefix(&line, "- ")) {
      values_[last].words.emplace_back(absl::StripAsciiWhitespace(line));
      continue;
    }
    const size_t end = line.find_first_of(" :=\t.");
    const absl::string_view name = line.substr(0, end);
    if (end == absl::string_view::npos || !IsName(name)) continue;
    absl::string_view value = line.substr(end);
    const size_t begin = value.find_first_not_of(" :=\t.");
    value = begin == absl::string_view::npos ? absl::string_view()
                                             : value.substr(begin);
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') &&
        value.back() == value[0]) {
      value = value.substr(1, value.size() - 2);
    }
    std::vector<std::string> words;
    if (!value.empty()) words.emplace_back(value);
    last = words.empty() ? Normalized(name) : "";
    Add(name, std::move(words), number);
  }
  // A name with neither value nor items is that of a section.
  for (auto at = values_.begin(); at != values_.end();) {
    at = at->second.words.empty() ? values_.erase(at) : std::next(at);
  }
}

void MegatronArguments::AddObject(const JsonValue& object) {
  for (size_t i = 0; i < object.keys.size(); ++i) {
    const JsonValue& value = object.items[i];
    if (value.kind == JsonValue::Kind::kObject) {
      AddObject(value);
    } else {
      Add(object.keys[i], {WordOf(value)}, value.line);
    }
  }
}

const MegatronArguments::Value* MegatronArguments::Find(
    absl::string_view name) const {
  const auto at = values_.find(name);
  if (at == values_.end()) return nullptr;
  at->second.used = true;
  return &at->second;
}

bool MegatronArguments::Has(absl::string_view name) const {
  const Value* value = Find(name);
  return value != nullptr && (value->words.empty() || !IsNone(value->words[0]));
}

void MegatronArguments::Fail(absl::string_view name, absl::string_view what,
                             ConfigNotes* notes) const {
  if (!notes->error.ok()) return;
  const Value* value = Find(name);
  notes->error = absl::InvalidArgumentError(absl::StrFormat(
      "%s:%d: argument \"%s\" %s", file_, value == nullptr ? 1 : value->line,
      value == nullptr ? name : absl::string_view(value->written), what));
}

std::string MegatronArguments::Text(absl::string_view name) const {
  const Value* value = Find(name);
  if (value == nullptr || value->words.empty() || IsNone(value->words[0])) {
    return "";
  }
  return value->words[0];
}

bool MegatronArguments::Flag(absl::string_view name, bool otherwise) const {
  const Value* value = Find(name);
  if (value == nullptr) return otherwise;
  if (value->words.empty()) return true;
  const std::string word = absl::AsciiStrToLower(value->words[0]);
  return word != "false" && word != "0" && !IsNone(value->words[0]);
}

std::optional<int64_t> MegatronArguments::Int(absl::string_view name,
                                              ConfigRange range,
                                              ConfigNotes* notes) const {
  const Value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->words.empty()) {
    Fail(name, "has no value; write a number", notes);
    return std::nullopt;
  }
  const std::string& word = value->words[0];
  if (IsNone(word)) return std::nullopt;
  int64_t number = 0;
  if (!absl::SimpleAtoi(word, &number) || number < range.low ||
      number > range.high) {
    Fail(name,
         absl::StrFormat(
             "is %s; it must be %s in [%d, %d]", word,
             absl::StartsWith(word, "$")
                 ? "a number in place of a variable that has no value here,"
                 : "an integer",
             range.low, range.high),
         notes);
    return std::nullopt;
  }
  return number;
}

std::vector<bool> MegatronArguments::Pattern(absl::string_view name,
                                             int64_t layers,
                                             ConfigNotes* notes) const {
  std::vector<bool> pattern(layers, true);
  const Value* value = Find(name);
  if (value == nullptr || value->words.empty() || IsNone(value->words[0])) {
    return pattern;
  }
  const std::string text =
      value->words.size() == 1
          ? value->words[0]
          : absl::StrCat("[", absl::StrJoin(value->words, ","), "]");
  int64_t every = 0;
  if (absl::SimpleAtoi(text, &every) && every >= 1) {
    for (int64_t i = 0; i < layers; ++i) pattern[i] = i % every == 0;
    return pattern;
  }
  const auto list = PatternReader(text).Read();
  const bool is_whole =
      list.has_value() && static_cast<int64_t>(list->size()) == layers &&
      std::all_of(list->begin(), list->end(),
                  [](int64_t item) { return item == 0 || item == 1; });
  if (!is_whole) {
    Fail(name,
         absl::StrFormat("is %s; it must be a number, or a list of %d 0s and "
                         "1s, one a layer, such as ([0]*1+[1]*%d)",
                         text, layers, layers - 1),
         notes);
    return pattern;
  }
  for (int64_t i = 0; i < layers; ++i) pattern[i] = (*list)[i] == 1;
  return pattern;
}

std::vector<int64_t> MegatronArguments::Ints(absl::string_view name,
                                             ConfigRange range,
                                             ConfigNotes* notes) const {
  const Value* value = Find(name);
  std::vector<int64_t> numbers;
  if (value == nullptr || value->words.empty() || IsNone(value->words[0])) {
    return numbers;
  }
  const std::string text = absl::StrJoin(value->words, ",");
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar("[](), "), absl::SkipEmpty())) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < range.low ||
        number > range.high) {
      Fail(name,
           absl::StrFormat("is %s; it must be integers in [%d, %d]", text,
                           range.low, range.high),
           notes);
      return {};
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status MegatronArguments::UsedTwice() const {
  for (const auto& [name, value] : values_) {
    if (value.used && !value.clash.empty()) {
      return absl::InvalidArgumentError(value.clash);
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> MegatronArguments::Unused() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : values_) {
    if (!value.used) names.push_back(value.written);
  }
  return names;
}

}  // namespace pipeloom::formats
