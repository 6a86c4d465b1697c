// `pipeloom model`: a model file from another program's configuration.
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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
  return name.empty() ? "model" : name;
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
        "a model file from a config.json of Hugging Face",
        "Reads a config.json of transformers or diffusers, or the folder that "
        "holds it (with preprocessor_config.json, which limits the tokens of "
        "an image), and prints the modules with their layers and parameters. "
        "--out writes the model file, which a job names as its model. The "
        "parameters are those of the classes that the library makes of the "
        "same file.\n\n"
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
    if (args.size() > 1) {
      return UsageError(absl::StrCat("unexpected argument \"", args[1], "\""));
    }
    if (name_.empty()) name_ = NameOf(args[0]);
    PIPELOOM_ASSIGN_OR_RETURN(const formats::ConfigTexts texts,
                              ReadTexts(args[0]));
    PIPELOOM_ASSIGN_OR_RETURN(const formats::ConfigModel read,
                              formats::ParseModelConfig(texts, name_));
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
  // Reads the configuration at `path`, a file or the folder of config.json, and
  // the image processor's next to it.
  static absl::StatusOr<formats::ConfigTexts> ReadTexts(
      const std::string& path) {
    formats::ConfigTexts texts;
    std::string folder;
    texts.config_name = path;
    if (!absl::EndsWith(path, ".json")) {
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
        {"assumed", &read.assumed}, {"missing", &read.missing}};
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
