#include "cli/run/run_ranks.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/input/plan_file.h"
#include "cli/run/run_module.h"
#include "proto/convert/serialize_plan.h"
#if PIPELOOM_WITH_MPI
#include "runtime/mpi/mpi_transport.h"
#include "runtime/mpi/mpi_world.h"
#include "runtime/mpi/start_watch.h"
#include "runtime/nccl/link_transport.h"
#include "runtime/process/control_mesh.h"
#include "runtime/process/rank_process.h"
#endif

namespace pipeloom::cli {
namespace {

class ThreadRanks final : public RunRanks {
 public:
  ThreadRanks(const runtime::RunOptions& options,
              runtime::DeviceFactory make_device)
      : options_(options), parts_(runtime::SyntheticParts()) {
    parts_.make_device = std::move(make_device);
  }

  bool leads() const override { return true; }
  runtime::PlanFeed Share(runtime::PlanFeed leaders) override {
    return leaders;
  }
  absl::StatusOr<StepTrace> RunStep(runtime::SharedPlan plan) override {
    return runtime::RunPlanWith(*plan, options_, parts_);
  }
  absl::StatusOr<std::string> Broadcast(std::string bytes) override {
    return bytes;
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes) override {
    return std::vector<std::string>{std::move(bytes)};
  }
  RankId only_rank() const override { return RankId(); }
  int32_t host_rank() const override { return 0; }
  absl::Status End(const absl::Status& status, const Context&) override {
    return status;
  }

 private:
  runtime::RunOptions options_;
  runtime::RunParts parts_;
};

#if PIPELOOM_WITH_MPI

constexpr auto kConnectTimeout = std::chrono::seconds(30);
// The first topics of plans and of all other messages.
constexpr uint64_t kPlanTopic = uint64_t{1} << 63;
constexpr uint64_t kOtherTopic = kPlanTopic | (uint64_t{1} << 60);
constexpr auto kForEver = std::chrono::hours(24 * 365);

void EndProcess(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);
}

using MakeTransport = std::function<std::unique_ptr<runtime::Transport>(
    const runtime::MpiWorld*, runtime::ControlMesh*)>;

class ProcessRanks final : public RunRanks {
 public:
  ProcessRanks(const runtime::RunOptions& options,
               runtime::DeviceFactory make_device,
               const MakeTransport& make_transport,
               std::unique_ptr<runtime::MpiWorld> world,
               std::unique_ptr<runtime::ControlMesh> mesh)
      : options_(options), world_(std::move(world)), mesh_(std::move(mesh)) {
    transport_ = make_transport(world_.get(), mesh_.get());
    process_ = std::make_unique<runtime::RankProcess>(
        options, runtime::RankProcess::Parts{
                     .mesh = mesh_.get(),
                     .transport = transport_.get(),
                     .make_device = std::move(make_device),
                     .clock_of_rank_0 = world_->ClockAhead(0),
                     .on_stuck = [this](const absl::Status& why) {
                       std::fputs(Words(why).c_str(), stderr);
                       EndProcess(1);
                     }});
  }

  bool leads() const override { return world_->rank() == 0; }

  runtime::PlanFeed Share(runtime::PlanFeed leaders) override {
    if (leads()) {
      return [this, feed = std::move(leaders)](
                 int64_t i) -> absl::StatusOr<runtime::SharedPlan> {
        PIPELOOM_ASSIGN_OR_RETURN(const runtime::SharedPlan plan, feed(i));
        // An empty message says that the last plan runs again.
        const std::string bytes =
            plan == last_ ? std::string() : convert::SerializePlan(*plan);
        last_ = plan;
        for (int32_t r = 1; r < mesh_->size(); ++r) {
          mesh_->Send(r, Topic(i), bytes);
        }
        return plan;
      };
    }
    return [this](int64_t i) -> absl::StatusOr<runtime::SharedPlan> {
      // No deadline, as rank 0 may plan for long; its death ends the wait.
      PIPELOOM_ASSIGN_OR_RETURN(
          const std::string bytes,
          mesh_->Receive(0, Topic(i), runtime::WallNow() + kForEver));
      if (!bytes.empty()) {
        PIPELOOM_ASSIGN_OR_RETURN(ExecutionPlan plan,
                                  ParsePlanFile(bytes, "the plan of rank 0"));
        last_ = std::make_shared<const ExecutionPlan>(std::move(plan));
      }
      return last_;
    };
  }

