#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/torch/torch_device.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;

absl::Status Lost(EdgeId edge) {
  return absl::InternalError(
      absl::StrFormat("edge %d: its producer has left nothing", edge.value()));
}

}  // namespace

EdgeShape TorchDevice::ShapeOf(EdgeId edge) const {
  return ShapeOfEdge(model_, partition_, step_.work, graph_, edge);
}

bool TorchDevice::Carries(EdgeId e, Pass pass) const {
  const Dependency& d = graph_.edge(e);
  return graph_.task(d.from).pass == pass && graph_.task(d.to).pass == pass;
}

bool TorchDevice::IsFirstStage(const Task& task) const {
  return partition_.stages[task.stage].first_layer == LayerId(0);
}

bool TorchDevice::IsLastStage(const Task& task) const {
  const Stage& stage = partition_.stages[task.stage];
  return stage.first_layer.value() + stage.num_layers ==
         model_.modules[task.module].layers.size();
}

bool TorchDevice::HasModuleEdge(ModuleId from, ModuleId to,
                                bool as_context) const {
  return std::any_of(
      model_.edges.begin(), model_.edges.end(), [&](const ModuleEdge& e) {
        return e.from == from && e.to == to && e.as_context == as_context;
      });
}

absl::StatusOr<TorchState> TorchDevice::Piece(EdgeId edge) const {
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

absl::StatusOr<TorchState> TorchDevice::Incoming(EdgeId edge) const {
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

std::vector<TorchDevice::Place> TorchDevice::Places(TaskId forward,
                                                    bool as_context) const {
  const Task& task = graph_.task(forward);
  std::vector<EdgeId> edges;
  for (const EdgeId e : graph_.incoming(forward)) {
    if (!CarriesOutput(e)) continue;
    const Task& from = graph_.task(graph_.edge(e).from);
    if (HasModuleEdge(from.module, task.module, as_context)) edges.push_back(e);
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

absl::StatusOr<Tensor> TorchDevice::Gather(
    const std::vector<Place>& places) const {
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

absl::StatusOr<TorchState> TorchDevice::Inputs(TaskId id) const {
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

absl::StatusOr<TorchState> TorchDevice::OutputGradient(TaskId id) const {
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

void TorchDevice::Scatter(TaskId id, const TorchState& below) {
  const TaskId forward = step_.PairOf(id).forward;
  // Edges to the backwards of the modules that feed this one, indexed by the
  // consumer's task pair.
  std::map<size_t, EdgeId> down;
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
      const auto found = down.find(step_.pair_of[graph_.edge(place.edge).from]);
      if (found != down.end()) {
        fed_gradients_[found->second]
            .narrow(0, place.from_row, place.count)
            .add_(gradient.narrow(0, row, place.count));
      }
      row += place.count;
    }
  }
}

}  // namespace pipeloom::runtime
