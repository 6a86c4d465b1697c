#include "formats/job/job_overrides.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pipeloom::formats {
namespace {

using Kind = JsonValue::Kind;

bool IsPath(absl::string_view name) {
  return absl::StrContains(name, '/') || absl::EndsWith(name, ".json");
}

std::string Camel(absl::string_view snake) {
  std::string text;
  bool upper = false;
  for (const char c : snake) {
    if (c == '_') {
      upper = true;
      continue;
    }
    text += upper ? absl::ascii_toupper(static_cast<unsigned char>(c)) : c;
    upper = false;
  }
  return text;
}

JsonValue* Member(JsonValue* object, absl::string_view key) {
  const std::string camel = Camel(key);
  for (size_t i = 0; i < object->keys.size(); ++i) {
    if (object->keys[i] == key || object->keys[i] == camel) {
      return &object->items[i];
    }
  }
  return nullptr;
}

JsonValue* AddMember(JsonValue* object, absl::string_view key) {
  object->keys.emplace_back(key);
  return &object->items.emplace_back();
}

void RemoveMember(JsonValue* object, absl::string_view key) {
  for (size_t i = 0; i < object->keys.size(); ++i) {
    if (object->keys[i] != key) continue;
    object->keys.erase(object->keys.begin() + static_cast<int64_t>(i));
    object->items.erase(object->items.begin() + static_cast<int64_t>(i));
    return;
  }
}

void AppendString(absl::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      *out += c;
    }
  }
  *out += '"';
}

void Print(const JsonValue& value, std::string* out) {
  switch (value.kind) {
    case Kind::kNull:
      *out += "null";
      return;
    case Kind::kBool:
      *out += value.integer != 0 ? "true" : "false";
      return;
    case Kind::kInteger:
      absl::StrAppend(out, value.integer);
      return;
    case Kind::kUnsigned:
      absl::StrAppend(out, static_cast<uint64_t>(value.integer));
      return;
    case Kind::kNumber: {
      char buffer[32];
      const auto end =
          std::to_chars(buffer, buffer + sizeof(buffer), value.number);
      out->append(buffer, end.ptr);
      return;
    }
    case Kind::kString:
      AppendString(value.string, out);
      return;
    case Kind::kList:
      *out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *out += ',';
        Print(value.items[i], out);
      }
      *out += ']';
      return;
    case Kind::kObject:
      *out += '{';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *out += ',';
        AppendString(value.keys[i], out);
        *out += ':';
        Print(value.items[i], out);
      }
      *out += '}';
      return;
  }
}

// One field of a path, and the selectors of its list: "modules" and "[*]".
struct Segment {
  std::string key{};
  std::vector<std::string> selectors{};
};

absl::StatusOr<std::vector<Segment>> SplitPath(absl::string_view path) {
  std::vector<Segment> segments;
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path \"", path, "\" ", why,
        "; a path is like training.microbatches or model.modules[0].name"));
  };
  // Dots inside brackets belong to names.
  size_t at = 0;
  while (at <= path.size()) {
    Segment segment;
    while (at < path.size() && path[at] != '.' && path[at] != '[') {
      segment.key += path[at++];
    }
    if (segment.key.empty()) return bad("has an empty field");
    while (at < path.size() && path[at] == '[') {
      const size_t close = path.find(']', at);
      if (close == absl::string_view::npos) return bad("lacks a \"]\"");
      segment.selectors.emplace_back(path.substr(at + 1, close - at - 1));
      at = close + 1;
    }
    segments.push_back(std::move(segment));
    if (at == path.size()) break;
    if (path[at] != '.') return bad("has something after \"]\"");
    ++at;
  }
  return segments;
}

struct Walk {
  absl::string_view path{};
  const std::vector<Segment>* segments = nullptr;
  const JobOverride* change = nullptr;
  int changed = 0;
};

absl::Status SetLeaf(const Walk& walk, JsonValue* leaf) {
  const std::string& text = walk.change->value;
  double factor = 0;
  if (absl::StartsWith(text, "*") &&
      absl::SimpleAtod(absl::string_view(text).substr(1), &factor) &&
      std::isfinite(factor)) {
    if (!leaf->is_number()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("path \"%s\" is %s, which the factor %s cannot be "
                          "put on; give a value instead",
                          walk.path, Describe(*leaf), text));
    }
    const double result = leaf->number * factor;
    const bool whole = leaf->kind == Kind::kInteger && std::abs(result) < 9e18;
    leaf->kind = whole ? Kind::kInteger : Kind::kNumber;
    leaf->integer = whole ? std::llround(result) : 0;
    leaf->number = whole ? static_cast<double>(leaf->integer) : result;
    return absl::OkStatus();
  }
  absl::StatusOr<JsonValue> parsed = ParseJson(text, "value");
  if (parsed.ok()) {
    *leaf = *std::move(parsed);
  } else {
    *leaf = JsonValue();
    leaf->kind = Kind::kString;
    leaf->string = text;
  }
  return absl::OkStatus();
}

