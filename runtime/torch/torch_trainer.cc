#include "runtime/torch/torch_trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "runtime/torch/layers.h"
#include "runtime/torch/stage_run.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;

// AdamW's state of one parameter.
struct Moments {
  Tensor first{};
  Tensor second{};
};

// The tasks of one stage on one sub-microbatch.
struct Pair {
  StagePairId id{};
  TaskId forward{};
  TaskId backward{};
  TaskId weight_grad{};
};

// What all ranks of a step read.
struct StepPlan {
  ExecutionPlan plan{};  // Resized.
  TorchWork work{};
  MemoryPolicy memory{};
  std::vector<Pair> pairs{};
  IdVector<TaskId, size_t> pair_of{};
  IdVector<TaskId, double> losses{};  // Of forwards; each rank its own.
};

absl::Status FindPairs(StepPlan* step) {
  const StageGraph& graph = step->plan.graph;
  std::map<std::tuple<StageId, MicrobatchId, int32_t>, size_t> index;
  step->pair_of.resize(graph.num_tasks());
  for (const TaskId id : graph.task_ids()) {
    const Task& task = graph.task(id);
    const auto [at, added] = index.emplace(
        std::tuple(task.stage, task.microbatch, task.sub_microbatch),
        step->pairs.size());
    if (added) step->pairs.push_back({});
    Pair& pair = step->pairs[at->second];
    step->pair_of[id] = at->second;
    TaskId& place = task.pass == Pass::kForward    ? pair.forward
                    : task.pass == Pass::kBackward ? pair.backward
                                                   : pair.weight_grad;
    if (!place.is_none() ||
        (task.pass != Pass::kForward && pair.forward.is_none())) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s is there twice, or before its forward", DescribeTask(graph, id)));
    }
    place = id;
    if (added) {
      pair.id = StagePairId(static_cast<int32_t>(step->pairs.size()) - 1);
    }
  }
  if (!step->memory.empty() && step->memory.choice_of.size() !=
                                   static_cast<int32_t>(step->pairs.size())) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the memory policy has %d stage pairs; the plan has %d",
                        step->memory.choice_of.size(), step->pairs.size()));
  }
  return absl::OkStatus();
}

class Trainer final : public TorchTrainer {
 public:
  explicit Trainer(const TorchSetup& setup) : setup_(setup) {
    feeds_.assign(static_cast<size_t>(setup.model.modules.size()), false);
    for (const ModuleEdge& edge : setup.model.edges) {
      feeds_[static_cast<size_t>(edge.from.value())] = true;
    }
    for (const Stage& stage : setup.partition.stages) {
      TorchStage& layers = stages_[stages_.push_back({})];
      const size_t m = static_cast<size_t>(stage.module.value());
      for (int32_t l = 0; l < stage.num_layers; ++l) {
        layers.push_back(std::make_unique<TorchLayer>(
            setup.model.modules[stage.module],
            LayerId(stage.first_layer.value() + l), feeds_[m],
            setup.frozen[stage.module], setup.options));
      }
    }
    moments_.resize(stages_.size());
  }

  absl::StatusOr<ExecutionPlan> BeginStep(const ExecutionPlan& plan,
                                          const TorchWork& work,
                                          const MemoryPolicy& memory) override {
    auto step = std::make_unique<StepPlan>();
    PIPELOOM_ASSIGN_OR_RETURN(
        step->plan, ResizePlan(plan, setup_.model, setup_.partition, work,
                               setup_.options.bf16 ? 2 : 4));
    step->work = work;
    step->memory = memory;
    step->losses.resize(plan.graph.num_tasks());
    PIPELOOM_RETURN_IF_ERROR(FindPairs(step.get()));
    for (const TorchStage& stage : stages_) {
      for (const auto& layer : stage) {
        for (const Parameter& p : layer->parameters()) {
          p.value.mutable_grad() = Tensor();
        }
      }
    }
    step_ = std::move(step);
    return step_->plan;
  }

  std::unique_ptr<Device> MakeDevice(const DeviceContext& context) override;

  double Loss() const override {
    double sum = 0;
    for (const double loss : step_->losses) sum += loss;
    return sum;
  }
  TorchValues Weights() const override {
    return Values([](const Tensor& t) { return t; });
  }
  TorchValues Gradients() const override {
    return Values([](const Tensor& t) {
      if (!t.requires_grad()) return Tensor();
      return t.grad().defined() ? t.grad() : at::zeros_like(t);
    });
  }
  int64_t NumParameters() const override {
    int64_t sum = 0;
    for (const TorchStage& stage : stages_) {
      for (const auto& layer : stage) {
        for (const Parameter& p : layer->parameters()) sum += p.value.numel();
      }
    }
    return sum;
  }

