#include "formats/model_config/model_config.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "formats/job/model_writer.h"
#include "formats/job/spec_loader.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/config_node.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/draft.h"
#include "formats/model_config/megatron_arguments.h"
#include "formats/model_config/megatron_model.h"
#include "formats/model_config/torchtitan.h"
#include "formats/text/json_reader.h"

namespace pipeloom::formats {
namespace {

constexpr char kKnownReaders[] =
    "; write its layers by hand, or measure your own modules (pipeloom.capture "
    "in Python); known are ";

// Returns the architecture's name: `model_type`, else `_class_name`, else the
// first of `architectures`.
std::string TypeOf(const ConfigNode& config) {
  for (const absl::string_view field : {"model_type", "_class_name"}) {
    std::string type = config.Text(field);
    if (!type.empty()) return type;
  }
  const std::vector<std::string> names = config.Texts("architectures");
  return names.empty() ? "" : names[0];
}

// Returns whether an object describes a network: it has a width or a depth.
bool IsNetwork(const ConfigNode& node) {
  for (const absl::string_view field :
       {"hidden_size", "d_model", "embed_dim", "num_hidden_layers",
        "num_layers", "encoder_layers", "depth"}) {
    if (node.Has(field)) return true;
  }
  return false;
}

// Reads what an unknown architecture has in common with others: a language
// model, at the top or in `text_config`. Names the other networks.
void ReadUnknown(const std::string& type, const ConfigNode& config,
                 Draft* draft) {
  draft->notes.Miss(absl::StrFormat("a reader of architecture \"%s\"%s%s", type,
                                    kKnownReaders,
                                    absl::StrJoin(ArchitectureTypes(), ", ")));
  std::string text;
  for (const absl::string_view field : {"text_config", "llm_config"}) {
    if (text.empty() && config.Has(field)) text = std::string(field);
  }
  for (const std::string& field : config.Objects()) {
    if (field != text && IsNetwork(config.Child(field))) {
      draft->notes.Miss(absl::StrFormat("the module of %s", field));
    }
  }
  if (!text.empty()) {
    AddDecoder(config.Child(text), "", {}, draft);
    return;
  }
  if (config.Has("hidden_size") && config.Has("num_hidden_layers")) {
    AddDecoder(config, "", {}, draft);
  }
}

// Returns the error of the checks of every model file: ranges, sizes of each
// layer, edges.
absl::Status Check(const ModelSpec& model, const std::string& config_name) {
  return ParseModel(PrintModel(model),
                    absl::StrCat(config_name, " as a model file"))
      .status();
}

// Empties the modules that do not pass the checks because something is missing.
void DropUnknownLayers(const std::string& config_name, ModelSpec* model) {
  for (ModuleSpec& module : model->modules) {
    ModelSpec alone;
    alone.modules.push_back(module);
    if (!Check(alone, config_name).ok()) module.layers = {};
  }
}

// Returns whether an object has the arguments of Megatron-LM, at the top or in
// a section, rather than the fields of a configuration.
bool IsMegatron(const JsonValue& json, int depth = 0) {
  if (json.kind != JsonValue::Kind::kObject || depth > 2) return false;
  bool has_layers = false;
  for (size_t i = 0; i < json.keys.size(); ++i) {
    const JsonValue& value = json.items[i];
    const std::string& key = json.keys[i];
    if (key == "_class_name" || key == "architectures" ||
        (key == "model_type" && value.kind == JsonValue::Kind::kString &&
         !absl::StartsWith(value.string, "ModelType"))) {
      return false;
    }
    has_layers |= key == "num_layers" || IsMegatron(value, depth + 1);
  }
  return has_layers;
}

// Returns the model of a draft whose notes have no error.
absl::StatusOr<ConfigModel> Finish(const std::string& file,
                                   absl::string_view name,
                                   const std::string& made_from,
                                   std::string architecture, Draft draft) {
  ConfigNotes& notes = draft.notes;
  ConfigModel result;
  result.architecture = std::move(architecture);
  draft.model.name = std::string(name);
  draft.model.source = absl::StrCat("Made from ", made_from, ".");
  if (!notes.assumed.empty()) {
    absl::StrAppend(&draft.model.source,
                    " Assumed: ", absl::StrJoin(notes.assumed, "; "), ".");
  }
  result.assumed = std::move(notes.assumed);
  result.missing = std::move(notes.missing);
  for (const std::string& part : result.missing) {
    // The file has no use for the list of the readers that there are.
    draft.model.missing.push_back(part.substr(0, part.find(kKnownReaders)));
  }
  result.model = std::move(draft.model);
  if (!result.missing.empty()) {
    DropUnknownLayers(file, &result.model);
    return result;
  }
  PIPELOOM_RETURN_IF_ERROR(Check(result.model, file));
  return result;
}

absl::StatusOr<ConfigModel> ReadMegatronText(const ConfigTexts& texts,
                                             absl::string_view name) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const MegatronArguments arguments,
      MegatronArguments::Parse(texts.config, texts.config_name));
  ConfigNotes notes;
  JsonValue nothing;
  Draft draft{
      .notes = notes,
      .processor = ConfigNode(texts.processor_name, &nothing, "", &notes)};
  ReadMegatron(arguments, &draft);
  PIPELOOM_RETURN_IF_ERROR(notes.error);
  PIPELOOM_RETURN_IF_ERROR(arguments.UsedTwice());
  PIPELOOM_ASSIGN_OR_RETURN(
      ConfigModel result,
      Finish(texts.config_name, name, "arguments of Megatron-LM", "megatron",
             std::move(draft)));
  result.ignored = arguments.Unused();
  return result;
}

}  // namespace

