// Conversion of BatchMetadata to and from pipeloom.v1.BatchMetadata.
#ifndef PIPELOOM_PROTO_CONVERT_BATCH_PROTO_H_
#define PIPELOOM_PROTO_CONVERT_BATCH_PROTO_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "pipeloom/v1/batch.pb.h"

namespace pipeloom::convert {

// Convert values to messages.
v1::SampleMetadata ToProto(const SampleMetadata& sample);
v1::BatchMetadata ToProto(const BatchMetadata& batch);

// Most samples and items of a batch that FromProto accepts.
struct BatchLimits {
  int64_t samples = 1'000'000;
  // Images, clips and recordings of all samples together.
  int64_t items = 4'000'000;
};

// Converts a message. InvalidArgument names the field and value: a size that is
// negative, beyond what the batch files may hold, or not finite, or an image
// without sides. ResourceExhausted: more samples or items than `limits` allows;
// this is checked before anything is copied. An empty batch is valid. O(samples
// + items).
absl::StatusOr<BatchMetadata> FromProto(const v1::BatchMetadata& proto,
                                        const BatchLimits& limits = {});

}  // namespace pipeloom::convert

#endif  // PIPELOOM_PROTO_CONVERT_BATCH_PROTO_H_