  absl::StatusOr<StepTrace> RunStep(runtime::SharedPlan plan) override {
    return process_->RunStep(std::move(plan));
  }

  absl::StatusOr<std::string> Broadcast(std::string bytes) override {
    return mesh_->Broadcast(kOtherTopic | others_++, std::move(bytes),
                            runtime::WallNow() + kForEver);
  }
  absl::StatusOr<std::vector<std::string>> Gather(std::string bytes) override {
    return mesh_->Gather(kOtherTopic | others_++, std::move(bytes),
                         runtime::WallNow() + kForEver);
  }
  RankId only_rank() const override { return RankId(world_->rank()); }
  int32_t host_rank() const override { return world_->host_rank(); }

  absl::Status End(const absl::Status& status, const Context&) override {
    absl::Status end = status;
    if (end.ok()) {
      end = mesh_->Close(runtime::WallNow() + options_.failure_timeout);
    }
    if (end.ok()) {
      process_.reset();
      transport_.reset();
      mesh_.reset();
      world_->Finalize(options_.failure_timeout, [] { EndProcess(0); });
      return end;
    }
    mesh_->Fail(end);
    end = mesh_->failure();
    process_.reset();
    std::fputs(Words(end).c_str(), stderr);
    std::fflush(stderr);
    // Waits for the others to say so, too. The process then exits, as MPI
    // cannot be finalized without all ranks.
    mesh_.reset();
    EndProcess(absl::IsCancelled(end) ? 130 : 1);
    return end;
  }

 private:
  static uint64_t Topic(int64_t step) {
    return kPlanTopic | static_cast<uint64_t>(step);
  }
  std::string Words(const absl::Status& why) const {
    return absl::StrFormat("pipeloom run: rank %d ends: %s\n", world_->rank(),
                           std::string(why.message()));
  }

  runtime::RunOptions options_;
  std::unique_ptr<runtime::MpiWorld> world_;
  std::unique_ptr<runtime::ControlMesh> mesh_;
  std::unique_ptr<runtime::Transport> transport_{};
  std::unique_ptr<runtime::RankProcess> process_{};
  runtime::SharedPlan last_{};  // Used by the feed's thread only.
  uint64_t others_ = 0;         // Number of broadcasts and gathers.
};

MakeTransport MpiTransports(const runtime::RunOptions& options,
                            bool keep_time) {
  return [keep_time, scale = options.time_scale](const runtime::MpiWorld* world,
                                                 runtime::ControlMesh* mesh) {
    return std::make_unique<runtime::MpiTransport>(
        world, runtime::MpiTransport::Options{
                   .keep_time = keep_time,
                   .time_scale = scale,
                   .tell_others = [mesh](const absl::Status& why) {
                     mesh->Fail(why);
                   }});
  };
}

MakeTransport NcclTransports(std::unique_ptr<runtime::DeviceLinks> links) {
  const auto shared =
      std::make_shared<std::unique_ptr<runtime::DeviceLinks>>(std::move(links));
  return [shared](const runtime::MpiWorld* world, runtime::ControlMesh* mesh) {
    return std::make_unique<runtime::LinkTransport>(
        world->rank(), world->size(), std::move(*shared),
        runtime::LinkTransport::Notices{
            .send =
                [mesh](int32_t to, uint64_t topic, std::string bytes) {
                  mesh->Send(to, topic, std::move(bytes));
                },
            .receive = [mesh](int32_t from, uint64_t topic)
                -> absl::StatusOr<std::optional<std::string>> {
              absl::StatusOr<std::string> bytes =
                  mesh->Receive(from, topic, runtime::WallNow());
              if (bytes.ok()) return *std::move(bytes);
              if (absl::IsDeadlineExceeded(bytes.status()) &&
                  mesh->failure().ok()) {
                return std::nullopt;
              }
              return bytes.status();
            }});
  };
}

absl::StatusOr<const runtime::NcclModule*> LoadNccl() {
  PIPELOOM_ASSIGN_OR_RETURN(
      void* const entry,
      LoadModule("pipeloom_nccl.so", runtime::kNcclEntryPoint, "nccl transport",
                 "the CUDA toolkit and NCCL"));
  return reinterpret_cast<runtime::NcclEntryPoint>(entry)();
}

#endif

}  // namespace