absl::StatusOr<ConfigModel> ParseModelConfig(const ConfigTexts& texts,
                                             absl::string_view name) {
  const absl::string_view text =
      absl::StripLeadingAsciiWhitespace(texts.config);
  if (!text.empty() && text[0] != '{' && text[0] != '[' &&
      !absl::EndsWith(texts.config_name, ".json")) {
    return ReadMegatronText(texts, name);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json,
                            ParseJson(texts.config, texts.config_name));
  if (IsMegatron(json)) return ReadMegatronText(texts, name);
  JsonValue processor_json;
  if (!texts.processor.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(processor_json,
                              ParseJson(texts.processor, texts.processor_name));
  }
  ConfigNotes notes;
  const ConfigNode config(texts.config_name, &json, "", &notes);
  Draft draft{.notes = notes,
              .processor = ConfigNode(texts.processor_name, &processor_json, "",
                                      &notes)};
  const std::string architecture = TypeOf(config);
  if (notes.error.ok() && architecture.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: it has no field \"model_type\", \"_class_name\" or "
        "\"architectures\", one of which names the architecture in a "
        "config.json of transformers or diffusers",
        texts.config_name));
  }
  if (notes.error.ok()) {
    if (const ArchitectureReader read = FindArchitecture(architecture)) {
      read(config, &draft);
    } else {
      ReadUnknown(architecture, config, &draft);
    }
  }
  PIPELOOM_RETURN_IF_ERROR(notes.error);
  return Finish(texts.config_name, name,
                absl::StrCat("a configuration of ", architecture), architecture,
                std::move(draft));
}

absl::StatusOr<ConfigModel> ReadTorchtitanModel(absl::string_view flavor,
                                                absl::string_view name) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string config, TorchtitanConfig(flavor));
  ConfigTexts texts;
  texts.config_name = absl::StrCat("torchtitan:", flavor);
  texts.config = config;
  PIPELOOM_ASSIGN_OR_RETURN(ConfigModel read, ParseModelConfig(texts, name));
  read.model.source =
      absl::StrCat("torchtitan's ", flavor, ". ", read.model.source);
  return read;
}

}  // namespace pipeloom::formats
