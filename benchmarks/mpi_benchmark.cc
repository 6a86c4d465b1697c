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

// The median of blocks of round trips, one way.
template <typename RoundTrip>
double OneWay(int rounds, RoundTrip round_trip) {
  constexpr int kBlocks = 21;
  std::vector<double> times;
  for (int b = 0; b < kBlocks; ++b) {
    const WallTime begin = WallNow();
    for (int i = 0; i < rounds; ++i) round_trip();
    times.push_back(Microseconds(WallNow() - begin) / (2 * rounds));
  }
  std::nth_element(times.begin(), times.begin() + kBlocks / 2, times.end());
  return times[kBlocks / 2];
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
    if (rank == 0) std::printf("%10s %12s %12s\n", "bytes", "MPI", "transport");
    for (const int size : {8, 1024, 65536, 1 << 20, 4 << 20}) {
      std::vector<std::byte> out(static_cast<size_t>(size));
      std::vector<std::byte> in(static_cast<size_t>(size));
      const int rounds = size > 100000 ? 20 : 500;
      const auto bare_send = [&] {
        MPI_Send(out.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
      };
      const auto bare_recv = [&] {
        MPI_Recv(in.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
      };
      const double bare = OneWay(rounds, [&] {
        if (rank == 0) {
          bare_send();
          bare_recv();
        } else {
          bare_recv();
          bare_send();
        }
      });
      const auto there =
          Message{.edge = EdgeId(1), .from = RankId(rank), .to = RankId(peer)};
      const auto back =
          Message{.edge = EdgeId(1), .from = RankId(peer), .to = RankId(rank)};
      const WallTime far = WallNow() + std::chrono::hours(1);
      bool ok = true;
      const double ours = OneWay(rounds, [&] {
        const WallTime now = WallNow();
        ok &= transport.PostRecv(back, now, absl::MakeSpan(in)).ok();
        if (rank == 0) ok &= transport.PostSend(there, now, out).ok();
        ok &= transport.WaitRecv(back, far).ok();
        if (rank == 1) ok &= transport.PostSend(there, now, out).ok();
        ok &= transport.WaitSend(there, far).ok();
      });
      if (!ok) return 1;
      if (rank == 0) {
        std::printf("%10d %9.2f us %9.2f us  %+.1f %%\n", size, bare, ours,
                    100 * (ours / bare - 1));
      }
    }
  }
  (*world)->Finalize(std::chrono::seconds(10), [] {});
  return 0;
}

}  // namespace
}  // namespace pipeloom::runtime

int main() { return pipeloom::runtime::Main(); }
