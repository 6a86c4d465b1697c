#include "partition/batching/epochs.h"

#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "ir/ids.h"

namespace pipeloom::partition {
namespace {

// Most epochs and samples of one step, for errors that more samples cannot
// repair.
constexpr int64_t kMaxEpochs = 1024;
constexpr int64_t kMaxSamples = int64_t{1} << 20;

// Shuffled samples of one batch, with the index of each in the batch, made
// longer on demand.
class Stream {
 public:
  Stream(const BatchMetadata& batch, uint64_t seed)
      : batch_(&batch), random_(seed) {}

  const BatchMetadata& samples() const { return samples_; }
  SampleId source(SampleId s) const { return sources_[s]; }
  int64_t epoch() const { return batch_->samples.size(); }

  void AddEpoch() {
    std::vector<SampleId> order(static_cast<size_t>(epoch()));
    for (const SampleId s : batch_->samples.ids()) {
      order[static_cast<size_t>(s.value())] = s;
    }
    random_.Shuffle(absl::MakeSpan(order));
    for (const SampleId s : order) {
      samples_.samples.push_back(batch_->samples[s]);
      sources_.push_back(s);
    }
  }

  // Forgets the first `count` samples.
  void Drop(int64_t count) {
    BatchMetadata rest;
    IdVector<SampleId, SampleId> sources;
    for (const SampleId s : samples_.samples.ids()) {
      if (s.value() < count) continue;
      rest.samples.push_back(std::move(samples_.samples[s]));
      sources.push_back(sources_[s]);
    }
    samples_ = std::move(rest);
    sources_ = std::move(sources);
  }

 private:
  const BatchMetadata* batch_;
  Random random_;
  BatchMetadata samples_{};
  IdVector<SampleId, SampleId> sources_{};
};

}  // namespace

BatchMetadata ShuffledEpochs(const BatchMetadata& batch, uint64_t seed,
                             int64_t epochs) {
  Stream stream(batch, seed);
  for (int64_t e = 0; e < epochs; ++e) stream.AddEpoch();
  return stream.samples();
}

absl::StatusOr<std::vector<PackedStep>> PackShuffledSteps(
    const JobSpec& job, const BatchMetadata& batch, uint64_t seed,
    int64_t num_steps, const std::stop_token& stop) {
  std::vector<PackedStep> steps;
  Stream stream(batch, seed);
  stream.AddEpoch();
  int64_t first = 0;
  for (int64_t s = 0; s < num_steps; ++s) {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    // A step that reaches the end of the samples so far may be short.
    for (int64_t epochs = 1;; epochs *= 2) {
      while (stream.samples().samples.size() - first <
                 epochs * stream.epoch() &&
             stream.epoch() > 0) {
        stream.AddEpoch();
      }
      absl::StatusOr<PackedStep> packed =
          PackStep(job, stream.samples(), first);
      const bool at_end = !packed.ok() || first + packed->num_samples >=
                                              stream.samples().samples.size();
      const bool may_grow =
          epochs == 1 ||
          (epochs < kMaxEpochs && epochs * stream.epoch() < kMaxSamples);
      if (at_end && may_grow && stream.epoch() > 0) continue;
      if (!packed.ok()) {
        return absl::Status(
            packed.status().code(),
            absl::StrCat("step ", s, ": ", packed.status().message()));
      }
      for (const SampleId piece : packed->piece_of.ids()) {
        packed->piece_of[piece] = stream.source(packed->piece_of[piece]);
      }
      first += packed->num_samples;
      steps.push_back(*std::move(packed));
      break;
    }
    if (first >= stream.epoch()) {
      stream.Drop(first);
      first = 0;
    }
  }
  return steps;
}

}  // namespace pipeloom::partition
