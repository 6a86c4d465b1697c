#include "runtime/synthetic_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "runtime/buffer_table.h"

namespace pipeloom::runtime {

SyntheticDevice::SyntheticDevice(const DeviceContext& context)
    : context_(context) {
  if (context_.allocate) {
    output_.resize(static_cast<size_t>(kMaxResident.count()), std::byte{1});
  }
}

absl::Status SyntheticDevice::Compute(TaskId id) {
  const Task& task = context_.plan->graph.task(id);
  PIPELOOM_RETURN_IF_ERROR(context_.clock->WaitUntil(CopiesNeededBy(id)));
  const WallTime end = context_.clock->Progress() +
                       ToWall(task.duration, context_.clock->time_scale());
  PIPELOOM_RETURN_IF_ERROR(TakeActivations(task.alloc));
  PIPELOOM_RETURN_IF_ERROR(context_.clock->WaitUntil(end));
  return ReleaseActivations(task.free);
}

absl::Span<const std::byte> SyntheticDevice::Output(EdgeId edge) {
  const Bytes payload = context_.plan->graph.edge(edge).payload;
  return absl::MakeConstSpan(output_).first(
      static_cast<size_t>(ResidentBytes(payload, context_.allocate).count()));
}

absl::StatusOr<CopyTimes> SyntheticDevice::Offload(TaskId, Bytes payload) {
  const CopyTimes times = Copy(payload);
  PIPELOOM_RETURN_IF_ERROR(ReleaseActivations(payload));
  return times;
}

absl::StatusOr<CopyTimes> SyntheticDevice::Fetch(TaskId task, Bytes payload) {
  const CopyTimes times = Copy(payload);
  fetched_[task] = times.end;
  PIPELOOM_RETURN_IF_ERROR(TakeActivations(payload));
  return times;
}

CopyTimes SyntheticDevice::Copy(Bytes payload) {
  const Bandwidth bandwidth = context_.plan->links.host_bandwidth;
  if (bandwidth.bytes_per_second <= 0) return {};
  const WallTime begin = std::max(copies_until_, context_.clock->Progress());
  copies_until_ = begin + ToWall(TransferTime(payload, bandwidth),
                                 context_.clock->time_scale());
  return {.begin = begin, .end = copies_until_};
}

WallTime SyntheticDevice::CopiesNeededBy(TaskId task) const {
  WallTime until{};
  if (fetched_.empty()) return until;
  for (const EdgeId e : context_.plan->graph.incoming(task)) {
    const auto found = fetched_.find(context_.plan->graph.edge(e).from);
    if (found != fetched_.end()) until = std::max(until, found->second);
  }
  return until;
}

absl::Status SyntheticDevice::ReduceGradients() {
  return context_.clock->Spend(
      context_.plan->graph.rank(context_.rank).epilogue);
}

absl::Status SyntheticDevice::OptimizerStep() { return absl::OkStatus(); }

absl::Status SyntheticDevice::TakeActivations(Bytes bytes) {
  PIPELOOM_RETURN_IF_ERROR(
      context_.account->Take(MemoryItem::kActivations, bytes));
  const Bytes resident = ResidentBytes(bytes, context_.allocate);
  if (resident > Bytes(0)) {
    const auto size = static_cast<size_t>(resident.count());
    Block block{.accounted = bytes,
                .bytes = std::make_unique<std::byte[]>(size)};
    std::memset(block.bytes.get(), 1, size);
    blocks_.push_back(std::move(block));
    in_blocks_ += bytes;
  }
  return absl::OkStatus();
}

// A task may give back part of what another took, so blocks are let go, the
// newest first, as soon as the others cover what is still held.
absl::Status SyntheticDevice::ReleaseActivations(Bytes bytes) {
  PIPELOOM_RETURN_IF_ERROR(
      context_.account->Release(MemoryItem::kActivations, bytes));
  const Bytes held = context_.account->held(MemoryItem::kActivations);
  while (!blocks_.empty() && in_blocks_ - blocks_.back().accounted >= held) {
    in_blocks_ -= blocks_.back().accounted;
    blocks_.pop_back();
  }
  return absl::OkStatus();
}

std::unique_ptr<Device> MakeSyntheticDevice(const DeviceContext& context) {
  return std::make_unique<SyntheticDevice>(context);
}

StepTrace WithTimesSpent(const StageGraph& graph, StepTrace trace) {
  for (Span& span : trace.spans) {
    if (span.kind != SpanKind::kTask) continue;
    span.end = span.start + graph.task(span.task).duration;
  }
  return trace;
}

}  // namespace pipeloom::runtime