// Removes the other ways to say what `key` says: a job has one of them.
void RemoveRivals(absl::string_view key, JsonValue* training) {
  static constexpr absl::string_view kWays[] = {
      "microbatches", "global_batch_samples", "global_batch_tokens"};
  if (std::find(std::begin(kWays), std::end(kWays), key) == std::end(kWays)) {
    return;
  }
  for (const absl::string_view way : kWays) {
    if (way == key) continue;
    RemoveMember(training, way);
    RemoveMember(training, Camel(way));
  }
}

absl::Status Descend(Walk* walk, size_t index, bool optional,
                     JsonValue* object);

absl::Status Enter(Walk* walk, size_t index, size_t selector, bool optional,
                   JsonValue* value) {
  const Segment& segment = (*walk->segments)[index];
  if (selector == segment.selectors.size()) {
    if (index + 1 < walk->segments->size()) {
      return Descend(walk, index + 1, optional, value);
    }
    ++walk->changed;
    return SetLeaf(*walk, value);
  }
  const std::string& name = segment.selectors[selector];
  if (value->kind != Kind::kList) {
    return absl::InvalidArgumentError(
        absl::StrFormat("path \"%s\": \"%s\" is %s, no list", walk->path,
                        segment.key, Describe(*value)));
  }
  if (name == "*") {
    for (JsonValue& item : value->items) {
      PIPELOOM_RETURN_IF_ERROR(Enter(walk, index, selector + 1, true, &item));
    }
    return absl::OkStatus();
  }
  size_t position = 0;
  if (absl::SimpleAtoi(name, &position) && position < value->items.size()) {
    return Enter(walk, index, selector + 1, optional, &value->items[position]);
  }
  std::vector<std::string> names;
  for (JsonValue& item : value->items) {
    const JsonValue* label =
        item.kind == Kind::kObject ? Member(&item, "name") : nullptr;
    if (label == nullptr) continue;
    if (label->string == name) {
      return Enter(walk, index, selector + 1, optional, &item);
    }
    names.push_back(label->string);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "path \"%s\": \"%s\" has no item \"%s\"; it has %d items%s%s", walk->path,
      segment.key, name, value->items.size(), names.empty() ? "" : ": ",
      absl::StrJoin(names, ", ")));
}

absl::Status Descend(Walk* walk, size_t index, bool optional,
                     JsonValue* object) {
  const Segment& segment = (*walk->segments)[index];
  if (object->kind != Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrFormat("path \"%s\": there is no field \"%s\" in %s",
                        walk->path, segment.key, Describe(*object)));
  }
  const bool last = index + 1 == walk->segments->size();
  if (last && index == 1 && walk->segments->front().key == "training") {
    RemoveRivals(segment.key, object);
  }
  JsonValue* member = Member(object, segment.key);
  if (member == nullptr && optional && !last) return absl::OkStatus();
  if (member == nullptr) {
    if (!segment.selectors.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "path \"%s\": there is no list \"%s\"", walk->path, segment.key));
    }
    member = AddMember(object, segment.key);
    if (!last) member->kind = Kind::kObject;
  }
  return Enter(walk, index, 0, optional, member);
}

}  // namespace

absl::StatusOr<JobOverride> ParseOverride(absl::string_view text) {
  // The first "=" that is not in a selector.
  size_t equals = text.find('=');
  if (const size_t open = text.find('['); open < equals) {
    const size_t close = text.rfind("]", text.find('=', text.find(']', open)));
    equals = text.find('=', close == absl::string_view::npos ? open : close);
  }
  if (equals == absl::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is no change of a field; one is like "
                     "training.microbatches=32"));
  }
  return JobOverride{
      std::string(absl::StripAsciiWhitespace(text.substr(0, equals))),
      std::string(text.substr(equals + 1))};
}

namespace {

// Returns the text of an error without the file and line that it begins with.
absl::string_view MistakeOf(const absl::Status& error, absl::string_view file) {
  absl::string_view text = error.message();
  if (!absl::ConsumePrefix(&text, file)) return text;
  if (absl::ConsumePrefix(&text, ":")) {
    while (!text.empty() && absl::ascii_isdigit(text.front())) {
      text.remove_prefix(1);
    }
    absl::ConsumePrefix(&text, ":");
  }
  return text;
}

}  // namespace

absl::StatusOr<JobTemplate> JobTemplate::Load(absl::string_view name_or_path,
                                              const std::string& data_dir,
                                              const FileReader& read) {
  JobTemplate job;
  job.own_error_ = LoadJob(name_or_path, data_dir, read).status();
  job.name_ = std::string(name_or_path);
  job.data_dir_ = data_dir;
  job.read_ = read;
  job.file_ = IsPath(name_or_path)
                  ? job.name_
                  : absl::StrCat(data_dir, "/jobs/", name_or_path, ".json");
  absl::StatusOr<std::string> text = read(job.file_);
  absl::StatusOr<JsonValue> tree =
      text.ok() ? ParseJson(*text, job.file_) : text.status();
  if (!tree.ok() || tree->kind != Kind::kObject) {
    if (!job.own_error_.ok()) return job.own_error_;
    if (!tree.ok()) return tree.status();
  }
  job.tree_ = *std::move(tree);
  if (JsonValue* name = Member(&job.tree_, "name"); name == nullptr) {
    name = AddMember(&job.tree_, "name");
    name->kind = Kind::kString;
    name->string = job.name_;
  }
  for (const char* part : {"model", "cluster"}) {
    const JsonValue* named = Member(&job.tree_, part);
    if (named == nullptr || named->kind != Kind::kString) continue;
    const absl::Status applied = job.Apply({part, named->string}, &job.tree_);
    if (!applied.ok() && job.own_error_.ok()) return applied;
  }
  return job;
}

