#include "runtime/torch/torch_device.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "runtime/torch/rank_thread.h"

namespace pipeloom::runtime {

using at::Tensor;

TorchDevice::TorchDevice(TrainerState* trainer, const DeviceContext& context)
    : trainer_(*trainer),
      step_(*trainer->step),
      graph_(step_.plan.graph),
      model_(trainer->setup.model),
      partition_(trainer->setup.partition),
      context_(context),
      type_(TorchType(trainer->setup.options)),
      device_(TorchPlace(trainer->setup.options)) {
  PIPELOOM_CHECK(context.plan->graph.num_tasks() == graph_.num_tasks());
}

auto TorchDevice::Timed(double* spent) const {
  const auto now = trainer_.setup.options.cuda ? &WallSeconds : &ThreadSeconds;
  return absl::MakeCleanup(
      [spent, now, start = now()] { *spent += now() - start; });
}

absl::Status TorchDevice::Compute(TaskId id) {
  if (!started_) {
    at::set_num_threads(1);
    const std::vector<int>& cores = trainer_.cores;
    if (rank_index() < cores.size()) KeepToCore(cores[rank_index()]);
  }
  started_ = true;
  const auto timed = Timed(&step_.spent.tasks[static_cast<size_t>(id.value())]);
  return RunTask(id);
}

absl::Status TorchDevice::RunTask(TaskId id) {
  switch (graph_.task(id).pass) {
    case Pass::kForward:
      return RunForward(id);
    case Pass::kBackward:
      return RunBackward(id);
    case Pass::kWeightGrad:
      runs_.at(step_.PairOf(id).forward)->WeightGradient();
      runs_.erase(step_.PairOf(id).forward);
      return absl::OkStatus();
  }
  return absl::InternalError("no such pass");
}

absl::Span<const std::byte> TorchDevice::Output(EdgeId edge) {
  const auto timed = Timed(&step_.spent.between[rank_index()]);
  const absl::StatusOr<TorchState> piece = Piece(edge);
  if (!piece.ok()) return {};  // The transport reports the wrong size.
  std::vector<Tensor> parts;
  for (const Tensor& t : {piece->rows, piece->context}) {
    if (t.defined()) parts.push_back(t.reshape({-1}));
  }
  sent_.insert(edge);
  fed_gradients_.erase(edge);
  ReleaseResult(graph_.edge(edge).from);
  if (parts.empty()) return {};
  const Tensor all = parts.size() == 1 ? parts[0] : at::cat(parts);
  const Tensor bytes = all.to(at::kCPU).contiguous();
  sending_[edge] = bytes;
  return {static_cast<const std::byte*>(bytes.data_ptr()), bytes.nbytes()};
}

void TorchDevice::Sent(EdgeId edge) { sending_.erase(edge); }

absl::StatusOr<StageRun*> TorchDevice::RunToCopy(TaskId forward) {
  const auto found = runs_.find(forward);
  if (found == runs_.end()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s keeps nothing for a backward", DescribeTask(graph_, forward)));
  }
  if (!found->second->offloads()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s is to go to the host, but the memory policy keeps or recomputes "
        "all its layers",
        DescribeTask(graph_, forward)));
  }
  return found->second.get();
}

absl::StatusOr<CopyTimes> TorchDevice::Offload(TaskId task, Bytes) {
  const auto timed = Timed(&step_.spent.between[rank_index()]);
  PIPELOOM_ASSIGN_OR_RETURN(StageRun* const run, RunToCopy(task));
  const WallTime begin = WallNow();
  run->Offload();
  return CopyTimes{.begin = begin, .end = WallNow()};
}

absl::StatusOr<CopyTimes> TorchDevice::Fetch(TaskId task, Bytes) {
  const auto timed = Timed(&step_.spent.between[rank_index()]);
  PIPELOOM_ASSIGN_OR_RETURN(StageRun* const run, RunToCopy(task));
  const WallTime begin = WallNow();
  run->Fetch();
  return CopyTimes{.begin = begin, .end = WallNow()};
}

absl::Status TorchDevice::OptimizerStep() {
  const auto timed = Timed(&step_.spent.epilogue[rank_index()]);
  for (const StageId s : trainer_.stages.ids()) {
    if (partition_.stages[s].rank != context_.rank) continue;
    trainer_.optimizers[s].Step(trainer_.stages[s], trainer_.setup.options);
  }
  return absl::OkStatus();
}

absl::Status TorchDevice::RunForward(TaskId id) {
  const Task& task = graph_.task(id);
  const TaskPair& pair = step_.PairOf(id);
  StageRunOptions options{.stage = &trainer_.stages[task.stage],
                          .sequences = &step_.work.Of(task),
                          .loss_rows = step_.work.loss_rows[task.module],
                          .has_backward = !pair.backward.is_none(),
                          .splits_backward = !pair.weight_grad.is_none(),
                          .copies_apart = pair.copies_apart,
                          .device = device_};
  if (options.has_backward) {
    for (const EdgeId e : graph_.outgoing(pair.backward)) {
      options.needs_input_gradient |= CarriesGradient(e);
    }
    if (!step_.memory.empty()) {
      options.memory = step_.memory.of(pair.id);
    } else if (graph_.task(pair.backward).recomputes) {
      options.memory =
          RecomputeUniform(partition_.stages[task.stage].num_layers);
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(TorchState in, Inputs(id));
  auto run = std::make_unique<StageRun>(std::move(options));
  results_[id] = run->Forward(std::move(in));
  step_.losses[id] = run->loss();
  if (!pair.backward.is_none()) runs_[id] = std::move(run);
  Release(id);
  return absl::OkStatus();
}

absl::Status TorchDevice::RunBackward(TaskId id) {
  const Task& task = graph_.task(id);
  const TaskPair& pair = step_.PairOf(id);
  PIPELOOM_ASSIGN_OR_RETURN(TorchState gradient, OutputGradient(id));
  const at::NoGradGuard no_grad;
  const TorchState below =
      runs_.at(pair.forward)->Backward(std::move(gradient));
  if (pair.weight_grad.is_none()) runs_.erase(pair.forward);
  if (!IsFirstStage(task)) {
    results_[id] = below;
  } else {
    Scatter(id, below);
  }
  Release(id);
  return absl::OkStatus();
}

void TorchDevice::Release(TaskId id) {
  done_.insert(id);
  for (const EdgeId e : graph_.incoming(id)) {
    const TaskId from = graph_.edge(e).from;
    if (graph_.task(from).rank != context_.rank) continue;
    fed_gradients_.erase(e);
    ReleaseResult(from);
  }
}

void TorchDevice::ReleaseResult(TaskId from) {
  if (!results_.contains(from)) return;
  const auto out = graph_.outgoing(from);
  const bool read = std::all_of(out.begin(), out.end(), [&](EdgeId e) {
    if (!CarriesOutput(e) && !CarriesGradient(e)) return true;
    const TaskId to = graph_.edge(e).to;
    return graph_.task(to).rank == context_.rank ? done_.contains(to)
                                                 : sent_.contains(e);
  });
  if (read) results_.erase(from);
}

}  // namespace pipeloom::runtime
