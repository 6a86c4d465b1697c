// The quantities that limit a microbatch: samples, backbone tokens, images,
// seconds.
#ifndef PIPELOOM_PARTITION_BATCHING_LOAD_METER_H_
#define PIPELOOM_PARTITION_BATCHING_LOAD_METER_H_

#include <cstdint>
#include <vector>

#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::partition {

// The load of a sample or microbatch.
struct Load {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t images = 0;
  double seconds = 0;
  Load& operator+=(const Load& other) {
    samples += other.samples;
    tokens += other.tokens;
    images += other.images;
    seconds += other.seconds;
    return *this;
  }
};

// A meter of loads as partition/batching/batch_split.h defines them. Keeps a
// reference to the job.
class LoadMeter {
 public:
  explicit LoadMeter(const JobSpec& job);
  // Returns the load of a sample. Sets `work` to whether the sample has any
  // work.
  Load Of(const SampleMetadata& sample, bool* work = nullptr) const;
  // Returns whether the load is within the limits of one microbatch.
  bool Fits(const Load& load) const;
  // Returns whether a microbatch takes any number of samples of this load.
  bool IsUnlimited(const Load& load) const;
  // Returns the modules whose tokens count.
  const std::vector<ModuleId>& counted() const { return counted_; }

 private:
  const JobSpec& job_;
  std::vector<ModuleId> counted_{};
  // Most seconds of a clip that the model sees; 0: all.
  double clip_seconds_ = 0;
};

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_LOAD_METER_H_
