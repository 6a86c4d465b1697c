// What a microbatch is limited by: backbone tokens, images, seconds.
#ifndef PIPELOOM_PARTITION_BATCHING_LOAD_METER_H_
#define PIPELOOM_PARTITION_BATCHING_LOAD_METER_H_

#include <cstdint>
#include <vector>

#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::partition {

struct Load {
  int64_t tokens = 0;
  int64_t images = 0;
  double seconds = 0;
  Load& operator+=(const Load& other) {
    tokens += other.tokens;
    images += other.images;
    seconds += other.seconds;
    return *this;
  }
};

// Counts as partition/batching/batch_split.h says. Keeps a reference to the
// job.
class LoadMeter {
 public:
  explicit LoadMeter(const JobSpec& job);
  // `work` says whether the sample is any work at all.
  Load Of(const SampleMetadata& sample, bool* work = nullptr) const;
  // In one microbatch.
  bool Fits(const Load& load) const;

 private:
  const JobSpec& job_;
  std::vector<ModuleId> counted_{};
  double clip_seconds_ = 0;  // What the model sees of a clip at most; 0: all.
};

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_LOAD_METER_H_
