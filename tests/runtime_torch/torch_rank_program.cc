// The truth test with processes as ranks: mpirun -n P torch_rank_program
// [CASE...] trains each case, whose plans have P ranks, three steps in fp64
// over the mpi transport, and compares loss, gradients and weights with
// training in one process, on rank 0. Without names: all cases of P ranks.
// Exit code 1 and words: they differ.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/mpi/mpi_transport.h"
#include "runtime/mpi/mpi_world.h"
#include "runtime/process/control_mesh.h"
#include "runtime/process/rank_process.h"
#include "tests/runtime_torch/serial_training.h"
#include "tests/runtime_torch/training_case.h"

namespace pipeloom::runtime {
namespace {

constexpr double kBound = 1e-9;
constexpr int64_t kSteps = 3;

std::string ToBytes(const TorchValues& values) {
  std::string bytes;
  for (const auto& [name, numbers] : values) {
    const size_t size = numbers.size() * sizeof(double);
    absl::StrAppend(&bytes, name, " ", numbers.size(), " ");
    const size_t at = bytes.size();
    bytes.resize(at + size);
    std::memcpy(bytes.data() + at, numbers.data(), size);
  }
  return bytes;
}

void Add(const std::string& bytes, TorchValues* values) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t name_end = bytes.find(' ', at);
    const size_t size_end = bytes.find(' ', name_end + 1);
    std::vector<double>& numbers = (*values)[bytes.substr(at, name_end - at)];
    numbers.resize(std::stoul(bytes.substr(name_end + 1)));
    at = size_end + 1;
    std::memcpy(numbers.data(), bytes.data() + at,
                numbers.size() * sizeof(double));
    at += numbers.size() * sizeof(double);
  }
}

absl::Status CheckSame(const TorchValues& mine, const TorchValues& reference,
                       const char* what) {
  if (mine.size() != reference.size()) {
    return absl::InternalError(absl::StrFormat(
        "%d %ss; one process has %d", mine.size(), what, reference.size()));
  }
  for (const auto& [name, values] : reference) {
    const auto found = mine.find(name);
    const double distance =
        found == mine.end() ? 1 : Distance(found->second, values);
    if (distance > kBound) {
      return absl::InternalError(
          absl::StrFormat("%s %s differs by %g", what, name, distance));
    }
  }
  return absl::OkStatus();
}

absl::Status Train(const TrainingCase& c, const MpiWorld& world,
                   ControlMesh* mesh) {
  PIPELOOM_ASSIGN_OR_RETURN(const auto run, CaseRun::Make(c));
  TorchSetup setup = run->Setup(TorchPrecision::kFp64);
  std::unique_ptr<SerialTraining> serial;
  if (world.rank() == 0) serial = std::make_unique<SerialTraining>(setup);
  setup.only_rank = RankId(world.rank());
  PIPELOOM_ASSIGN_OR_RETURN(const auto trainer, MakeTorchTrainer(setup));
  RunOptions options;
  options.whole_tensors = true;
  options.timeout = std::chrono::minutes(5);
  options.failure_timeout = std::chrono::minutes(1);
  MpiTransport transport(
      &world,
      {.keep_time = false,
       .tell_others = [mesh](const absl::Status& why) { mesh->Fail(why); }});
  RankProcess process(options, {.mesh = mesh,
                                .transport = &transport,
                                .make_device =
                                    [&](const DeviceContext& context) {
                                      return trainer->MakeDevice(context);
                                    },
                                .clock_of_rank_0 = world.ClockAhead(0)});
  const WallTime far = WallNow() + std::chrono::minutes(5);
  for (int64_t step = 0; step < kSteps; ++step) {
    PIPELOOM_ASSIGN_OR_RETURN(const TrainingStep now, run->Next());
    PIPELOOM_ASSIGN_OR_RETURN(
        ExecutionPlan plan, trainer->BeginStep(now.plan, now.work, now.memory));
    PIPELOOM_RETURN_IF_ERROR(
        process.RunStep(std::make_shared<const ExecutionPlan>(std::move(plan)))
            .status());
    const TorchValues loss{{"loss", {trainer->Loss()}}};
    std::vector<std::vector<std::string>> gathered;
    const uint64_t topic =
        (uint64_t{1} << 63) | static_cast<uint64_t>(step * 3);
    uint64_t which = 0;
    for (const TorchValues& own :
         {loss, trainer->Gradients(), trainer->Weights()}) {
      PIPELOOM_ASSIGN_OR_RETURN(
          gathered.emplace_back(),
          mesh->Gather(topic + which++, ToBytes(own), far));
    }
    if (world.rank() != 0) continue;
    const double expected = serial->Step(now.work);
    double total = 0;
    for (const std::string& bytes : gathered[0]) {
      TorchValues one;
      Add(bytes, &one);
      total += one["loss"][0];
    }
    TorchValues gradients;
    for (const std::string& bytes : gathered[1]) Add(bytes, &gradients);
    TorchValues weights;
    for (const std::string& bytes : gathered[2]) Add(bytes, &weights);
    PIPELOOM_RETURN_IF_ERROR(
        CheckSame({{"loss", {total}}}, {{"loss", {expected}}}, "loss"));
    PIPELOOM_RETURN_IF_ERROR(
        CheckSame(gradients, serial->Gradients(), "gradient"));
    PIPELOOM_RETURN_IF_ERROR(CheckSame(weights, serial->Weights(), "weight"));
  }
  return absl::OkStatus();
}

// With control connections of its own.
absl::Status RunCase(const std::string& name, const MpiWorld& world) {
  const std::vector<TrainingCase> all = TrainingCases();
  const TrainingCase* found = nullptr;
  for (const TrainingCase& c : all) {
    if (c.name == name) found = &c;
  }
  if (found == nullptr) return absl::NotFoundError("no such case");
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto mesh,
      ControlMesh::Create({.rank = world.rank(),
                           .size = world.size(),
                           .failure_timeout = std::chrono::minutes(1)}));
  const WallTime soon = WallNow() + std::chrono::minutes(1);
  PIPELOOM_RETURN_IF_ERROR(
      mesh->Connect(world.AllGather(mesh->address()), soon));
  const absl::Status status = Train(*found, world, mesh.get());
  if (!status.ok()) {
    mesh->Fail(status);
    return status;
  }
  return mesh->Close(WallNow() + std::chrono::minutes(1));
}

int Main(int argc, char** argv) {
  auto world = MpiWorld::Start();
  if (!world.ok()) return 1;
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) {
    for (const TrainingCase& c : TrainingCases()) {
      if (c.pp == (*world)->size()) names.push_back(c.name);
    }
  }
  for (const std::string& name : names) {
    const absl::Status status = RunCase(name, **world);
    if (!status.ok()) {
      std::fprintf(stderr, "%s, rank %d: %s\n", name.c_str(), (*world)->rank(),
                   std::string(status.message()).c_str());
      std::fflush(stderr);
      std::_Exit(1);
    }
    if ((*world)->rank() == 0) std::printf("%s: equal\n", name.c_str());
  }
  if ((*world)->rank() == 0) {
    std::printf("%d cases on %d ranks\n", static_cast<int>(names.size()),
                (*world)->size());
  }
  (*world)->Finalize(std::chrono::seconds(20), [] { std::_Exit(1); });
  return 0;
}

}  // namespace
}  // namespace pipeloom::runtime

int main(int argc, char** argv) { return pipeloom::runtime::Main(argc, argv); }