  const TorchSetup& setup() const { return setup_; }
  StepPlan& step() { return *step_; }
  const TorchStage& stage(StageId id) const { return stages_[id]; }

  // Rank's stages, one AdamW step. Rows that had no gradient get one of zero.
  void StepOptimizer(RankId rank) {
    const at::NoGradGuard no_grad;
    const TorchOptions& o = setup_.options;
    for (const StageId s : stages_.ids()) {
      if (setup_.partition.stages[s].rank != rank) continue;
      StageMoments& moments = moments_[s];
      ++moments.steps;
      const double correct1 =
          1 - std::pow(o.beta1, static_cast<double>(moments.steps));
      const double correct2 =
          1 - std::pow(o.beta2, static_cast<double>(moments.steps));
      size_t k = 0;
      for (const auto& layer : stages_[s]) {
        for (const Parameter& p : layer->parameters()) {
          if (!p.value.requires_grad()) continue;
          if (k == moments.of.size()) {
            moments.of.push_back(
                {at::zeros_like(p.value), at::zeros_like(p.value)});
          }
          Moments& m = moments.of[k++];
          Tensor weight = p.value;
          const Tensor g =
              weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
          weight.mul_(1 - o.learning_rate * o.weight_decay);
          m.first.mul_(o.beta1).add_(g, 1 - o.beta1);
          m.second.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
          const Tensor scale =
              (m.second.sqrt() / std::sqrt(correct2)).add_(o.epsilon);
          weight.addcdiv_(m.first, scale, -o.learning_rate / correct1);
        }
      }
    }
  }

 private:
  struct StageMoments {
    int64_t steps = 0;
    std::vector<Moments> of{};  // By trained parameter, in order.
  };

  template <typename Choose>
  TorchValues Values(const Choose& choose) const {
    const at::NoGradGuard no_grad;
    TorchValues values;
    for (const TorchStage& stage : stages_) {
      for (const auto& layer : stage) {
        for (const Parameter& p : layer->parameters()) {
          const Tensor chosen = choose(p.value);
          if (!chosen.defined()) continue;
          const Tensor t =
              chosen.detach().to(at::kCPU, at::kFloat).contiguous();
          const float* data = t.data_ptr<float>();
          values[p.name].assign(data, data + t.numel());
        }
      }
    }
    return values;
  }

  TorchSetup setup_;
  std::vector<bool> feeds_{};
  IdVector<StageId, TorchStage> stages_{};
  IdVector<StageId, StageMoments> moments_{};
  std::unique_ptr<StepPlan> step_{};
};

// One rank of one step.
class TorchDevice final : public Device {
 public:
  TorchDevice(Trainer* trainer, const DeviceContext& context)
      : trainer_(*trainer),
        step_(trainer->step()),
        graph_(step_.plan.graph),
        model_(trainer->setup().model),
        partition_(trainer->setup().partition),
        context_(context),
        type_(trainer->setup().options.bf16 ? at::kBFloat16 : at::kFloat),
        device_(trainer->setup().options.cuda ? at::kCUDA : at::kCPU) {
    PIPELOOM_CHECK(context.plan->graph.num_tasks() == graph_.num_tasks());
  }

  absl::Status Compute(TaskId id) override {
    if (!started_) at::set_num_threads(1);
    started_ = true;
    switch (graph_.task(id).pass) {
      case Pass::kForward:
        return RunForward(id);
      case Pass::kBackward:
        return RunBackward(id);
      case Pass::kWeightGrad:
        runs_.at(PairOf(id).forward)->WeightGradient();
        runs_.erase(PairOf(id).forward);
        return absl::OkStatus();
    }
    return absl::InternalError("no such pass");
  }

  // The bytes stay until the step's end: that is when sends are waited for.
  absl::Span<const std::byte> Output(EdgeId edge) override {
    const absl::StatusOr<TorchState> piece = Piece(edge);
    if (!piece.ok()) return {};  // The transport tells of the size.
    std::vector<Tensor> parts;
    for (const Tensor& t : {piece->rows, piece->context}) {
      if (t.defined()) parts.push_back(t.reshape({-1}));
    }
    if (parts.empty()) return {};
    const Tensor bytes = at::cat(parts).to(at::kCPU).contiguous();
    sent_.push_back(bytes);
    return {static_cast<const std::byte*>(bytes.data_ptr()), bytes.nbytes()};
  }

