// The processor as a rank's thread uses it: a core of its own, and the time it
// has spent.
#ifndef PIPELOOM_RUNTIME_TORCH_RANK_THREAD_H_
#define PIPELOOM_RUNTIME_TORCH_RANK_THREAD_H_

#include <cstddef>
#include <vector>

namespace pipeloom::runtime {

// Returns the cores that the calling thread may use, if their number is
// `ranks`, else none: with more cores the system is left to choose, as other
// processes may run there. Linux; elsewhere returns none.
std::vector<int> CoresFor(size_t ranks);
// Pins the calling thread to a core.
void KeepToCore(int core);

// Return seconds since some fixed moment: processor time of the calling thread
// (wall time on systems without such a clock), and wall time.
double ThreadSeconds();
double WallSeconds();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_RANK_THREAD_H_
