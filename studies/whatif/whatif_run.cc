#include "studies/whatif/whatif_run.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "planner/core/executor.h"
#include "proto/convert/job_proto.h"

namespace pipeloom::studies {
namespace {

constexpr absl::string_view kJournalMark = "pipeloom-whatif-3";

Fingerprint KeyOf(const WhatIfInput& input, const Fingerprint& common,
                  const WhatIfCase& what) {
  FingerprintBuilder builder;
  builder.Add(common).Add(input.steps).Add(input.replicas);
  builder.Add(input.schedule).Add(input.costs);
  if (input.partition.make) builder.Add(input.partition.name);
  builder.Add(input.base.job.training.assignment);
  builder.Add(input.base.shuffle.value_or(0)).Add(input.base.defer);
  builder.Add(input.search.deadline.value_or(Duration(-1)).count());
  builder.Add(input.search.evaluations.value_or(-1));
  builder.Add(input.search.seed.value_or(-1));
  builder.Add(FingerprintOf(input.start.partition));
  builder.Add(input.start.lessons.size());
  what.AddTo(&builder);
  return builder.Build();
}

// Returns the fingerprint of the job's values and the batch, which all cases
// share.
Fingerprint CommonKey(const WhatIfInput& input) {
  FingerprintBuilder builder;
  // All fields are added, as a job file of the same name may have been edited.
  builder.Add(kJournalMark);
  builder.Add(convert::ToProto(input.base.job).SerializeAsString());
  for (const auto& given : input.base.profiles.given()) {
    builder.Add(given.content);
  }
  for (const SampleMetadata& sample : input.base.batch.samples) {
    builder.Add(sample.text_tokens).Add(sample.images.size());
    for (const ImageSize& image : sample.images) {
      builder.Add(image.width).Add(image.height);
    }
    for (const VideoClip& clip : sample.videos) {
      builder.Add(clip.frames).Add(clip.width).Add(clip.seconds);
    }
    for (const double seconds : sample.audio_seconds) builder.Add(seconds);
  }
  return builder.Build();
}

// Writes outcomes to the journal, from any thread.
class JournalWriter {
 public:
  // `file` is open, or null to write nothing.
  JournalWriter(const std::string& path, std::FILE* file)
      : path_(path), file_(file) {}

  bool is_open() const { return file_ != nullptr; }
  void Append(const std::string& line) {
    const MutexLock lock(&mutex_);
    if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() ||
        std::fflush(file_) != 0) {
      error_ = Error();
    }
  }
  // Returns the error of this or of the last write that failed.
  absl::Status Close() {
    const MutexLock lock(&mutex_);
    if (file_ != nullptr && std::fclose(file_) != 0 && error_.ok()) {
      error_ = Error();
    }
    return error_;
  }

 private:
  absl::Status Error() const {
    return absl::DataLossError(absl::StrCat(path_, ": ", std::strerror(errno)));
  }

