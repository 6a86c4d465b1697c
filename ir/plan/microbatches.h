// The batch of a step and replica, cut into microbatches, and each microbatch
// cut into sub-microbatches for each module.
#ifndef PIPELOOM_IR_PLAN_MICROBATCHES_H_
#define PIPELOOM_IR_PLAN_MICROBATCHES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/fingerprint.h"
#include "ir/ids.h"
#include "ir/job/model_spec.h"

namespace pipeloom {

// The size of a module's work on a set of sequences. The shape of two sets
// packed together is the sum of their shapes.
struct WorkShape {
  int64_t instances = 0;      // Images, clips, audio chunks; samples (text).
  int64_t tokens = 0;         // Tokens that pass through the module's layers.
  int64_t output_tokens = 0;  // Tokens handed on to the module it feeds.
  // Sum over its attention sequences of their length squared.
  double squared_tokens = 0;
  int64_t context_tokens = 0;  // Tokens of the context of cross-attention.
  double context_pairs = 0;    // Sum over sequences of tokens x context.
  double sequences = 0;        // Attention sequences; 0: not known.
  // Tokens of the longest sequence, also of a sum; 0: not known.
  int64_t longest = 0;
  // For a module of which a rank holds several copies (JobSpec::CopiesOf): the
  // part of `tokens` and `squared_tokens` of the copy with most tokens. 0: not
  // known, as in every sum.
  int64_t share_tokens = 0;
  double share_squared = 0;
  // Whether the host launches its kernels even if CUDA graphs run those of
  // other shapes (TrainingSpec::ShapeBuckets).
  bool host_launched = false;

  bool operator==(const WorkShape&) const = default;
  WorkShape& operator+=(const WorkShape& other);
  bool empty() const { return tokens == 0 && instances == 0; }
  // Returns the shape with every sequence padded to the longest; this shape if
  // lengths are not known.
  WorkShape Padded() const;
  Fingerprint fingerprint() const;
};

// Returns the work of the most loaded of `copies`, when whole instances are
// divided over them as evenly as possible: by `share_tokens`, or, if that is 0,
// for instances of about equal size. With one copy or one instance it is the
// shape itself. The share of the result is not known.
WorkShape LargestShare(const WorkShape& shape, int32_t copies);
// The same for known instances: longest first, each goes to the copy with the
// fewest tokens (ties: the first). O(n log n + n copies).
WorkShape LargestShare(std::vector<WorkShape> instances, int32_t copies);

// Some of the instances that one module has in a microbatch.
struct SubMicrobatch {
  ModuleId module{};
  MicrobatchId microbatch{};
  int32_t index = 0;  // Within its microbatch and module.
  WorkShape shape;
  // The bucket to which the shape is padded; 0: none.
  int64_t bucket = 0;
  std::optional<WorkShape> unpadded{};  // If it is padded.
  bool operator==(const SubMicrobatch&) const = default;
  // Returns the shape of the data.
  const WorkShape& data() const { return unpadded ? *unpadded : shape; }
};

// The microbatches of one replica in a step.
struct Microbatches {
  int32_t num_microbatches = 0;
  // Sorted by microbatch, then module, then index. A module that is absent from
  // a microbatch (no image in it) has no entry there.
  IdVector<SubMicrobatchId, SubMicrobatch> sub_microbatches{};
  // The step's samples in each microbatch. Indexed by microbatch.
  IdVector<MicrobatchId, std::vector<SampleId>> samples{};
  int64_t num_samples = 0;  // Samples of the step.
  // Samples that were longer than a microbatch and were split into pieces.
  int64_t num_split_samples = 0;
  bool operator==(const Microbatches&) const = default;

  // Returns the sub-microbatches of one module in one microbatch, by index.
  std::vector<SubMicrobatchId> Of(MicrobatchId microbatch,
                                  ModuleId module) const;
};

// Checks that sub-microbatches are in order, their indices count from 0 and
// every shape is non-negative and not empty. Returns InvalidArgument otherwise.
absl::Status ValidateMicrobatches(const Microbatches& microbatches,
                                  const ModelSpec& model);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_MICROBATCHES_H_
