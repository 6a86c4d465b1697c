// One rank of a run under mpirun, with one fault put in: a program that
// process_fault_test.cc starts and judges by the files it leaves.
//
//   mpi_rank_program DIR FAULT RANK STEP PLACE TIMEOUT_MS
//
// FAULT: none, kill, stop, throw, oom, limit, cut, hang, interrupt. PLACE:
// first, middle or last instruction of RANK in STEP, `commit`, where everybody
// has arrived, and with oom `before`, when the step is set up; with stop and
// oom `start`, before MPI starts, there as too little address space. Files:
// optimizer.R, a byte for each optimizer step of rank R; fault, the time in ns
// at which it happened; end.R, the rank's exit code, time in ns, and last
// words.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "planner/lower/lower_plan.h"
#include "runtime/mpi/mpi_transport.h"
#include "runtime/mpi/mpi_world.h"
#include "runtime/mpi/start_watch.h"
#include "runtime/process/control_mesh.h"
#include "runtime/process/rank_process.h"
#include "runtime/run_steps.h"
#include "runtime/synthetic_device.h"
#include "tests/support/random_problem.h"

namespace pipeloom::runtime {
namespace {

constexpr int64_t kSteps = 4;

struct Arguments {
  std::string directory{};
  std::string fault{};
  int32_t rank = 0;
  int64_t step = 0;
  std::string place{};
  int64_t timeout_ms = 0;
};

int64_t Now() { return WallNow().time_since_epoch().count(); }

SharedPlan MakePlan(int32_t ranks, int64_t step) {
  StageGraph graph =
      testing::UniformGraph({.ranks = ranks,
                             .microbatches = static_cast<int32_t>(4 + step % 3),
                             .forward = Microseconds(500),
                             .backward = Microseconds(700),
                             .delay = Microseconds(50)});
  IdVector<RankId, RankSpec> specs = graph.ranks();
  for (RankSpec& rank : specs) rank.epilogue = Microseconds(300);
  graph = graph.WithRanks(specs);
  Random random(static_cast<uint64_t>(step));
  auto schedule = TimeSchedule(graph, testing::RandomOrders(graph, random));
  PIPELOOM_CHECK(schedule.ok());
  auto plan = planner::LowerPlan(graph, *schedule);
  PIPELOOM_CHECK(plan.ok());
  plan->job = "faults";
  plan->step = step;
  return std::make_shared<const ExecutionPlan>(*std::move(plan));
}

// The index of the instruction at which the fault happens.
uint64_t PlaceOf(const ExecutionPlan& plan, const Arguments& a) {
  const auto& program = plan.programs[RankId(a.rank)];
  size_t k = a.place == "first"    ? 0
             : a.place == "middle" ? program.size() / 2
                                   : program.size() - 1;
  if (a.place == "commit") {
    while (!std::holds_alternative<OptimizerStep>(program[k])) --k;
  }
  // A free calls neither device nor transport.
  while (std::holds_alternative<Free>(program[k])) ++k;
  return k;
}

class Saboteur {
 public:
  Saboteur(const Arguments* a, ControlMesh* mesh) : a_(*a), mesh_(mesh) {}

  void At(const ExecutionPlan& plan) {
    if (done_ || mesh_->rank() != a_.rank || plan.step != a_.step ||
        mesh_->progress()->position != PlaceOf(plan, a_)) {
      return;
    }
    done_ = true;
    std::ofstream(a_.directory + "/fault") << Now();
    if (a_.fault == "kill") raise(SIGKILL);
    if (a_.fault == "stop") raise(SIGSTOP);
    if (a_.fault == "throw") throw std::runtime_error("the device is on fire");
    if (a_.fault == "oom") throw std::bad_alloc();
    if (a_.fault == "cut") {
      cut = true;
      mesh_->Cut();
    }
    while (a_.fault == "hang") {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (a_.fault == "interrupt") {
      mesh_->progress()->blocked = false;
      kill(getppid(), SIGINT);
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      // The step must not be over before the stop takes effect.
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
    }
  }

  bool cut = false;
  std::stop_token stop{};

 private:
  const Arguments& a_;
  ControlMesh* mesh_;
  bool done_ = false;
};

class SabotagedDevice final : public Device {
 public:
  SabotagedDevice(const DeviceContext& context, Saboteur* saboteur,
                  std::string optimizer_file)
      : context_(context),
        inner_(context),
        saboteur_(saboteur),
        optimizer_file_(std::move(optimizer_file)) {}

  absl::Status Compute(TaskId task) override {
    saboteur_->At(*context_.plan);
    return inner_.Compute(task);
  }
  absl::Span<const std::byte> Output(EdgeId edge) override {
    return inner_.Output(edge);
  }
  void Sent(EdgeId edge) override { inner_.Sent(edge); }
  absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) override {
    return inner_.Offload(task, payload);
  }
  absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) override {
    return inner_.Fetch(task, payload);
  }
  absl::Status ReduceGradients() override {
    saboteur_->At(*context_.plan);
    return inner_.ReduceGradients();
  }
  absl::Status OptimizerStep() override {
    saboteur_->At(*context_.plan);
    std::ofstream(optimizer_file_, std::ios::app) << 'o';
    return inner_.OptimizerStep();
  }

 private:
  DeviceContext context_;
  SyntheticDevice inner_;
  Saboteur* saboteur_;
  std::string optimizer_file_;
};

// Once cut, it swallows everything.
class SabotagedTransport final : public Transport {
 public:
  SabotagedTransport(Transport* inner, Saboteur* saboteur)
      : inner_(inner), saboteur_(saboteur) {}
  void SetPlan(SharedPlan plan) { plan_ = std::move(plan); }

