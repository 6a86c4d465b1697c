#include "cli/run_ranks.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/plan_file.h"
#include "proto/convert/serialize_plan.h"
#if PIPELOOM_WITH_MPI
#include "runtime/mpi/mpi_transport.h"
#include "runtime/mpi/mpi_world.h"
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
  absl::Status End(const absl::Status& status, const Context&) override {
    return status;
  }

 private:
  runtime::RunOptions options_;
  runtime::RunParts parts_;
};

#if PIPELOOM_WITH_MPI

constexpr auto kConnectTimeout = std::chrono::seconds(30);
// Plans have topics of their own.
constexpr uint64_t kPlanTopic = uint64_t{1} << 63;

void EndProcess(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);
}

class MpiRanks final : public RunRanks {
 public:
  MpiRanks(const runtime::RunOptions& options,
           runtime::DeviceFactory make_device, bool keep_time,
           std::unique_ptr<runtime::MpiWorld> world,
           std::unique_ptr<runtime::ControlMesh> mesh)
      : options_(options), world_(std::move(world)), mesh_(std::move(mesh)) {
    transport_ = std::make_unique<runtime::MpiTransport>(
        world_.get(), runtime::MpiTransport::Options{
                          .keep_time = keep_time,
                          .time_scale = options.time_scale,
                          .tell_others = [this](const absl::Status& why) {
                            mesh_->Fail(why);
                          }});
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
        // A plan that runs again is not sent again.
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
      // Rank 0 plans for as long as it likes; its death is noticed.
      PIPELOOM_ASSIGN_OR_RETURN(
          const std::string bytes,
          mesh_->Receive(0, Topic(i),
                         runtime::WallNow() + std::chrono::hours(24 * 365)));
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
    // Waits for the others to have said so too. MPI cannot be ended in order
    // without all ranks.
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
  std::unique_ptr<runtime::MpiTransport> transport_{};
  std::unique_ptr<runtime::RankProcess> process_{};
  runtime::SharedPlan last_{};  // By the feed's thread only.
};

#endif

}  // namespace

std::unique_ptr<RunRanks> MakeThreadRanks(const runtime::RunOptions& options,
                                          runtime::DeviceFactory make_device) {
  return std::make_unique<ThreadRanks>(options, std::move(make_device));
}

#if PIPELOOM_WITH_MPI
absl::StatusOr<std::unique_ptr<RunRanks>> StartMpiRanks(
    const runtime::RunOptions& options, runtime::DeviceFactory make_device,
    bool keep_time) {
  PIPELOOM_RETURN_IF_ERROR(runtime::CheckRunOptions(options));
  PIPELOOM_ASSIGN_OR_RETURN(std::unique_ptr<runtime::MpiWorld> world,
                            runtime::MpiWorld::Start());
  PIPELOOM_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ControlMesh> mesh,
                            runtime::ControlMesh::Create(
                                {.rank = world->rank(),
                                 .size = world->size(),
                                 .single_host = world->single_host(),
                                 .failure_timeout = options.failure_timeout}));
  PIPELOOM_RETURN_IF_ERROR(mesh->Connect(world->AllGather(mesh->address()),
                                         runtime::WallNow() + kConnectTimeout));
  return std::make_unique<MpiRanks>(options, std::move(make_device), keep_time,
                                    std::move(world), std::move(mesh));
}
#endif

}  // namespace pipeloom::cli