  const std::string& path_;
  Mutex mutex_{};
  std::FILE* const file_ ABSL_PT_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace

std::string JournalLine(const Fingerprint& key, const WhatIfOutcome& outcome) {
  const std::string error = absl::StrReplaceAll(
      outcome.error, {{"\\", "\\\\"}, {"\t", "\\t"}, {"\n", "\\n"}});
  const std::string body = absl::StrFormat(
      "%s\t%016x%016x\t%d\t%d\t%.17g\t%.17g\t%.17g\t%d\t%d\t%d\t%d\t%d\t%s",
      std::string(kJournalMark), key.high, key.low, outcome.step_time.count(),
      outcome.lower_bound.count(), outcome.bubble_ratio, outcome.epilogue_ratio,
      outcome.mfu, outcome.peak.count(), outcome.limit.count(), outcome.gpus,
      outcome.samples, outcome.cuts_more ? 1 : 0, error);
  return absl::StrFormat("%s\t%016x\n", body,
                         FingerprintBuilder().Add(body).Build().low);
}

bool ParseJournalLine(absl::string_view line, Fingerprint* key,
                      WhatIfOutcome* outcome) {
  const size_t tab = line.rfind('\t');
  if (tab == absl::string_view::npos) return false;
  const absl::string_view body = line.substr(0, tab);
  if (line.substr(tab + 1) !=
      absl::StrFormat("%016x", FingerprintBuilder().Add(body).Build().low)) {
    return false;
  }
  const std::vector<absl::string_view> fields = absl::StrSplit(body, '\t');
  if (fields.size() != 13 || fields[0] != kJournalMark ||
      fields[1].size() != 32) {
    return false;
  }
  int64_t step = 0, bound = 0, peak = 0, limit = 0;
  if (!absl::SimpleHexAtoi(fields[1].substr(0, 16), &key->high) ||
      !absl::SimpleHexAtoi(fields[1].substr(16), &key->low) ||
      !absl::SimpleAtoi(fields[2], &step) ||
      !absl::SimpleAtoi(fields[3], &bound) ||
      !absl::SimpleAtod(fields[4], &outcome->bubble_ratio) ||
      !absl::SimpleAtod(fields[5], &outcome->epilogue_ratio) ||
      !absl::SimpleAtod(fields[6], &outcome->mfu) ||
      !absl::SimpleAtoi(fields[7], &peak) ||
      !absl::SimpleAtoi(fields[8], &limit) ||
      !absl::SimpleAtoi(fields[9], &outcome->gpus) ||
      !absl::SimpleAtoi(fields[10], &outcome->samples) ||
      !absl::SimpleAtob(fields[11], &outcome->cuts_more)) {
    return false;
  }
  outcome->step_time = Duration(step);
  outcome->lower_bound = Duration(bound);
  outcome->peak = Bytes(peak);
  outcome->limit = Bytes(limit);
  outcome->error = absl::StrReplaceAll(
      fields[12], {{"\\\\", "\\"}, {"\\t", "\t"}, {"\\n", "\n"}});
  return true;
}

absl::StatusOr<std::vector<WhatIfOutcome>> RunCases(
    const WhatIfInput& input, const std::vector<WhatIfCase>& cases,
    int32_t threads, const std::string& journal, const StudyContext& context) {
  WarnOfPrices(input, cases, context);
  const Fingerprint common = CommonKey(input);
  std::map<Fingerprint, WhatIfOutcome> known;
  std::FILE* file = nullptr;
  if (!journal.empty()) {
    bool torn = false;
    const absl::StatusOr<std::string> text = context.read(journal);
    if (text.ok()) {
      torn = !text->empty() && text->back() != '\n';
      for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
        Fingerprint key;
        WhatIfOutcome outcome;
        if (ParseJournalLine(line, &key, &outcome)) known[key] = outcome;
      }
      if (known.empty() && !text->empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            journal,
            " is no journal of this version of whatif; it is left as it is"));
      }
    } else if (!absl::IsNotFound(text.status())) {
      return text.status();
    }
    file = std::fopen(journal.c_str(), "a");
    if (file == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(journal, ": ", std::strerror(errno)));
    }
    if (torn) std::fputc('\n', file);
  }
  std::vector<WhatIfOutcome> outcomes(cases.size());
  std::vector<int32_t> open;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto it = known.find(KeyOf(input, common, cases[i]));
    if (it == known.end()) {
      open.push_back(static_cast<int32_t>(i));
    } else {
      outcomes[i] = it->second;
    }
  }
  if (open.size() < cases.size()) {
    context.Warn(absl::StrFormat("note: %d of %d configurations are in %s",
                                 cases.size() - open.size(), cases.size(),
                                 journal));
  }
  JournalWriter writer(journal, file);
  std::atomic<int64_t> done{static_cast<int64_t>(cases.size() - open.size())};
  std::atomic<bool> cancelled{false};
  {
    const ProgressCallback progress = context.StartProgress(
        "trying configurations", static_cast<int64_t>(cases.size()));
    progress(done, "");
    planner::ParallelFor(
        threads, static_cast<int32_t>(open.size()), [&](int32_t k) {
          if (context.stop.stop_requested()) {
            cancelled = true;
            return;
          }
          const auto i = static_cast<size_t>(open[static_cast<size_t>(k)]);
          absl::StatusOr<WhatIfOutcome> outcome =
              RunCase(input, cases[i], context);
          if (!outcome.ok()) {
            cancelled = true;
            return;
          }
          outcomes[i] = *std::move(outcome);
          if (writer.is_open()) {
            writer.Append(
                JournalLine(KeyOf(input, common, cases[i]), outcomes[i]));
          }
          progress(++done, cases[i].label);
        });
  }
  PIPELOOM_RETURN_IF_ERROR(writer.Close());
  if (cancelled) {
    context.Warn(absl::StrFormat(
        "%d of %d configurations are done%s", done.load(), cases.size(),
        journal.empty() ? "; with --journal FILE they would not be lost"
                        : "; the same command goes on from there"));
    return absl::CancelledError("stopped");
  }
  return outcomes;
}

std::vector<bool> ParetoFront(const std::vector<WhatIfCase>& cases,
                              const std::vector<WhatIfOutcome>& outcomes) {
  std::vector<const WhatIfOutcome*> eligible(outcomes.size(), nullptr);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const WhatIfOutcome& o = outcomes[i];
    if (o.ok() && !o.cuts_more && o.peak <= o.limit &&
        cases[i].can_be_chosen()) {
      eligible[i] = &o;
    }
  }
  std::vector<bool> front(outcomes.size(), false);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const WhatIfOutcome* a = eligible[i];
    if (a == nullptr) continue;
    front[i] = absl::c_none_of(eligible, [a](const WhatIfOutcome* b) {
      if (b == nullptr) return false;
      const double mine = a->seconds_per_sample();
      const double its = b->seconds_per_sample();
      return b->gpus <= a->gpus && its <= mine && b->peak <= a->peak &&
             (b->gpus < a->gpus || its < mine || b->peak < a->peak);
    });
  }
  return front;
}

std::map<int64_t, const WhatIfOutcome*> BestByGpus(
    const std::vector<WhatIfCase>& cases,
    const std::vector<WhatIfOutcome>& outcomes) {
  std::map<int64_t, const WhatIfOutcome*> best;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const WhatIfOutcome& o = outcomes[i];
    if (i > 0 && !cases[i].scales) continue;
    if (!o.ok() || o.cuts_more || o.peak > o.limit) continue;
    const WhatIfOutcome*& known = best[o.gpus];
    if (known == nullptr ||
        o.seconds_per_sample() < known->seconds_per_sample()) {
      known = &o;
    }
  }
  return best;
}

}  // namespace pipeloom::studies
