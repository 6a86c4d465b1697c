// What a rank's thread has of the processor: a core to itself, and the time it
// has spent on it.
#ifndef PIPELOOM_RUNTIME_TORCH_RANK_THREAD_H_
#define PIPELOOM_RUNTIME_TORCH_RANK_THREAD_H_

#include <cstddef>
#include <vector>

namespace pipeloom::runtime {

// The cores that the calling thread may use, if they are `ranks`: with more,
// the system is left to choose, as other processes may be about. Linux;
// elsewhere none.
std::vector<int> CoresFor(size_t ranks);
// Keeps the calling thread to that core.
void KeepToCore(int core);

// Seconds from some moment on: of the calling thread's processor time, or of
// wall time.
double ThreadSeconds();
double WallSeconds();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_RANK_THREAD_H_
