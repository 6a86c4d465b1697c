#include "formats/profile/op_query_reader.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/profile/op_names.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

constexpr int64_t kMax = int64_t{1} << 50;

template <typename Enum>
void ReadWord(ObjectReader& reader, absl::string_view name,
              std::optional<Enum> (*parse)(absl::string_view),
              absl::string_view words, Enum* out) {
  if (!reader.Has(name)) return;
  std::string word;
  reader.Read(name, &word);
  if (!reader.ok()) return;
  if (const std::optional<Enum> value = parse(word)) {
    *out = *value;
  } else {
    reader.Refuse(name, absl::StrCat("one of ", words));
  }
}

// Returns the name under which a required field is missing, or "".
absl::string_view ReadField(ObjectReader& reader, const QueryField& field,
                            OpQuery* query) {
  absl::string_view name = field.name;
  if (name == "width" && reader.Has("hidden")) name = "hidden";
  const bool has = reader.Has(name);
  if (!has && query->op == OpType::kSendRecv && name == "ranks") {
    query->ranks = 2;
    return "";
  }
  reader.Read(name, field.least, kMax, &(query->*field.value));
  return has || !field.required ? "" : name;
}

// Returns the end of the value that begins at `begin`: a comma or bracket of
// the enclosing object. REQUIRES: `text` is JSON.
size_t EndOfMember(absl::string_view text, size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth-- == 0) return i;
    } else if (c == ',' && depth == 0) {
      return i;
    }
  }
  return text.size();
}

// Returns the members of a JSON object without those of the answer.
std::string MembersWithoutAnswer(absl::string_view object) {
  std::string kept;
  for (size_t begin = 1; begin < object.size();) {
    const size_t end = EndOfMember(object, begin);
    const absl::string_view member =
        absl::StripAsciiWhitespace(object.substr(begin, end - begin));
    const bool answer = absl::StartsWith(member, "\"time_us\"") ||
                        absl::StartsWith(member, "\"source\"");
    if (!member.empty() && !answer) {
      absl::StrAppend(&kept, kept.empty() ? "" : ", ", member);
    }
    begin = end + 1;
  }
  return kept;
}

}  // namespace

absl::StatusOr<ParsedQuery> ParseOpQuery(absl::string_view line,
                                         absl::string_view file_name,
                                         int32_t line_number) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json,
                            ParseJson(line, file_name, line_number));
  ObjectReader reader(file_name, json, "");
  ParsedQuery parsed;
  OpQuery& query = parsed.query;
  ReadWord(reader, "op", OpTypeOf, OpTypeWords(), &query.op);
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  if (!reader.Has("op")) {
    return ErrorAt(file_name, line_number,
                   absl::StrCat("field \"op\" is missing; it must be one of ",
                                OpTypeWords()));
  }
  absl::string_view missing;
  for (const QueryField& field : FieldsOf(query.op)) {
    const absl::string_view name = ReadField(reader, field, &query);
    if (missing.empty()) missing = name;
  }
  ReadWord(reader, "dtype", DtypeOf, kDtypeWords, &query.dtype);
  ReadWord(reader, "pass", PassOf, kPassWords, &query.pass);
  if (query.op == OpType::kAttention) {
    ReadWord(reader, "mask", MaskOf, kMaskWords, &query.mask);
    bool causal = query.mask == QueryMask::kCausal;
    reader.Read("causal", &causal);
    query.mask = causal ? QueryMask::kCausal : QueryMask::kFull;
    if (query.kv_heads == 0) query.kv_heads = query.heads;
  }
  if (IsCollective(query.op)) {
    ReadWord(reader, "span", SpanOf, kSpanWords, &query.span);
  }
  parsed.has_answer = reader.Has("time_us") || reader.Has("source");
  int32_t extra_line = 0;
  int32_t count = 0;
  if (const std::string* name = reader.FirstUnknown(&extra_line, &count)) {
    parsed.extra = *name;
  }
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  if (!missing.empty()) {
    return ErrorAt(file_name, line_number,
                   absl::StrCat("field \"", missing, "\" is missing; ",
                                Name(query.op), " needs it"));
  }
  const absl::Status valid = ValidateOpQuery(query);
  if (!valid.ok()) return ErrorAt(file_name, line_number, valid.message());
  return parsed;
}

std::string AnswerLine(absl::string_view line, const ParsedQuery& parsed,
                       absl::string_view time_us, absl::string_view source) {
  absl::string_view object = absl::StripAsciiWhitespace(line);
  std::string text;
  if (parsed.has_answer) {
    text = absl::StrCat("{", MembersWithoutAnswer(object));
  } else {
    object.remove_suffix(1);
    text = std::string(absl::StripTrailingAsciiWhitespace(object));
  }
  return absl::StrCat(text, ", \"time_us\": ", time_us, ", \"source\": \"",
                      source, "\"}");
}

}  // namespace pipeloom::formats