std::unique_ptr<RunRanks> MakeThreadRanks(const runtime::RunOptions& options,
                                          runtime::DeviceFactory make_device) {
  return std::make_unique<ThreadRanks>(options, std::move(make_device));
}

#if PIPELOOM_WITH_MPI
absl::StatusOr<std::unique_ptr<RunRanks>> StartProcessRanks(
    ProcessTransport transport, const runtime::RunOptions& options,
    runtime::DeviceFactory make_device, bool keep_time) {
  PIPELOOM_RETURN_IF_ERROR(runtime::CheckRunOptions(options));
  const runtime::NcclModule* nccl = nullptr;
  int32_t devices = 0;
  if (transport == ProcessTransport::kNccl) {
    // Checked before MPI starts, as without a device the run cannot start.
    PIPELOOM_ASSIGN_OR_RETURN(nccl, LoadNccl());
    PIPELOOM_ASSIGN_OR_RETURN(devices, nccl->count_devices());
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      std::unique_ptr<runtime::MpiWorld> world,
      runtime::MpiWorld::Start(
          options.start_timeout, [](const absl::Status& late) {
            std::fputs(absl::StrFormat("pipeloom run: %s ends: %s\n",
                                       runtime::RankBeforeStart(),
                                       std::string(late.message()))
                           .c_str(),
                       stderr);
            EndProcess(1);
          }));
  MakeTransport make_transport = MpiTransports(options, keep_time);
  if (nccl != nullptr) {
    const char* share = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    PIPELOOM_ASSIGN_OR_RETURN(
        const int32_t device,
        runtime::DeviceOfRank(world->host_rank(), world->host_size(), devices,
                              share != nullptr && share[0] == '1'));
    PIPELOOM_ASSIGN_OR_RETURN(auto links, nccl->make_links(device));
    make_transport = NcclTransports(std::move(links));
  }
  PIPELOOM_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ControlMesh> mesh,
                            runtime::ControlMesh::Create(
                                {.rank = world->rank(),
                                 .size = world->size(),
                                 .single_host = world->single_host(),
                                 .failure_timeout = options.failure_timeout}));
  PIPELOOM_RETURN_IF_ERROR(mesh->Connect(world->AllGather(mesh->address()),
                                         runtime::WallNow() + kConnectTimeout));
  return std::make_unique<ProcessRanks>(options, std::move(make_device),
                                        make_transport, std::move(world),
                                        std::move(mesh));
}
#else
absl::StatusOr<std::unique_ptr<RunRanks>> StartProcessRanks(
    ProcessTransport, const runtime::RunOptions&, runtime::DeviceFactory,
    bool) {
  return absl::UnimplementedError(
      "this program was built without MPI, which starts processes: use "
      "--transport inproc");
}
#endif

absl::Status RunToEnd(RunRanks& ranks, const Context& context,
                      const std::function<absl::Status()>& work) {
  absl::Status status;
  try {
    status = work();
  } catch (const std::bad_alloc&) {
    const RankId rank = ranks.only_rank();
    status = absl::ResourceExhaustedError(absl::StrCat(
        rank.is_none() ? "" : absl::StrFormat("rank %d: ", rank.value()),
        "out of memory between steps (std::bad_alloc)"));
  }
  return ranks.End(status, context);
}

absl::StatusOr<std::unique_ptr<RunRanks>> StartRanks(
    const std::string& transport, const runtime::RunOptions& options,
    runtime::DeviceFactory make_device, bool keep_time) {
  if (transport == "inproc") {
    return MakeThreadRanks(options, std::move(make_device));
  }
  return StartProcessRanks(
      transport == "nccl" ? ProcessTransport::kNccl : ProcessTransport::kMpi,
      options, std::move(make_device), keep_time);
}

std::string RanksInWords(const std::string& transport) {
  return absl::StrCat(transport == "inproc" ? "threads" : "processes", ", ",
                      transport, " transport");
}

}  // namespace pipeloom::cli
