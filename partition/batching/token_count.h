// Work of a sample for each module, by the modules' token rules.
//
// Defaults for values that the metadata do not have:
// - a clip's length: its seconds, else its frames at 30 frames per second; a
//   clip of which neither is known has the fewest frames its rule allows;
// - a size: the rule's default size, else its `side` squared, else the smallest
//   size its rule allows.
//
// Negative sizes count as not known. Sizes saturate (2^40 tokens, a day), so
// nothing overflows; such an instance fails later for lack of memory.
#ifndef PIPELOOM_PARTITION_BATCHING_TOKEN_COUNT_H_
#define PIPELOOM_PARTITION_BATCHING_TOKEN_COUNT_H_

#include <vector>

#include "ir/job/batch_metadata.h"
#include "ir/job/model_spec.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::partition {

// Returns one shape per module; empty() if the sample has nothing for it. The
// tokens of a backbone are the sample's text tokens plus the output tokens of
// the modules that feed it (not as context): one causal sequence. A backbone
// with rules of its own counts their output tokens in place of the text, and of
// the modules that feed it only the modalities it does not count itself (an
// autoencoder's latents are the same tokens). A generator counts only by its
// own rules and is empty without them; an encoder without rules (a projector as
// a module) works on the outputs of the modules that feed it. Each instance
// attends to the whole output of the modules that feed it as context. Sources
// of the rules: workloads/models/*.json. O(media items).
IdVector<ModuleId, WorkShape> SampleWork(const ModelSpec& model,
                                         const SampleMetadata& sample);

// Does the same by instance (image, clip, audio chunk; one per sample for text
// and backbones), appended to `instances`, which has a vector for each module.
// Their sum is SampleWork.
void AppendInstances(const ModelSpec& model, const SampleMetadata& sample,
                     IdVector<ModuleId, std::vector<WorkShape>>* instances);

// Returns the seconds of a clip: as given, else its frames at 30 per second; 0:
// not known.
double ClipSeconds(const VideoClip& clip);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_TOKEN_COUNT_H_
