// The runtime's own costs: an instruction of the interpreter, and a tensor
// handed over between two ranks, against a bare copy. The mpi transport has a
// benchmark of its own, which mpirun starts: mpi_benchmark.cc.
#include <algorithm>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "planner/lower/lower_plan.h"
#include "runtime/commit_point.h"
#include "runtime/inproc_transport.h"
#include "runtime/interpreter.h"
#include "runtime/launch.h"
#include "runtime/memory_account.h"
#include "runtime/synthetic_device.h"
#include "tests/support/random_problem.h"

namespace pipeloom::runtime {
namespace {

// Makes a plan of one rank with tasks that take no time.
ExecutionPlan EmptyTasks(int32_t microbatches) {
  const StageGraph graph = testing::UniformGraph({.ranks = 1,
                                                  .microbatches = microbatches,
                                                  .forward = kZero,
                                                  .backward = kZero,
                                                  .weight_grad = kZero});
  RankOrders orders(1);
  for (const TaskId t : graph.task_ids()) orders[RankId(0)].push_back(t);
  auto schedule = TimeSchedule(graph, orders);
  return *planner::LowerPlan(graph, *schedule);
}

void BM_Instruction(benchmark::State& state) {
  const ExecutionPlan plan = EmptyTasks(500);
  InprocTransport transport(1, 1);
  for (auto _ : state) {
    RankClock clock({.max_lag = std::chrono::hours(1)});
    const WallTime now = WallNow();
    if (!clock.Start(now).ok()) return;
    MemoryAccount account(RankId(0), {}, &clock);
    BufferTable buffers(&account, false);
    SyntheticDevice device({.plan = &plan,
                            .rank = RankId(0),
                            .clock = &clock,
                            .account = &account,
                            .buffers = &buffers});
    CommitPoint commit(1);
    RankProgress progress;
    Interpreter interpreter({.plan = &plan,
                             .rank = RankId(0),
                             .clock = &clock,
                             .device = &device,
                             .transport = &transport,
                             .buffers = &buffers,
                             .commit = &commit,
                             .deadline = now + std::chrono::hours(1),
                             .progress = &progress});
    if (!interpreter.Run().ok()) state.SkipWithError("the run failed");
  }
  state.counters["ns_per_instruction"] = benchmark::Counter(
      static_cast<double>(plan.programs[RankId(0)].size()) * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate |
          benchmark::Counter::kInvert);
}
BENCHMARK(BM_Instruction);

constexpr size_t kTensor = 1 << 20;

void BM_Memcpy1MB(benchmark::State& state) {
  const std::vector<std::byte> data(kTensor, std::byte{1});
  std::vector<std::byte> into(kTensor);
  for (auto _ : state) {
    std::memcpy(into.data(), data.data(), kTensor);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_Memcpy1MB);

void BM_InprocHandOver1MB(benchmark::State& state) {
  InprocTransport transport(2, 1);
  const std::vector<std::byte> data(kTensor, std::byte{1});
  std::vector<std::byte> into(kTensor);
  int32_t edge = 0;
  for (auto _ : state) {
    const Message m{.edge = EdgeId(edge++), .from = RankId(0), .to = RankId(1)};
    const WallTime now = WallNow();
    const WallTime deadline = now + std::chrono::hours(1);
    if (!transport.PostRecv(m, now, absl::MakeSpan(into)).ok() ||
        !transport.PostSend(m, now, data).ok() ||
        !transport.WaitRecv(m, deadline).ok() ||
        !transport.WaitSend(m, deadline).ok()) {
      state.SkipWithError("the transfer failed");
    }
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_InprocHandOver1MB);

// Runs both in turns; counter over_memcpy is the median of their ratios.
void BM_HandOverOverMemcpy(benchmark::State& state) {
  InprocTransport transport(2, 1);
  const std::vector<std::byte> data(kTensor, std::byte{1});
  std::vector<std::byte> into(kTensor);
  std::vector<double> ratios;
  int32_t edge = 0;
  for (auto _ : state) {
    const WallTime begin = WallNow();
    std::memcpy(into.data(), data.data(), kTensor);
    benchmark::ClobberMemory();
    const WallTime middle = WallNow();
    const Message m{.edge = EdgeId(edge++), .from = RankId(0), .to = RankId(1)};
    const WallTime deadline = middle + std::chrono::hours(1);
    if (!transport.PostRecv(m, middle, absl::MakeSpan(into)).ok() ||
        !transport.PostSend(m, middle, data).ok() ||
        !transport.WaitRecv(m, deadline).ok() ||
        !transport.WaitSend(m, deadline).ok()) {
      state.SkipWithError("the transfer failed");
    }
    benchmark::ClobberMemory();
    const WallTime end = WallNow();
    ratios.push_back(static_cast<double>((end - middle).count()) /
                     static_cast<double>((middle - begin).count()));
  }
  if (ratios.empty()) return;
  const auto half = ratios.begin() + static_cast<ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), half, ratios.end());
  state.counters["over_memcpy"] = *half;
}
BENCHMARK(BM_HandOverOverMemcpy);

// Runs a whole step, including its threads.
void BM_StepOfFourRanks(benchmark::State& state) {
  const StageGraph graph = testing::UniformGraph({.ranks = 4,
                                                  .microbatches = 8,
                                                  .forward = kZero,
                                                  .backward = kZero,
                                                  .weight_grad = kZero});
  Random random(1);
  auto schedule = TimeSchedule(graph, testing::RandomOrders(graph, random));
  const ExecutionPlan plan = *planner::LowerPlan(graph, *schedule);
  for (auto _ : state) {
    if (!RunPlan(plan).ok()) state.SkipWithError("the run failed");
  }
}
BENCHMARK(BM_StepOfFourRanks)->UseRealTime();

}  // namespace
}  // namespace pipeloom::runtime
