#include "cli/console/study_context.h"

#include <memory>
#include <string>

#include "cli/console/files.h"

namespace pipeloom::cli {

studies::StudyContext StudyContextOf(const Context& context) {
  studies::StudyContext study;
  study.read = [](const std::string& path) { return ReadFile(path); };
  study.warn = context.warn;
  study.show_progress = [&context](absl::string_view doing, int64_t total) {
    const auto line = std::make_shared<Progress>(context, doing, total);
    return [line](int64_t done, absl::string_view detail) {
      line->Set(done, detail);
    };
  };
  study.stop = context.stop;
  return study;
}

studies::ProgressCallback SetterOf(Progress& progress) {
  return [&progress](int64_t done, absl::string_view detail) {
    progress.Set(done, detail);
  };
}

}  // namespace pipeloom::cli