  absl::Status Offload(TaskId, Bytes) override { return Apart("offload"); }
  absl::Status Fetch(TaskId, Bytes) override { return Apart("fetch"); }
  absl::Status ReduceGradients() override { return absl::OkStatus(); }
  absl::Status OptimizerStep() override {
    trainer_.StepOptimizer(context_.rank);
    return absl::OkStatus();
  }

 private:
  static absl::Status Apart(const char* what) {
    return absl::UnimplementedError(absl::StrFormat(
        "the torch device offloads by the memory policy, within its forwards "
        "and backwards; it has no %s instruction of its own",
        what));
  }
  const Pair& PairOf(TaskId id) const { return step_.pairs[step_.pair_of[id]]; }
  EdgeShape ShapeOf(EdgeId edge) const {
    return ShapeOfEdge(model_, partition_, step_.work, graph_, edge);
  }
  // Whether the edge is a gradient from backward to backward.
  bool CarriesGradient(EdgeId e) const {
    const Dependency& d = graph_.edge(e);
    return graph_.task(d.from).pass == Pass::kBackward &&
           graph_.task(d.to).pass == Pass::kBackward;
  }
  bool CarriesOutput(EdgeId e) const {
    const Dependency& d = graph_.edge(e);
    return graph_.task(d.from).pass == Pass::kForward &&
           graph_.task(d.to).pass == Pass::kForward;
  }

  // What the edge's producer, on this rank, hands to its consumer.
  absl::StatusOr<TorchState> Piece(EdgeId edge) const {
    const Dependency& d = graph_.edge(edge);
    const Task& from = graph_.task(d.from);
    const Task& to = graph_.task(d.to);
    if (!CarriesOutput(edge) && !CarriesGradient(edge)) return TorchState{};
    if (from.pass == Pass::kBackward && from.module != to.module) {
      const auto found = fed_gradients_.find(edge);
      if (found == fed_gradients_.end()) return Lost(edge);
      return TorchState{.rows = found->second};
    }
    const auto found = results_.find(d.from);
    if (found == results_.end()) return Lost(edge);
    const TorchState& result = found->second;
    if (from.module == to.module) {
      const EdgeShape shape = ShapeOf(edge);
      return TorchState{
          .rows = result.rows,
          .context = shape.context_width > 0 ? result.context : Tensor()};
    }
    std::vector<Tensor> parts;
    for (const RowRange& r : RowsFor(step_.work.Of(from), step_.work.Of(to))) {
      parts.push_back(result.rows.narrow(0, r.first, r.count));
    }
    if (parts.empty()) return TorchState{};
    return TorchState{.rows = at::cat(parts)};
  }
  absl::Status Lost(EdgeId edge) const {
    return absl::InternalError(absl::StrFormat(
        "edge %d: its producer has left nothing", edge.value()));
  }

