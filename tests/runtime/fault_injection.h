// A transport and a device that fail, hang or dawdle at the n-th call of one
// rank, and otherwise pass everything on.
#ifndef PIPELOOM_TESTS_RUNTIME_FAULT_INJECTION_H_
#define PIPELOOM_TESTS_RUNTIME_FAULT_INJECTION_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/device.h"
#include "runtime/launch.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

// The last two are the device's only.
enum class Fault { kNone, kFail, kHang, kDelay, kThrow, kOutOfMemory };

struct FaultPlan {
  Fault fault = Fault::kNone;
  RankId rank{};
  int32_t at = 0;  // Which of the rank's calls, from 0.
};

class FaultyDevice final : public Device {
 public:
  FaultyDevice(const DeviceContext& context, std::unique_ptr<Device> inner,
               FaultPlan plan, std::atomic<int32_t>* optimizer_steps,
               std::function<void()> at_optimizer_step)
      : context_(context),
        inner_(std::move(inner)),
        plan_(plan),
        optimizer_steps_(optimizer_steps),
        at_optimizer_step_(std::move(at_optimizer_step)) {}

  absl::Status Compute(TaskId task) override {
    if (context_.rank == plan_.rank && calls_++ == plan_.at) {
      switch (plan_.fault) {
        case Fault::kNone:
          break;
        case Fault::kFail:
          return absl::InternalError("the device fell off the bus");
        case Fault::kHang:  // Until the run is stopped.
          return context_.clock->WaitUntil(WallNow() + std::chrono::hours(1));
        case Fault::kDelay:
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          break;
        case Fault::kThrow:
          throw std::runtime_error("the device is on fire");
        case Fault::kOutOfMemory:
          throw std::bad_alloc();
      }
    }
    return inner_->Compute(task);
  }
  absl::Span<const std::byte> Output(EdgeId edge) override {
    return inner_->Output(edge);
  }
  void Sent(EdgeId edge) override { inner_->Sent(edge); }
  absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) override {
    return inner_->Offload(task, payload);
  }
  absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) override {
    return inner_->Fetch(task, payload);
  }
  absl::Status ReduceGradients() override { return inner_->ReduceGradients(); }
  absl::Status OptimizerStep() override {
    if (at_optimizer_step_) at_optimizer_step_();
    const absl::Status status = inner_->OptimizerStep();
    if (status.ok()) ++*optimizer_steps_;
    return status;
  }

 private:
  DeviceContext context_;
  std::unique_ptr<Device> inner_;
  FaultPlan plan_;
  std::atomic<int32_t>* optimizer_steps_;
  std::function<void()> at_optimizer_step_;
  int32_t calls_ = 0;
};

// Counts the posts of a rank. A hanging post is never passed on, so that both
// sides wait for ever.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, FaultPlan plan)
      : inner_(std::move(inner)), plan_(plan) {}

  absl::Status PostSend(const Message& m, WallTime at,
                        absl::Span<const std::byte> data) override {
    bool drop = false;
    const absl::Status status = Hit(m.from, &drop);
    if (!status.ok() || drop) return status;
    return inner_->PostSend(m, at, data);
  }
  absl::Status PostRecv(const Message& m, WallTime at,
                        absl::Span<std::byte> into) override {
    bool drop = false;
    const absl::Status status = Hit(m.to, &drop);
    if (!status.ok() || drop) return status;
    return inner_->PostRecv(m, at, into);
  }
  absl::StatusOr<TransferTimes> WaitSend(const Message& m,
                                         WallTime deadline) override {
    return inner_->WaitSend(m, deadline);
  }
  absl::StatusOr<TransferTimes> WaitRecv(const Message& m,
                                         WallTime deadline) override {
    return inner_->WaitRecv(m, deadline);
  }
  void Abort(absl::Status reason) override { inner_->Abort(std::move(reason)); }

 private:
  absl::Status Hit(RankId rank, bool* drop) {
    // Only the faulty rank's thread gets past the first test.
    if (rank != plan_.rank || posts_++ != plan_.at) return absl::OkStatus();
    switch (plan_.fault) {
      case Fault::kNone:
        break;
      case Fault::kFail:
        return absl::UnavailableError("connection reset by peer");
      case Fault::kHang:
        *drop = true;
        break;
      case Fault::kDelay:
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        break;
      case Fault::kThrow:
      case Fault::kOutOfMemory:
        break;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Transport> inner_;
  FaultPlan plan_;
  int32_t posts_ = 0;
};

// Synthetic parts with the faults put in; `optimizer_steps` counts those of
// all ranks.
inline RunParts FaultyParts(FaultPlan device, FaultPlan transport,
                            std::atomic<int32_t>* optimizer_steps,
                            std::function<void()> at_optimizer_step = {}) {
  const RunParts inner = SyntheticParts();
  return {
      .make_transport =
          [=](const ExecutionPlan& plan, const RunOptions& options) {
            return std::make_unique<FaultyTransport>(
                inner.make_transport(plan, options), transport);
          },
      .make_device =
          [=](const DeviceContext& context) {
            return std::make_unique<FaultyDevice>(
                context, inner.make_device(context), device, optimizer_steps,
                at_optimizer_step);
          },
  };
}

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_RUNTIME_FAULT_INJECTION_H_
