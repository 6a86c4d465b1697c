// Megatron-Core's pipeline layout strings (--pipeline-model-parallel-layout):
// which layers each stage holds. E is the embedding, t a decoder layer, m a
// multi-token-prediction layer, L the loss; `|` ends a stage, `x*n` and
// `(...)*n` repeat, commas mean nothing. Stage i is chunk i / pp of rank i mod
// pp.
//
//   Et*3|(tt|)*29,m|L   for pp 16: 32 stages, two a rank
#ifndef PIPELOOM_ADAPTERS_MEGATRON_LAYOUT_H_
#define PIPELOOM_ADAPTERS_MEGATRON_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pipeloom::adapters {

// Returns the symbols of each stage, such as "Ettt". InvalidArgument says where
// and why Megatron would refuse it: E not first or not once, L not last or not
// once, m before a t or in several stages, stages no multiple of pp.
absl::StatusOr<std::vector<std::string>> ParseMegatronLayout(
    absl::string_view text, int32_t pp);

// Returns the shortest string that repeats equal neighbouring stages and equal
// symbols.
std::string PrintMegatronLayout(absl::Span<const std::string> stages);

// Returns the stages with E before the first one's layers and L behind the last
// one's.
// InvalidArgument: a negative count, or no stage.
absl::StatusOr<std::vector<std::string>> MegatronLayoutOf(
    absl::Span<const int32_t> layers_by_stage);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_MEGATRON_LAYOUT_H_
