#include "formats/model_config/config_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

// A list of a configuration is never longer; bounds hostile input.
constexpr size_t kMaxItems = 4096;

void AddOnce(absl::string_view what, std::vector<std::string>* list) {
  if (std::find(list->begin(), list->end(), what) == list->end()) {
    list->emplace_back(what);
  }
}

}  // namespace

void ConfigNotes::Assume(absl::string_view what) { AddOnce(what, &assumed); }
void ConfigNotes::Miss(absl::string_view what) { AddOnce(what, &missing); }

ConfigNode::ConfigNode(absl::string_view file, const JsonValue* value,
                       std::string path, ConfigNotes* notes)
    : file_(file), value_(value), path_(std::move(path)), notes_(notes) {
  if (value_ == nullptr) return;
  if (value_->kind == JsonValue::Kind::kNull) {
    value_ = nullptr;
  } else if (value_->kind != JsonValue::Kind::kObject) {
    if (notes_->error.ok()) {
      notes_->error = ErrorAt(
          file_, value_->line,
          path_.empty()
              ? absl::StrCat("the file holds ", Describe(*value_),
                             "; a configuration is an object")
              : absl::StrFormat("field \"%s\" is %s; it must be an object",
                                path_.substr(0, path_.size() - 1),
                                Describe(*value_)));
    }
    value_ = nullptr;
  }
}

const JsonValue* ConfigNode::Find(absl::string_view name) const {
  if (value_ == nullptr) return nullptr;
  for (size_t i = 0; i < value_->keys.size(); ++i) {
    if (value_->keys[i] != name) continue;
    const JsonValue& item = value_->items[i];
    return item.kind == JsonValue::Kind::kNull ? nullptr : &item;
  }
  return nullptr;
}

bool ConfigNode::Has(absl::string_view name) const {
  return Find(name) != nullptr;
}

bool ConfigNode::IsNull(absl::string_view name) const {
  if (value_ == nullptr) return false;
  for (size_t i = 0; i < value_->keys.size(); ++i) {
    if (value_->keys[i] == name) {
      return value_->items[i].kind == JsonValue::Kind::kNull;
    }
  }
  return false;
}

std::string ConfigNode::Path(absl::string_view name) const {
  return absl::StrCat(path_, name);
}

ConfigNode ConfigNode::Child(absl::string_view name) const {
  return ConfigNode(file_, Find(name), absl::StrCat(path_, name, "."), notes_);
}

void ConfigNode::Fail(absl::string_view name, absl::string_view what) const {
  if (!notes_->error.ok()) return;
  const JsonValue* value = Find(name);
  const int32_t line = value != nullptr    ? value->line
                       : value_ != nullptr ? value_->line
                                           : 1;
  notes_->error = ErrorAt(file_, line,
                          absl::StrFormat("field \"%s\" %s", Path(name), what));
}

std::optional<int64_t> ConfigNode::Parse(const JsonValue& value,
                                         absl::string_view name,
                                         ConfigRange range) const {
  double number = value.number;
  if (value.kind == JsonValue::Kind::kInteger) {
    if (value.integer >= range.low && value.integer <= range.high) {
      return value.integer;
    }
  } else if (value.kind == JsonValue::Kind::kNumber &&
             number >= static_cast<double>(range.low) &&
             number <= static_cast<double>(range.high)) {
    const auto whole = static_cast<int64_t>(number);
    if (static_cast<double>(whole) == number) return whole;
  }
  Fail(name, absl::StrFormat("is %s; it must be an integer in [%d, %d]",
                             Describe(value), range.low, range.high));
  return std::nullopt;
}

int64_t ConfigNode::Int(absl::string_view name, ConfigRange range) const {
  const JsonValue* value = Find(name);
  if (value == nullptr) {
    notes_->Miss(Path(name));
    return 0;
  }
  return Parse(*value, name, range).value_or(0);
}

int64_t ConfigNode::Int(absl::string_view name, ConfigRange range,
                        int64_t otherwise) const {
  const JsonValue* value = Find(name);
  if (value == nullptr) {
    notes_->Assume(absl::StrFormat("%s = %d", Path(name), otherwise));
    return otherwise;
  }
  return Parse(*value, name, range).value_or(otherwise);
}

int64_t ConfigNode::FirstInt(absl::string_view name, ConfigRange range,
                             int64_t otherwise) const {
  const JsonValue* value = Find(name);
  if (value == nullptr || value->kind != JsonValue::Kind::kList ||
      value->items.empty()) {
    return Int(name, range, otherwise);
  }
  return Parse(value->items[0], name, range).value_or(otherwise);
}

