// The processes that mpirun (or srun) has started, as MPI knows them.
#ifndef PIPELOOM_RUNTIME_MPI_MPI_WORLD_H_
#define PIPELOOM_RUNTIME_MPI_MPI_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// One object per process. Threads: all calls come from the thread that made it.
class MpiWorld {
 public:
  // Starts MPI. Unavailable: MPI does not start. If the start is not done after
  // `bound`, calls `late` on another thread (StartWatch), which as a rule ends
  // the process. A bound of 0 means no bound.
  static absl::StatusOr<std::unique_ptr<MpiWorld>> Start(
      WallDuration bound = {},
      std::function<void(const absl::Status&)> late = {});

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  // Returns whether all ranks are on one host.
  bool single_host() const { return single_host_; }
  // Return this rank's number among the ranks of its host, and their count.
  int32_t host_rank() const { return host_rank_; }
  int32_t host_size() const { return host_size_; }
  // Returns whether the ranks of this host may run on at least as many cores as
  // there are ranks on it.
  bool own_core() const { return own_core_; }
  // Returns the time that another rank's clock shows when this rank's shows 0.
  // It is 0 on one host, else measured at the start with an error of some
  // 10 us.
  WallDuration ClockAhead(int32_t rank) const {
    return ahead_[static_cast<size_t>(rank)];
  }

  // Returns the strings of all ranks, indexed by rank. Blocks until all ranks
  // call it; meant for the start of a run, before anything can have failed.
  std::vector<std::string> AllGather(const std::string& own) const;

  // Calls MPI_Finalize, after which MPI may not be used. REQUIRES: all ranks
  // call it; a process that has seen a failure exits without it. If it is not
  // done after `bound`, for example because a rank dies meanwhile, calls
  // `otherwise` on another thread, which as a rule ends the process.
  void Finalize(WallDuration bound, const std::function<void()>& otherwise);

 private:
  MpiWorld() = default;
  void CompareClocks();

  int32_t rank_ = 0;
  int32_t size_ = 1;
  bool single_host_ = true;
  int32_t host_rank_ = 0;
  int32_t host_size_ = 1;
  bool own_core_ = false;
  std::vector<WallDuration> ahead_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_MPI_MPI_WORLD_H_
