// The optimal contiguous split of a chain of weighted layers.
#ifndef PIPELOOM_PARTITION_PLACEMENT_LAYER_PARTITION_H_
#define PIPELOOM_PARTITION_PLACEMENT_LAYER_PARTITION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::partition {

// Cuts `weights` into `runs` runs of at least one layer each and returns the
// first layer of each run (that of the first run is 0). The heaviest run is as
// light as possible; among such splits the sum of the runs' squared weights is
// least, which evens out the others; among those, earlier runs are shorter.
// REQUIRES: 1 <= runs <= weights.size(), weights >= 0 and their sum < 2^62.
// Dynamic programming, O(runs x layers x layers of the longest run).
std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs);

// The same if layer i may only be in the runs r for which allowed[i][r] holds;
// an empty allowed[i], or an empty `allowed`, permits all. The weight of run r
// is slow_of_run[r] times that of its layers, as its rank takes that many times
// longer than the fastest; once if `slow_of_run` is empty. Returns an empty
// vector if there is no such split. REQUIRES also: `allowed` has no entry or
// one for each layer, `slow_of_run` none or one for each run, in [1, 64].
std::vector<int32_t> SplitLayers(absl::Span<const int64_t> weights,
                                 int32_t runs,
                                 absl::Span<const std::vector<bool>> allowed,
                                 absl::Span<const double> slow_of_run = {});

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_LAYER_PARTITION_H_
