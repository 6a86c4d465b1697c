// The optimal contiguous split of a chain of weighted layers.
#ifndef PIPELOOM_PARTITION_PLACEMENT_LAYER_PARTITION_H_
#define PIPELOOM_PARTITION_PLACEMENT_LAYER_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::partition {

// Cuts `weights` into `runs` runs of at least one layer each and returns where
// each run begins (the first is 0). The heaviest run is as light as it can be;
// among such splits the sum of the runs' squared weights is least, which
// evens out the others; among those, earlier runs are shorter.
// REQUIRES: 1 <= runs <= weights.size(), weights >= 0 and their sum < 2^62.
// Dynamic programming, O(runs x layers x layers of the longest run).
std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs);

// The same where layer i may only be in the runs r for which allowed[i][r]
// holds; allowed[i] is empty where it may be in any, and all may if `allowed`
// is. What run r weighs is slow_of_run[r] times its layers, 1 times if that is
// empty: its rank takes so much longer than the fastest. Empty if there is no
// such split. REQUIRES also: `allowed` has none or an entry for each layer,
// `slow_of_run` none or one for each run, in [1, 64].
std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs,
                                 absl::Span<const std::vector<bool>> allowed,
                                 absl::Span<const double> slow_of_run = {});

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_LAYER_PARTITION_H_
