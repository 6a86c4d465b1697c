#include "runtime/mpi/mpi_world.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <thread>
#include <utility>

#ifdef __linux__
#include <sched.h>
#endif

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "runtime/mpi/start_watch.h"

namespace pipeloom::runtime {
namespace {

constexpr int kClockTag = 1;
constexpr int kClockRounds = 20;

int64_t Nanoseconds(WallTime t) {
  return std::chrono::duration_cast<WallDuration>(t.time_since_epoch()).count();
}

// Returns the cores that this process may run on, as one '0' or '1' for each
// core; empty if they are not known.
std::string Cores() {
  std::string cores;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (size_t c = 0; c < CPU_SETSIZE; ++c) {
      cores += CPU_ISSET(c, &set) ? '1' : '0';
    }
  }
#endif
  return cores;
}

// Counts the cores that are '1' in any of the strings.
int32_t CountCores(const std::vector<std::string>& all) {
  std::string any;
  for (const std::string& cores : all) {
    any.resize(std::max(any.size(), cores.size()), '0');
    for (size_t c = 0; c < cores.size(); ++c) {
      if (cores[c] == '1') any[c] = '1';
    }
  }
  return static_cast<int32_t>(std::count(any.begin(), any.end(), '1'));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MpiWorld>> MpiWorld::Start(
    WallDuration bound, std::function<void(const absl::Status&)> late) {
  std::unique_ptr<StartWatch> watch;
  if (bound > WallDuration{}) {
    PIPELOOM_ASSIGN_OR_RETURN(watch, StartWatch::Begin(bound, std::move(late)));
  }
  // One thread at a time calls MPI, but the library may see two of them.
  int provided = MPI_THREAD_SINGLE;
  const int code =
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (code != MPI_SUCCESS || provided < MPI_THREAD_SERIALIZED) {
    return absl::UnavailableError(absl::StrFormat(
        "MPI does not start (error %d, thread level %d)", code, provided));
  }
  auto world = std::unique_ptr<MpiWorld>(new MpiWorld);
  MPI_Comm_rank(MPI_COMM_WORLD, &world->rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world->size_);
  world->ahead_.resize(static_cast<size_t>(world->size_));
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  const std::vector<std::string> names = world->AllGather(name);
  world->single_host_ =
      std::all_of(names.begin(), names.end(),
                  [&](const std::string& n) { return n == names[0]; });
  const auto before = names.begin() + world->rank_;
  world->host_rank_ =
      static_cast<int32_t>(std::count(names.begin(), before, *before));
  world->host_size_ =
      static_cast<int32_t>(std::count(names.begin(), names.end(), *before));
  std::vector<std::string> cores = world->AllGather(Cores());
  for (size_t r = 0; r < cores.size(); ++r) {
    if (names[r] != *before) cores[r].clear();
  }
  world->own_core_ = CountCores(cores) >= world->host_size_;
  if (!world->single_host_) world->CompareClocks();
  return world;
}

// Compares each rank's clock with rank 0's, by the quickest of some round
// trips.
void MpiWorld::CompareClocks() {
  int64_t behind_rank_0 = 0;  // Rank 0's clock when this rank's shows 0.
  for (int r = 1; r < size_; ++r) {
    if (rank_ != 0 && rank_ != r) continue;
    int64_t quickest = -1;
    for (int round = 0; round < kClockRounds; ++round) {
      int64_t there = 0;
      if (rank_ == 0) {
        MPI_Recv(&there, 1, MPI_INT64_T, r, kClockTag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        there = Nanoseconds(WallNow());
        MPI_Send(&there, 1, MPI_INT64_T, r, kClockTag, MPI_COMM_WORLD);
      } else {
        const int64_t before = Nanoseconds(WallNow());
        MPI_Send(&before, 1, MPI_INT64_T, 0, kClockTag, MPI_COMM_WORLD);
        MPI_Recv(&there, 1, MPI_INT64_T, 0, kClockTag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        const int64_t after = Nanoseconds(WallNow());
        if (quickest < 0 || after - before < quickest) {
          quickest = after - before;
          behind_rank_0 = there - (before + (after - before) / 2);
        }
      }
    }
  }
  std::vector<int64_t> all(static_cast<size_t>(size_));
  MPI_Allgather(&behind_rank_0, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T,
                MPI_COMM_WORLD);
  for (size_t r = 0; r < all.size(); ++r) {
    ahead_[r] = WallDuration(behind_rank_0 - all[r]);
  }
}

std::vector<std::string> MpiWorld::AllGather(const std::string& own) const {
  const auto ranks = static_cast<size_t>(size_);
  const int length = static_cast<int>(own.size());
  std::vector<int> lengths(ranks);
  MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT,
                MPI_COMM_WORLD);
  std::vector<int> offsets(ranks);
  int total = 0;
  for (size_t r = 0; r < ranks; ++r) {
    offsets[r] = total;
    total += lengths[r];
  }
  std::string joined(static_cast<size_t>(total), '\0');
  MPI_Allgatherv(own.data(), length, MPI_CHAR, joined.data(), lengths.data(),
                 offsets.data(), MPI_CHAR, MPI_COMM_WORLD);
  std::vector<std::string> all;
  for (size_t r = 0; r < ranks; ++r) {
    all.push_back(joined.substr(static_cast<size_t>(offsets[r]),
                                static_cast<size_t>(lengths[r])));
  }
  return all;
}

void MpiWorld::Finalize(WallDuration bound,
                        const std::function<void()>& otherwise) {
  struct {
    Mutex mutex{};
    CondVar changed{};
    bool done ABSL_GUARDED_BY(mutex) = false;
  } end;
  const std::jthread watch([&] {
    const MutexLock lock(&end.mutex);
    const auto is_done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(end.mutex) {
      return end.done;
    };
    if (!end.changed.WaitFor(&end.mutex, bound, is_done)) otherwise();
  });
  MPI_Finalize();
  const MutexLock lock(&end.mutex);
  end.done = true;
  end.changed.NotifyAll();
}

}  // namespace pipeloom::runtime