bool ConfigNode::Flag(absl::string_view name, bool otherwise) const {
  const JsonValue* value = Find(name);
  if (value == nullptr) return otherwise;
  if (value->kind != JsonValue::Kind::kBool) {
    Fail(name,
         absl::StrFormat("is %s; it must be true or false", Describe(*value)));
    return otherwise;
  }
  return value->integer != 0;
}

std::optional<int64_t> ConfigNode::Optional(absl::string_view name,
                                            ConfigRange range) const {
  const JsonValue* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return Parse(*value, name, range);
}

double ConfigNode::Number(absl::string_view name, double low, double high,
                          double otherwise) const {
  const JsonValue* value = Find(name);
  if (value == nullptr) {
    notes_->Assume(absl::StrFormat("%s = %g", Path(name), otherwise));
    return otherwise;
  }
  if (!value->is_number() || !(value->number >= low && value->number <= high)) {
    Fail(name, absl::StrFormat("is %s; it must be a number in [%g, %g]",
                               Describe(*value), low, high));
    return otherwise;
  }
  return value->number;
}

std::string ConfigNode::Text(absl::string_view name) const {
  const JsonValue* value = Find(name);
  if (value == nullptr) return "";
  if (value->kind != JsonValue::Kind::kString) {
    Fail(name, absl::StrFormat("is %s; it must be a text", Describe(*value)));
    return "";
  }
  return value->string;
}

std::vector<int64_t> ConfigNode::Ints(absl::string_view name,
                                      ConfigRange range) const {
  std::vector<int64_t> values;
  const JsonValue* value = Find(name);
  if (value == nullptr) return values;
  if (value->kind != JsonValue::Kind::kList ||
      value->items.size() > kMaxItems) {
    Fail(name, absl::StrFormat("is %s; it must be a list of at most %d numbers",
                               Describe(*value), kMaxItems));
    return values;
  }
  for (const JsonValue& item : value->items) {
    const std::optional<int64_t> number = Parse(item, name, range);
    if (!number.has_value()) return {};
    values.push_back(*number);
  }
  return values;
}

int64_t ConfigNode::Items(absl::string_view name) const {
  const JsonValue* value = Find(name);
  if (value == nullptr || value->kind != JsonValue::Kind::kList ||
      value->items.empty()) {
    return 1;
  }
  if (value->items.size() > kMaxItems) {
    Fail(name, absl::StrFormat("is %s; it must have at most %d items",
                               Describe(*value), kMaxItems));
    return 1;
  }
  return static_cast<int64_t>(value->items.size());
}

std::vector<std::vector<int64_t>> ConfigNode::IntLists(
    absl::string_view name, ConfigRange range) const {
  std::vector<std::vector<int64_t>> lists;
  const JsonValue* value = Find(name);
  if (value == nullptr) return lists;
  if (value->kind != JsonValue::Kind::kList ||
      value->items.size() > kMaxItems) {
    Fail(name, absl::StrFormat("is %s; it must be a list of at most %d lists",
                               Describe(*value), kMaxItems));
    return lists;
  }
  for (const JsonValue& item : value->items) {
    if (item.kind != JsonValue::Kind::kList || item.items.size() > kMaxItems) {
      Fail(name,
           absl::StrFormat("has %s; its items must be lists", Describe(item)));
      return {};
    }
    std::vector<int64_t>& list = lists.emplace_back();
    for (const JsonValue& entry : item.items) {
      const std::optional<int64_t> number = Parse(entry, name, range);
      if (!number.has_value()) return {};
      list.push_back(*number);
    }
  }
  return lists;
}

std::vector<std::string> ConfigNode::Texts(absl::string_view name) const {
  std::vector<std::string> values;
  const JsonValue* value = Find(name);
  if (value == nullptr) return values;
  if (value->kind != JsonValue::Kind::kList ||
      value->items.size() > kMaxItems) {
    Fail(name, absl::StrFormat("is %s; it must be a list of at most %d texts",
                               Describe(*value), kMaxItems));
    return values;
  }
  for (const JsonValue& item : value->items) {
    if (item.kind != JsonValue::Kind::kString) {
      Fail(name,
           absl::StrFormat("has %s; its items must be texts", Describe(item)));
      return {};
    }
    values.push_back(item.string);
  }
  return values;
}

int64_t ConfigNode::NumFields() const {
  return value_ == nullptr ? 0 : static_cast<int64_t>(value_->keys.size());
}

std::vector<std::string> ConfigNode::Objects() const {
  std::vector<std::string> names;
  if (value_ == nullptr) return names;
  for (size_t i = 0; i < value_->keys.size() && i < kMaxItems; ++i) {
    if (value_->items[i].kind == JsonValue::Kind::kObject) {
      names.push_back(value_->keys[i]);
    }
  }
  return names;
}

}  // namespace pipeloom::formats
