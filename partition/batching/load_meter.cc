#include "partition/batching/load_meter.h"

#include <algorithm>

#include "partition/batching/token_count.h"

namespace pipeloom::partition {

LoadMeter::LoadMeter(const JobSpec& job) : job_(job) {
  const ModelSpec& model = job.model;
  bool cut = true;
  for (const ModuleId m : model.modules.ids()) {
    const ModuleSpec& module = model.modules[m];
    if (module.role == ModuleRole::kBackbone) counted_.push_back(m);
    for (const TokenRule& rule : module.token_rules) {
      if (rule.modality != Modality::kVideo) continue;
      if (rule.max_seconds <= 0) cut = false;
      clip_seconds_ = std::max(clip_seconds_, rule.max_seconds);
    }
  }
  if (!cut) clip_seconds_ = 0;
  if (counted_.empty()) counted_.push_back(ModuleId(model.modules.size() - 1));
}

Load LoadMeter::Of(const SampleMetadata& sample, bool* work) const {
  const auto shapes = SampleWork(job_.model, sample);
  Load load{.samples = 1};
  for (const ModuleId m : counted_) load.tokens += shapes[m].tokens;
  load.images = static_cast<int64_t>(sample.images.size()) +
                static_cast<int64_t>(sample.videos.size());
  for (const VideoClip& clip : sample.videos) {
    const double seconds = ClipSeconds(clip);
    load.seconds +=
        clip_seconds_ > 0 ? std::min(seconds, clip_seconds_) : seconds;
  }
  for (const double seconds : sample.audio_seconds) {
    if (seconds > 0) load.seconds += seconds;
  }
  if (work != nullptr) {
    *work = std::any_of(shapes.begin(), shapes.end(),
                        [](const WorkShape& s) { return !s.empty(); });
  }
  return load;
}

bool LoadMeter::Fits(const Load& load) const {
  constexpr double kRounding = 1e-6;
  const TrainingSpec& t = job_.training;
  return load.tokens <= t.microbatch_tokens &&
         (t.microbatch_samples == 0 || load.samples <= t.microbatch_samples) &&
         (t.microbatch_images == 0 || load.images <= t.microbatch_images) &&
         (t.microbatch_seconds <= 0 ||
          load.seconds <= t.microbatch_seconds + kRounding);
}

bool LoadMeter::IsUnlimited(const Load& load) const {
  const TrainingSpec& t = job_.training;
  return load.tokens == 0 && t.microbatch_samples == 0 &&
         (t.microbatch_images == 0 || load.images == 0) &&
         (t.microbatch_seconds <= 0 || load.seconds <= 0);
}

}  // namespace pipeloom::partition
