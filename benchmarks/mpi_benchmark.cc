// A ping-pong between two processes: the mpi transport, without keeping the
// plan's time, against bare MPI calls in the same run.
//
//   mpirun -n 2 mpi_benchmark
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "runtime/mpi/mpi_transport.h"
#include "runtime/mpi/mpi_world.h"

namespace pipeloom::runtime {
namespace {

double Microseconds(WallDuration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

// Blocks of round trips, in turn of one and the other kind, so that what else
// runs on the machine befalls both. There are as many round trips as take some
// milliseconds now: ranks that poll, on cores that are busy otherwise, need a
// time slice for each.
constexpr int kBlocks = 21;
constexpr double kBlockMicroseconds = 10'000;

double Median(std::vector<double> values) {
  const auto half = values.begin() + kBlocks / 2;
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

struct OneWay {
  double bare = 0;
  double ours = 0;
  double ratio = 0;  // The median of the blocks'.
};

template <typename Bare, typename Ours>
OneWay Compare(Bare bare, Ours ours) {
  const auto time = [](int rounds, auto& round_trip) {
    const WallTime begin = WallNow();
    for (int i = 0; i < rounds; ++i) round_trip();
    return Microseconds(WallNow() - begin) / (2 * rounds);
  };
  constexpr int kTrial = 3;
  time(kTrial, ours);
  int rounds = static_cast<int>(
      std::clamp(kBlockMicroseconds / (2 * time(kTrial, bare)), 2.0, 2000.0));
  MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::vector<double> all_bare;
  std::vector<double> all_ours;
  std::vector<double> ratios;
  for (int b = 0; b < kBlocks; ++b) {
    all_bare.push_back(time(rounds, bare));
    all_ours.push_back(time(rounds, ours));
    ratios.push_back(all_ours.back() / all_bare.back());
  }
  return {Median(all_bare), Median(all_ours), Median(ratios)};
}

int Main() {
  auto world = MpiWorld::Start();
  if (!world.ok() || (*world)->size() != 2) {
    std::fputs("start it with mpirun -n 2\n", stderr);
    return 2;
  }
  const int rank = (*world)->rank();
  const int peer = 1 - rank;
  {
    MpiTransport transport(world->get(), {.keep_time = false});
    if (rank == 0) {
      std::printf("%10s %12s %12s %8s\n", "bytes", "MPI", "transport", "ratio");
    }
    double worst = 0;
    for (const int size : {8, 1024, 65536, 1 << 20, 4 << 20}) {
      std::vector<std::byte> out(static_cast<size_t>(size));
      std::vector<std::byte> in(static_cast<size_t>(size));
      const auto bare_send = [&] {
        MPI_Send(out.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
      };
      const auto bare_recv = [&] {
        MPI_Recv(in.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
      };
      const auto bare = [&] {
        if (rank == 0) {
          bare_send();
          bare_recv();
        } else {
          bare_recv();
          bare_send();
        }
      };
      const auto there =
          Message{.edge = EdgeId(1), .from = RankId(rank), .to = RankId(peer)};
      const auto back =
          Message{.edge = EdgeId(1), .from = RankId(peer), .to = RankId(rank)};
      const WallTime far = WallNow() + std::chrono::hours(1);
      bool ok = true;
      const auto ours = [&] {
        const WallTime now = WallNow();
        ok &= transport.PostRecv(back, now, absl::MakeSpan(in)).ok();
        if (rank == 0) ok &= transport.PostSend(there, now, out).ok();
        ok &= transport.WaitRecv(back, far).ok();
        if (rank == 1) ok &= transport.PostSend(there, now, out).ok();
        ok &= transport.WaitSend(there, far).ok();
      };
      const OneWay times = Compare(bare, ours);
      if (!ok) return 1;
      worst = std::max(worst, times.ratio);
      if (rank == 0) {
        std::printf("%10d %9.2f us %9.2f us %8.3f\n", size, times.bare,
                    times.ours, times.ratio);
        std::fflush(stdout);
      }
    }
    if (rank == 0) std::printf("largest ratio: %.3f\n", worst);
  }
  (*world)->Finalize(std::chrono::seconds(10), [] {});
  return 0;
}

}  // namespace
}  // namespace pipeloom::runtime

int main() { return pipeloom::runtime::Main(); }
