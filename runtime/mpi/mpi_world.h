// The processes that mpirun (or srun) has started, as MPI knows them. One
// object per process; all calls from the thread that made it.
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

class MpiWorld {
 public:
  // MPI_Init. Unavailable: MPI does not come up. When that has taken `bound`,
  // `late` is called on another thread (StartWatch); as a rule it ends the
  // process. A bound of 0: for as long as it takes.
  static absl::StatusOr<std::unique_ptr<MpiWorld>> Start(
      WallDuration bound = {},
      std::function<void(const absl::Status&)> late = {});

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  bool single_host() const { return single_host_; }
  // Among the ranks of this host, and how many those are.
  int32_t host_rank() const { return host_rank_; }
  int32_t host_size() const { return host_size_; }
  // Whether the ranks of this host may run on as many cores as there are ranks.
  bool own_core() const { return own_core_; }
  // What another rank's clock shows when this one shows 0. 0 on one host,
  // else measured at the start, to some 10 us.
  WallDuration ClockAhead(int32_t rank) const {
    return ahead_[static_cast<size_t>(rank)];
  }

  // Everyone's string, by rank. Blocks for all; for the start of a run, before
  // anything can have failed.
  std::vector<std::string> AllGather(const std::string& own) const;

  // MPI_Finalize; after it nothing of MPI may be used. Only when all ranks come
  // to it: a process that has seen a failure just exits. When it is not done
  // after `bound`, which is so when a rank dies just now, `otherwise` is called
  // on another thread; as a rule that ends the process.
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
