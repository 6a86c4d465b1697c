// The surroundings of a study: files, notes, progress and stop requests, given
// by the caller, so that a study itself neither opens nor prints.
#ifndef PIPELOOM_STUDIES_JOB_STUDY_CONTEXT_H_
#define PIPELOOM_STUDIES_JOB_STUDY_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <stop_token>

#include "absl/strings/string_view.h"
#include "formats/job/spec_loader.h"

namespace pipeloom::studies {

// Takes the number of items that are done, and the name of the one at work.
using ProgressCallback =
    std::function<void(int64_t done, absl::string_view detail)>;

struct StudyContext {
  formats::FileReader read{};  // REQUIRES: set, for studies that read files.
  // Takes a note for people, a line without its end. Empty: ignored.
  std::function<void(absl::string_view)> warn{};
  // Begins to show the progress of `total` items, until the result and its
  // copies are destroyed. Empty: not shown.
  std::function<ProgressCallback(absl::string_view doing, int64_t total)>
      show_progress{};
  std::stop_token stop{};

  void Warn(absl::string_view note) const {
    if (warn) warn(note);
  }
  ProgressCallback StartProgress(absl::string_view doing, int64_t total) const {
    if (show_progress) return show_progress(doing, total);
    return [](int64_t, absl::string_view) {};
  }
};

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_JOB_STUDY_CONTEXT_H_