  // What came along the edge, from this rank or another.
  absl::StatusOr<TorchState> Incoming(EdgeId edge) const {
    const Dependency& d = graph_.edge(edge);
    if (graph_.task(d.from).rank == context_.rank) return Piece(edge);
    const EdgeShape shape = ShapeOf(edge);
    if (shape.elements() == 0) return TorchState{};
    PIPELOOM_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                              context_.buffers->Find(edge));
    const Tensor all = at::empty({shape.elements()}, at::dtype(type_));
    if (bytes.size() != all.nbytes()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "edge %d: %d bytes were received; its tensor has %d (run the plan "
          "that BeginStep gave, with whole_tensors)",
          edge.value(), bytes.size(), all.nbytes()));
    }
    std::memcpy(all.data_ptr(), bytes.data(), bytes.size());
    const Tensor here = all.to(device_);
    TorchState state;
    const int64_t rows = shape.rows * shape.width;
    if (rows > 0) {
      state.rows = here.narrow(0, 0, rows).view({shape.rows, shape.width});
    }
    if (shape.context_rows > 0 && shape.context_width > 0) {
      state.context = here.narrow(0, rows, here.numel() - rows)
                          .view({shape.context_rows, shape.context_width});
    }
    return state;
  }

  bool IsFirstStage(const Task& task) const {
    return partition_.stages[task.stage].first_layer == LayerId(0);
  }
  bool IsLastStage(const Task& task) const {
    const Stage& stage = partition_.stages[task.stage];
    return stage.first_layer.value() + stage.num_layers ==
           model_.modules[task.module].layers.size();
  }
  bool IsContext(ModuleId from, ModuleId to) const {
    return HasEdge(from, to, true);
  }
  bool HasEdge(ModuleId from, ModuleId to, bool as_context) const {
    return std::any_of(
        model_.edges.begin(), model_.edges.end(), [&](const ModuleEdge& e) {
          return e.from == from && e.to == to && e.as_context == as_context;
        });
  }

  // Where in a first stage's input the rows of an edge go: `edge_rows[k]` rows
  // of edge `edge` from `from_row` on.
  struct Place {
    EdgeId edge{};
    int64_t from_row = 0;
    int64_t count = 0;
  };
  // In the order of the input's rows: by sequence, feeding module, instance.
  std::vector<Place> Places(TaskId forward, bool as_context) const {
    const Task& task = graph_.task(forward);
    std::vector<EdgeId> edges;
    for (const EdgeId e : graph_.incoming(forward)) {
      if (!CarriesOutput(e)) continue;
      const Task& from = graph_.task(graph_.edge(e).from);
      if (HasEdge(from.module, task.module, as_context)) edges.push_back(e);
    }
    std::sort(edges.begin(), edges.end(), [&](EdgeId a, EdgeId b) {
      const Task& x = graph_.task(graph_.edge(a).from);
      const Task& y = graph_.task(graph_.edge(b).from);
      return std::tuple(x.module, x.sub_microbatch) <
             std::tuple(y.module, y.sub_microbatch);
    });
    const TorchSequences& mine = step_.work.Of(task);
    std::vector<Place> places;
    for (const TorchSequence& s : mine) {
      for (const EdgeId e : edges) {
        const TorchSequences& theirs =
            step_.work.Of(graph_.task(graph_.edge(e).from));
        int64_t row = 0;
        for (const RowRange& r : RowsFor(theirs, mine)) {
          if (theirs[static_cast<size_t>(r.sequence)].owner == s.owner) {
            places.push_back({e, row, r.count});
          }
          row += r.count;
        }
      }
    }
    return places;
  }

  absl::StatusOr<Tensor> Gather(const std::vector<Place>& places) const {
    std::map<EdgeId, Tensor> pieces;
    std::vector<Tensor> parts;
    for (const Place& place : places) {
      Tensor& piece = pieces[place.edge];
      if (!piece.defined()) {
        PIPELOOM_ASSIGN_OR_RETURN(const TorchState came, Incoming(place.edge));
        piece = came.rows;
      }
      parts.push_back(piece.narrow(0, place.from_row, place.count));
    }
    return parts.empty() ? Tensor() : at::cat(parts);
  }

  absl::StatusOr<TorchState> Inputs(TaskId id) const {
    const Task& task = graph_.task(id);
    if (!IsFirstStage(task)) {
      for (const EdgeId e : graph_.incoming(id)) {
        if (CarriesOutput(e)) return Incoming(e);
      }
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: no edge from the stage before", DescribeTask(graph_, id)));
    }
    TorchState state;
    PIPELOOM_ASSIGN_OR_RETURN(state.rows, Gather(Places(id, false)));
    PIPELOOM_ASSIGN_OR_RETURN(state.context, Gather(Places(id, true)));
    return state;
  }

  absl::Status RunForward(TaskId id) {
    const Task& task = graph_.task(id);
    const Pair& pair = PairOf(id);
    StageRunOptions options{.stage = &trainer_.stage(task.stage),
                            .sequences = &step_.work.Of(task),
                            .loss_rows = step_.work.loss_rows[task.module],
                            .has_backward = !pair.backward.is_none(),
                            .splits_backward = !pair.weight_grad.is_none()};
    if (options.has_backward) {
      for (const EdgeId e : graph_.outgoing(pair.backward)) {
        options.needs_input_gradient |= CarriesGradient(e);
      }
      if (!step_.memory.empty()) {
        options.memory = step_.memory.of(pair.id);
      } else if (graph_.task(pair.backward).recomputes) {
        options.memory =
            RecomputeWhole(partition_.stages[task.stage].num_layers);
      }
    }
    PIPELOOM_ASSIGN_OR_RETURN(const TorchState in, Inputs(id));
    auto run = std::make_unique<StageRun>(std::move(options));
    results_[id] = run->Forward(in);
    step_.losses[id] = run->loss();
    if (!pair.backward.is_none()) runs_[id] = std::move(run);
    Release(id);
    return absl::OkStatus();
  }

  // The gradient of the stage's output.
  absl::StatusOr<TorchState> OutputGradient(TaskId id) const {
    const Task& task = graph_.task(id);
    const TorchSequences& mine = step_.work.Of(task);
    const ModuleSpec& module = model_.modules[task.module];
    const Stage& stage = partition_.stages[task.stage];
    if (!IsLastStage(task)) {
      for (const EdgeId e : graph_.incoming(id)) {
        if (CarriesGradient(e)) return Incoming(e);
      }
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: no edge from the stage behind", DescribeTask(graph_, id)));
    }
    const LayerId last(stage.first_layer.value() + stage.num_layers - 1);
    TorchState gradient{
        .rows =
            at::zeros({RowsAfter(module, last, mine), WidthAfter(module, last)},
                      at::TensorOptions().dtype(type_).device(device_))};
    for (const EdgeId e : graph_.incoming(id)) {
      if (!CarriesGradient(e)) continue;
      PIPELOOM_ASSIGN_OR_RETURN(const TorchState came, Incoming(e));
      if (!came.rows.defined()) continue;
      int64_t row = 0;
      for (const RowRange& r :
           RowsFor(mine, step_.work.Of(graph_.task(graph_.edge(e).from)))) {
        gradient.rows.narrow(0, r.first, r.count)
            .add_(came.rows.narrow(0, row, r.count));
        row += r.count;
      }
    }
    return gradient;
  }

  absl::Status RunBackward(TaskId id) {
    const Task& task = graph_.task(id);
    const Pair& pair = PairOf(id);
    PIPELOOM_ASSIGN_OR_RETURN(TorchState gradient, OutputGradient(id));
    const at::NoGradGuard no_grad;
    const TorchState below =
        runs_.at(pair.forward)->Backward(std::move(gradient));
    if (pair.weight_grad.is_none()) runs_.erase(pair.forward);
    if (!IsFirstStage(task)) {
      results_[id] = below;
    } else {
      PIPELOOM_RETURN_IF_ERROR(Scatter(id, below));
    }
    Release(id);
    return absl::OkStatus();
  }

  // From a first stage's input gradient to a tensor for each edge down.
  absl::Status Scatter(TaskId id, const TorchState& below) {
    const TaskId forward = PairOf(id).forward;
    // The gradient's edge to the backward of a forward's producer.
    std::map<size_t, EdgeId> down;  // By the producer's pair.
    for (const EdgeId e : graph_.outgoing(id)) {
      if (!CarriesGradient(e)) continue;
      down[step_.pair_of[graph_.edge(e).to]] = e;
      const EdgeShape shape = ShapeOf(e);
      fed_gradients_[e] =
          at::zeros({shape.rows, shape.width},
                    at::TensorOptions().dtype(type_).device(device_));
    }
    for (const bool as_context : {false, true}) {
      const Tensor& gradient = as_context ? below.context : below.rows;
      if (!gradient.defined()) continue;
      int64_t row = 0;
      for (const Place& place : Places(forward, as_context)) {
        const auto found =
            down.find(step_.pair_of[graph_.edge(place.edge).from]);
        if (found != down.end()) {
          fed_gradients_[found->second]
              .narrow(0, place.from_row, place.count)
              .add_(gradient.narrow(0, row, place.count));
        }
        row += place.count;
      }
    }
    return absl::OkStatus();
  }

  // Lets go of results that nobody on this rank will read any more: those of
  // which `id` was the last reader here. Sends have copies of their own, but
  // are made from the result, so what goes to another rank stays.
  void Release(TaskId id) {
    for (const EdgeId e : graph_.incoming(id)) {
      const TaskId from = graph_.edge(e).from;
      if (graph_.task(from).rank != context_.rank) continue;
      fed_gradients_.erase(e);
      if (!results_.contains(from)) continue;
      const auto out = graph_.outgoing(from);
      const bool local = std::all_of(out.begin(), out.end(), [&](EdgeId o) {
        const TaskId to = graph_.edge(o).to;
        return graph_.task(to).rank == context_.rank &&
               (done_.contains(to) || to == id ||
                (!CarriesOutput(o) && !CarriesGradient(o)));
      });
      if (local) results_.erase(from);
    }
    done_.insert(id);
  }

  Trainer& trainer_;
  StepPlan& step_;
  const StageGraph& graph_;
  const ModelSpec& model_;
  const Partition& partition_;
  DeviceContext context_;
  at::ScalarType type_;
  at::Device device_;
  bool started_ = false;
  std::map<TaskId, std::unique_ptr<StageRun>> runs_{};  // By forward.
  // Of forwards their output, of backwards the gradient of their input.
  absl::flat_hash_map<TaskId, TorchState> results_{};
  absl::flat_hash_map<EdgeId, Tensor> fed_gradients_{};
  absl::flat_hash_set<TaskId> done_{};
  std::vector<Tensor> sent_{};
};

std::unique_ptr<Device> Trainer::MakeDevice(const DeviceContext& context) {
  return std::make_unique<TorchDevice>(this, context);
}

}  // namespace

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
