// `pipeloom model`: a model file from another program's configuration.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/table.h"
#include "formats/job/model_writer.h"
#include "formats/model_config/model_config.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;

// Returns "my-model" for "/models/my-model/config.json", and for "." and
// "config.json" in that folder.
std::string NameOf(const std::string& path) {
  std::error_code error;
  std::filesystem::path at =
      std::filesystem::absolute(path, error).lexically_normal();
  if (!at.has_filename()) at = at.parent_path();  // Ends in a slash.
  if (at.filename() == "config.json") at = at.parent_path();
  const std::string name =
      (at.extension() == ".json" ? at.stem() : at.filename()).string();
  return name.empty() || name == "/" ? "model" : name;
}

// Returns 8030261248 as "8,030,261,248". REQUIRES: number >= 0.
std::string WithCommas(int64_t number) {
  std::string text;
  for (; number >= 1000; number /= 1000) {
    text = absl::StrFormat(",%03d%s", number % 1000, text);
  }
  return absl::StrCat(number, text);
}

std::string RoleName(ModuleRole role) {
  switch (role) {
    case ModuleRole::kEncoder:
      return "encoder";
    case ModuleRole::kBackbone:
      return "backbone";
    case ModuleRole::kGenerator:
      return "generator";
  }
  return "?";
}

class ModelCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "model", "CONFIG [options]",
        "a model file from a configuration of Hugging Face or a trainer",
        "Reads a model's configuration and prints the modules with their "
        "layers and parameters. --out writes the model file, which a job names "
        "as its model. CONFIG is one of\n\n"
        "- a config.json of transformers or diffusers, or the folder that "
        "holds it (with preprocessor_config.json, which limits the tokens of "
        "an image); the parameters are those of the library's class\n\n"
        "- a file with the arguments of Megatron-LM: its flags, a script that "
        "has them, or the arguments of a checkpoint as JSON or YAML; or the "
        "flags themselves after two dashes: pipeloom model -- --num-layers 32 "
        "...; \"ignored\" lists the arguments that say nothing about the "
        "model\n\n"
        "- torchtitan:MODEL/FLAVOR, such as torchtitan:llama3/8B\n\n"
        "\"assumed\" lists values that the file leaves to its class and what "
        "a model file cannot say exactly. If the architecture or a field is "
        "not known, \"missing\" lists it, the file holds what is known, and "
        "the exit code is 1."};
  }

  std::vector<Flag> Flags() override {
    return {OutputFlag("out", &out_, "the model file"),
            {"name", &name_, "NAME",
             "of the model; that of the file or folder otherwise"},
            {"format", &format_, "FORMAT", "of the output", {"table", "json"}}};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (args.empty()) return UsageError("CONFIG is missing");
    const bool has_flags = absl::StartsWith(args[0], "--");
    if (args.size() > 1 && !has_flags) {
      return UsageError(absl::StrCat("unexpected argument \"", args[1], "\""));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const formats::ConfigModel read,
                              has_flags ? ReadFlags(args) : Read(args[0]));
    if (!out_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(
          WriteFileAtomically(out_, formats::PrintModel(read.model)));
    }
    context.print(format_ == "json" ? Json(read) : Words(read));
    if (read.missing.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat(
        "the model is incomplete: %d %s missing%s", read.missing.size(),
        read.missing.size() == 1 ? "thing is" : "things are",
        out_.empty() ? "" : absl::StrCat("; ", out_, " holds what is known")));
  }

 private:
  absl::StatusOr<formats::ConfigModel> ReadFlags(
      const std::vector<std::string>& flags) {
    if (name_.empty()) name_ = "megatron";
    return formats::ParseModelConfig({.config_name = "the command line",
                                      .config = absl::StrJoin(flags, " ")},
                                     name_);
  }

  absl::StatusOr<formats::ConfigModel> Read(absl::string_view source) {
    if (absl::ConsumePrefix(&source, "torchtitan:")) {
      if (name_.empty()) name_ = absl::StrReplaceAll(source, {{"/", "-"}});
      return formats::ReadTorchtitanModel(source, name_);
    }
    if (name_.empty()) name_ = NameOf(std::string(source));
    PIPELOOM_ASSIGN_OR_RETURN(const formats::ConfigTexts texts,
                              ReadTexts(std::string(source)));
    return formats::ParseModelConfig(texts, name_);
  }

  // Reads the configuration at `path`, a file or the folder of config.json, and
  // the image processor's next to it.
  static absl::StatusOr<formats::ConfigTexts> ReadTexts(
      const std::string& path) {
    formats::ConfigTexts texts;
    std::string folder;
    texts.config_name = path;
    std::error_code error;
    if (!FileExists(path)) {
      return absl::NotFoundError(absl::StrCat(
          "there is no file or folder ", path,
          "; give a config.json, its folder, or the arguments of Megatron"));
    }
    const bool is_file = absl::EndsWith(path, ".json") ||
                         std::filesystem::is_regular_file(path, error);
    if (!is_file) {
      folder = absl::EndsWith(path, "/") ? path : absl::StrCat(path, "/");
      texts.config_name = absl::StrCat(folder, "config.json");
      const std::string inner = absl::StrCat(folder, "transformer/config.json");
      if (!FileExists(texts.config_name) && FileExists(inner)) {
        texts.config_name = inner;  // A pipeline of diffusers.
      }
    } else if (const size_t slash = path.rfind('/');
               slash != std::string::npos) {
      folder = path.substr(0, slash + 1);
    }
    PIPELOOM_ASSIGN_OR_RETURN(texts.config,
                              ReadFile(texts.config_name, kMaxConfigBytes));
    texts.processor_name = absl::StrCat(folder, "preprocessor_config.json");
    if (FileExists(texts.processor_name)) {
      PIPELOOM_ASSIGN_OR_RETURN(
          texts.processor, ReadFile(texts.processor_name, kMaxConfigBytes));
    }
    return texts;
  }

  std::string Words(const formats::ConfigModel& read) const {
    Table table({"module", "role", "layers", "parameters"}, 2);
    int64_t layers = 0;
    for (const ModuleSpec& module : read.model.modules) {
      layers += module.layers.size();
      table.AddRow({module.name, RoleName(module.role),
                    absl::StrCat(module.layers.size()),
                    WithCommas(Parameters(module))});
    }
    table.AddRow({"total", "", absl::StrCat(layers),
                  WithCommas(Parameters(read.model))});
    std::string text = absl::StrCat("model ", read.model.name, " (",
                                    read.architecture, ")\n", table.ToString());
    for (const std::string& line : read.assumed) {
      absl::StrAppend(&text, WrapText(absl::StrCat("assumed: ", line), 9),
                      "\n");
    }
    for (const std::string& line : read.missing) {
      absl::StrAppend(&text, WrapText(absl::StrCat("missing: ", line), 9),
                      "\n");
    }
    if (!read.ignored.empty()) {
      absl::StrAppend(
          &text,
          WrapText(absl::StrCat("ignored: ", absl::StrJoin(read.ignored, ", ")),
                   9),
          "\n");
    }
    return text;
  }

  std::string Json(const formats::ConfigModel& read) const {
    formats::JsonWriter json(true);
    json.BeginObject().Key("name").String(read.model.name);
    json.Key("architecture").String(read.architecture);
    json.Key("parameters").Int(Parameters(read.model));
    json.Key("modules").BeginArray();
    for (const ModuleSpec& module : read.model.modules) {
      json.BeginObject().Key("name").String(module.name);
      json.Key("role").String(RoleName(module.role));
      json.Key("layers").Int(module.layers.size());
      json.Key("parameters").Int(Parameters(module)).EndObject();
    }
    json.EndArray();
    const std::pair<const char*, const std::vector<std::string>*> lists[] = {
        {"assumed", &read.assumed},
        {"missing", &read.missing},
        {"ignored", &read.ignored}};
    for (const auto& [key, list] : lists) {
      json.Key(key).BeginArray();
      for (const std::string& line : *list) json.String(line);
      json.EndArray();
    }
    json.Key("out");
    if (out_.empty()) {
      json.Null();
    } else {
      json.String(out_);
    }
    return absl::StrCat(json.EndObject().text(), "\n");
  }

  std::string out_{};
  std::string name_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeModelCommand() {
  return std::make_unique<ModelCommand>();
}

}  // namespace pipeloom::cli