absl::Status JobTemplate::Apply(const JobOverride& change,
                                JsonValue* tree) const {
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<Segment> segments,
                            SplitPath(change.path));
  const bool is_part =
      segments[0].key == "model" || segments[0].key == "cluster";
  // The GPU of another cluster, without its links and nodes.
  const bool is_device =
      segments.size() == 2 && segments[0].key == "cluster" &&
      segments[1].key == "device" && segments[1].selectors.empty() &&
      !absl::StartsWith(absl::StripLeadingAsciiWhitespace(change.value), "{");
  if (is_part && (segments.size() == 1 || is_device)) {
    const std::string folder = segments[0].key + "s";
    std::string path =
        absl::StrCat(data_dir_, "/", folder, "/", change.value, ".json");
    if (IsPath(change.value)) {
      const size_t slash = file_.rfind('/');
      path = absl::StartsWith(change.value, "/") || slash == std::string::npos
                 ? change.value
                 : absl::StrCat(file_.substr(0, slash + 1), change.value);
    } else {
      const std::vector<std::string> names =
          folder == "models" ? ShippedModelNames() : ShippedClusterNames();
      if (std::find(names.begin(), names.end(), change.value) == names.end()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s=%s: there is no such %s; shipped are %s", change.path,
            change.value, segments[0].key, absl::StrJoin(names, ", ")));
      }
    }
    PIPELOOM_ASSIGN_OR_RETURN(const std::string text, read_(path));
    PIPELOOM_ASSIGN_OR_RETURN(JsonValue part, ParseJson(text, path));
    if (is_device) {
      const JsonValue* device = Member(&part, "device");
      JsonValue* own = Member(tree, "cluster_spec");
      if (device == nullptr || own == nullptr) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s=%s: it has no field \"device\"", change.path, change.value));
      }
      JsonValue taken = *device;
      RemoveMember(own, "device");
      *AddMember(own, "device") = std::move(taken);
      return absl::OkStatus();
    }
    if (Member(&part, "name") == nullptr) {
      JsonValue* name = AddMember(&part, "name");
      name->kind = Kind::kString;
      name->string = change.value;
    }
    RemoveMember(tree, segments[0].key);
    RemoveMember(tree, segments[0].key + "_spec");
    *AddMember(tree, segments[0].key + "_spec") = std::move(part);
    return absl::OkStatus();
  }
  if (is_part) segments[0].key += "_spec";
  Walk walk{change.path, &segments, &change};
  PIPELOOM_RETURN_IF_ERROR(Descend(&walk, 0, false, tree));
  if (walk.changed > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "path \"%s\" changes nothing: no item has these fields", change.path));
}

absl::StatusOr<JobSpec> JobTemplate::With(
    absl::Span<const JobOverride> changes) const {
  bool readable = false;
  return Make(changes, &readable);
}

absl::Status JobTemplate::CheckReadable(
    absl::Span<const JobOverride> changes) const {
  bool readable = false;
  const absl::Status made = Make(changes, &readable).status();
  return readable ? absl::OkStatus() : made;
}

absl::StatusOr<JobSpec> JobTemplate::Make(absl::Span<const JobOverride> changes,
                                          bool* readable) const {
  JsonValue tree = tree_;
  std::string file = name_;
  for (const JobOverride& change : changes) {
    const absl::Status applied = Apply(change, &tree);
    if (!applied.ok()) return own_error_.ok() ? applied : own_error_;
    absl::StrAppend(&file, file == name_ ? " with " : ", ", change.path, "=",
                    change.value);
  }
  std::string text;
  Print(tree, &text);
  absl::StatusOr<JobSpec> job = ParseJob(text, file, data_dir_, read_);
  // Errors of the reader have a line, here one of the printed tree.
  *readable = job.ok() || absl::StartsWith(job.status().message(), file + ": ");
  if (job.ok()) return job;
  const absl::string_view mistake = MistakeOf(job.status(), file);
  if (!own_error_.ok() &&
      (changes.empty() || MistakeOf(own_error_, file_) == mistake)) {
    return own_error_;  // With the line in the file.
  }
  if (!absl::StartsWith(job.status().message(), file + ":")) return job;
  return absl::Status(job.status().code(), absl::StrCat(file, ":", mistake));
}

}  // namespace pipeloom::formats