  absl::Status PostSend(const Message& m, WallTime at,
                        absl::Span<const std::byte> data) override {
    saboteur_->At(*plan_);
    if (saboteur_->cut) return absl::OkStatus();
    return inner_->PostSend(m, at, data);
  }
  absl::Status PostRecv(const Message& m, WallTime at,
                        absl::Span<std::byte> into) override {
    saboteur_->At(*plan_);
    return inner_->PostRecv(m, at, into);
  }
  absl::StatusOr<TransferTimes> WaitSend(const Message& m,
                                         WallTime deadline) override {
    saboteur_->At(*plan_);
    if (saboteur_->cut) return Swallow(deadline);
    return inner_->WaitSend(m, deadline);
  }
  absl::StatusOr<TransferTimes> WaitRecv(const Message& m,
                                         WallTime deadline) override {
    saboteur_->At(*plan_);
    if (saboteur_->cut) return Swallow(deadline);
    return inner_->WaitRecv(m, deadline);
  }
  void Abort(absl::Status reason) override {
    aborted_ = true;
    inner_->Abort(std::move(reason));
  }

 private:
  absl::StatusOr<TransferTimes> Swallow(WallTime deadline) {
    while (WallNow() < deadline && !aborted_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return absl::UnavailableError("nothing comes or goes");
  }

  Transport* inner_;
  Saboteur* saboteur_;
  SharedPlan plan_{};
  std::atomic<bool> aborted_{false};
};

void Leave(const Arguments& a, int32_t rank, int code,
           const std::string& words) {
  std::ofstream(absl::StrFormat("%s/end.%d", a.directory, rank))
      << code << "\n"
      << Now() << "\n"
      << words << "\n";
}

int Main(const Arguments& a) {
  std::stop_source stop;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, stop]() mutable {
    int number = 0;
    sigwait(&signals, &number);
    stop.request_stop();
  }).detach();

  if (a.place == "start" &&
      RankBeforeStart() == absl::StrCat("rank ", a.rank)) {
    std::ofstream(a.directory + "/fault") << Now();
    if (a.fault == "stop") raise(SIGSTOP);
    const rlimit little{.rlim_cur = 60'000 << 10, .rlim_max = 60'000 << 10};
    setrlimit(RLIMIT_AS, &little);
  }
  auto world = MpiWorld::Start(std::chrono::milliseconds(a.timeout_ms),
                               [&a](const absl::Status& late) {
                                 const std::string rank = RankBeforeStart();
                                 Leave(a, std::atoi(&rank[rank.rfind(' ')]), 1,
                                       std::string(late.message()));
                                 _exit(1);
                               });
  if (!world.ok()) {
    std::fputs(world.status().ToString().c_str(), stderr);
    return 1;
  }
  const int32_t rank = (*world)->rank();
  RunOptions options;
  options.failure_timeout = std::chrono::milliseconds(a.timeout_ms);
  options.stop = stop.get_token();
  auto mesh = ControlMesh::Create({.rank = rank,
                                   .size = (*world)->size(),
                                   .failure_timeout = options.failure_timeout});
  PIPELOOM_CHECK(mesh.ok());
  const absl::Status connected =
      (*mesh)->Connect((*world)->AllGather((*mesh)->address()),
                       WallNow() + std::chrono::seconds(20));
  PIPELOOM_CHECK(connected.ok());
  Saboteur saboteur(&a, mesh->get());
  saboteur.stop = stop.get_token();
  MpiTransport mpi(world->get(), {});
  SabotagedTransport transport(&mpi, &saboteur);
  absl::Status status;
  {
    RankProcess process(
        options,
        {.mesh = mesh->get(),
         .transport = &transport,
         .make_device =
             [&](const DeviceContext& context) -> std::unique_ptr<Device> {
           if (a.place == "before" && rank == a.rank &&
               context.plan->step == a.step) {
             std::ofstream(a.directory + "/fault") << Now();
             throw std::bad_alloc();
           }
           return std::make_unique<SabotagedDevice>(
               context, &saboteur,
               absl::StrFormat("%s/optimizer.%d", a.directory, rank));
         },
         .on_stuck =
             [&](const absl::Status& reason) {
               Leave(a, rank, 1, std::string(reason.message()));
               _exit(1);
             }});
    status = RunSteps(
        kSteps,
        [&](int64_t i) -> absl::StatusOr<SharedPlan> {
          SharedPlan plan = MakePlan((*world)->size(), i);
          if (a.fault == "limit" && i == a.step && rank == a.rank) {
            // Not the plan of the others.
            return MakePlan((*world)->size(), i + 1);
          }
          return plan;
        },
        [&](SharedPlan plan) {
          transport.SetPlan(plan);
          return process.RunStep(plan);
        },
        [](int64_t, SharedPlan, StepTrace) { return absl::OkStatus(); });
  }
  if (status.ok()) status = (*mesh)->Close(WallNow() + std::chrono::seconds(5));
  if (status.ok()) {
    Leave(a, rank, 0, "done");
    (*world)->Finalize(options.failure_timeout, [] { _exit(0); });
    return 0;
  }
  Leave(a, rank, 1, std::string(status.message()));
  mesh->reset();
  _exit(1);
}

}  // namespace
}  // namespace pipeloom::runtime

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  return pipeloom::runtime::Main({.directory = argv[1],
                                  .fault = argv[2],
                                  .rank = std::atoi(argv[3]),
                                  .step = std::atoi(argv[4]),
                                  .place = argv[5],
                                  .timeout_ms = std::atoi(argv[6])});
}
