#include "runtime/torch/torch_trainer.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/torch/layers.h"
#include "runtime/torch/made_again.h"
#include "runtime/torch/rank_thread.h"
#include "runtime/torch/torch_device.h"
#include "runtime/torch/trainer_state.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;

class Trainer final : public TorchTrainer {
 public:
  explicit Trainer(const TorchSetup& setup) {
    state_.setup = setup;
    std::vector<bool> feeds(static_cast<size_t>(setup.model.modules.size()));
    for (const ModuleEdge& edge : setup.model.edges) {
      feeds[static_cast<size_t>(edge.from.value())] = true;
    }
    for (const Stage& stage : setup.partition.stages) {
      TorchStage& layers = state_.stages[state_.stages.push_back({})];
      const bool mine =
          setup.only_rank.is_none() || setup.only_rank == stage.rank;
      const size_t m = static_cast<size_t>(stage.module.value());
      for (int32_t l = 0; l < stage.num_layers; ++l) {
        auto layer = std::make_unique<TorchLayer>(
            setup.model.modules[stage.module],
            LayerId(stage.first_layer.value() + l), feeds[m],
            setup.frozen[stage.module], setup.options);
        for (const Parameter& p : layer->parameters()) {
          num_parameters_ += p.value.numel();
        }
        if (mine) layers.push_back(std::move(layer));
      }
    }
    state_.optimizers.resize(state_.stages.size());
    UseAgainEngine();
  }

  absl::StatusOr<ExecutionPlan> BeginStep(const ExecutionPlan& plan,
                                          const TorchWork& work,
                                          const MemoryPolicy& memory) override {
    const TorchSetup& setup = state_.setup;
    auto step = std::make_unique<StepPlan>();
    PIPELOOM_ASSIGN_OR_RETURN(
        step->plan, ResizePlan(plan, setup.model, setup.partition, work,
                               BytesPerElement(setup.options.precision)));
    step->work = work;
    step->memory = memory;
    step->losses.resize(plan.graph.num_tasks());
    step->spent.tasks.resize(static_cast<size_t>(plan.graph.num_tasks()));
    const auto ranks = static_cast<size_t>(plan.graph.num_ranks());
    step->spent.between.resize(ranks);
    step->spent.epilogue.resize(ranks);
    if (setup.only_rank.is_none()) state_.cores = CoresFor(ranks);
    PIPELOOM_RETURN_IF_ERROR(FindPairs(step.get()));
    for (const TorchStage& stage : state_.stages) {
      for (const auto& layer : stage) {
        for (const Parameter& p : layer->parameters()) {
          p.value.mutable_grad() = Tensor();
        }
      }
    }
    state_.step = std::move(step);
    return state_.step->plan;
  }

  std::unique_ptr<Device> MakeDevice(const DeviceContext& context) override {
    return std::make_unique<TorchDevice>(&state_, context);
  }

  double Loss() const override {
    double sum = 0;
    for (const double loss : state_.step->losses) sum += loss;
    return sum;
  }
  TorchSpent Spent() const override { return state_.step->spent; }
  TorchValues Weights() const override {
    return Values([](const Tensor& t) { return t; });
  }
  TorchValues Gradients() const override {
    return Values([](const Tensor& t) {
      if (!t.requires_grad()) return Tensor();
      return t.grad().defined() ? t.grad() : at::zeros_like(t);
    });
  }
  int64_t NumParameters() const override { return num_parameters_; }

 private:
  template <typename Choose>
  TorchValues Values(const Choose& choose) const {
    const at::NoGradGuard no_grad;
    TorchValues values;
    for (const TorchStage& stage : state_.stages) {
      for (const auto& layer : stage) {
        for (const Parameter& p : layer->parameters()) {
          const Tensor chosen = choose(p.value);
          if (!chosen.defined()) continue;
          const Tensor t =
              chosen.detach().to(at::kCPU, at::kDouble).contiguous();
          const double* data = t.data_ptr<double>();
          values[p.name].assign(data, data + t.numel());
        }
      }
    }
    return values;
  }

  TrainerState state_{};
  int64_t num_parameters_ = 0;
};

}  // namespace

int64_t BytesPerElement(TorchPrecision precision) {
  switch (precision) {
    case TorchPrecision::kBf16:
      return 2;
    case TorchPrecision::kFp32:
      return 4;
    case TorchPrecision::kFp64:
      return 8;
  }
  return 4;
}

absl::StatusOr<std::unique_ptr<TorchTrainer>> MakeTorchTrainer(
    const TorchSetup& setup) {
  PIPELOOM_RETURN_IF_ERROR(CheckTorchModel(setup.model));
  PIPELOOM_RETURN_IF_ERROR(ValidatePartition(setup.partition, setup.model));
  if (setup.frozen.size() != setup.model.modules.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frozen has %d entries; the model has %d modules",
                        setup.frozen.size(), setup.model.modules.size()));
  }
  if (setup.options.cuda && !at::hasCUDA()) {
    return absl::FailedPreconditionError(
        "device cuda: libtorch finds no CUDA device; use cpu");
  }
  return std::make_unique<Trainer>(setup);
}

}  // namespace pipeloom::runtime
