// A step's batch of one replica, cut to microbatches, and each microbatch cut
// to sub-microbatches for each module.
#ifndef PIPELOOM_IR_PLAN_MICROBATCHES_H_
#define PIPELOOM_IR_PLAN_MICROBATCHES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/fingerprint.h"
#include "ir/ids.h"
#include "ir/job/model_spec.h"

namespace pipeloom {

// The size of a module's work on a set of sequences. Shapes add up: packing
// two sets of sequences gives the sum of their shapes.
struct WorkShape {
  int64_t instances = 0;      // Images, clips, audio chunks; samples (text).
  int64_t tokens = 0;         // Through the module's layers.
  int64_t output_tokens = 0;  // Handed on to the module it feeds.
  // Sum over its attention sequences of length squared.
  double squared_tokens = 0;
  int64_t context_tokens = 0;  // Of cross-attention.
  double context_pairs = 0;    // Sum over sequences of tokens x context.
  double sequences = 0;        // Attention sequences; 0: not known.
  // Tokens of the longest, also after adding up; 0: not known.
  int64_t longest = 0;
  // Of a module that a rank holds several copies of (JobSpec::CopiesOf): what
  // the copy with most tokens has of them. 0: not known; so after adding up.
  int64_t share_tokens = 0;
  double share_squared = 0;

  bool operator==(const WorkShape&) const = default;
  WorkShape& operator+=(const WorkShape& other);
  bool empty() const { return tokens == 0 && instances == 0; }
  // The shape with every sequence padded to the longest; itself where lengths
  // are not known.
  WorkShape Padded() const;
  Fingerprint fingerprint() const;
};

// What the one of `copies` that has most of it works on, when whole instances
// are divided over them as evenly as can be: as `share_tokens` says, or, where
// that is 0, for instances of about equal size. The shape itself with one copy
// or one instance. Its share is not known.
WorkShape LargestShare(const WorkShape& shape, int32_t copies);
// The same of instances known one by one: longest first, each to the copy with
// the fewest tokens (ties: the first). O(n log n + n copies).
WorkShape LargestShare(std::vector<WorkShape> instances, int32_t copies);

struct SubMicrobatch {
  ModuleId module{};
  MicrobatchId microbatch{};
  int32_t index = 0;  // Within its microbatch and module.
  WorkShape shape;
  bool operator==(const SubMicrobatch&) const = default;
};

struct Microbatches {
  int32_t num_microbatches = 0;
  // By microbatch, then module, then index. A module that is absent from a
  // microbatch (no image in it) has no entry there.
  IdVector<SubMicrobatchId, SubMicrobatch> sub_microbatches{};
  // The step's samples in each microbatch.
  IdVector<MicrobatchId, std::vector<SampleId>> samples{};
  int64_t num_samples = 0;  // Of the step.
  // Samples that were longer than a microbatch and went in as pieces.
  int64_t num_split_samples = 0;
  bool operator==(const Microbatches&) const = default;

  // The sub-microbatches of one module in one microbatch, by index.
  std::vector<SubMicrobatchId> Of(MicrobatchId microbatch,
                                  ModuleId module) const;
};

// InvalidArgument unless sub-microbatches are in order, their indices count
// from 0 and every shape is non-negative and not empty.
absl::Status ValidateMicrobatches(const Microbatches& microbatches,
                                  const ModelSpec& model);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_MICROBATCHES_H_
