#include "runtime/interpreter.h"

#include <exception>
#include <new>
#include <string>
#include <variant>

#include "base/overloaded.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {

Interpreter::Interpreter(const InterpreterContext& context)
    : context_(context), graph_(context.plan->graph) {}

absl::Status Interpreter::Run() {
  try {
    return RunInstructions();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory (std::bad_alloc)");
  } catch (const std::exception& e) {
    return absl::InternalError(std::string("it threw: ") + e.what());
  } catch (...) {
    return absl::InternalError("it threw what is no std::exception");
  }
}

absl::Status Interpreter::RunInstructions() {
  const std::vector<Instruction>& program =
      context_.plan->programs[context_.rank];
  for (size_t k = 0; k < program.size(); ++k) {
    context_.progress->position.store(k, std::memory_order_relaxed);
    PIPELOOM_RETURN_IF_ERROR(
        std::visit(Overloaded{
                       [this](const Compute& i) { return Execute(i); },
                       [this](const Send& i) { return Execute(i); },
                       [this](const Recv& i) { return Execute(i); },
                       [this](const WaitRecv& i) { return Execute(i); },
                       [this](const WaitSend& i) { return Execute(i); },
                       [this](const Free& i) { return Execute(i); },
                       [this](const Offload& i) { return Execute(i); },
                       [this](const Fetch& i) { return Execute(i); },
                       [this](const ReduceGradients& i) { return Execute(i); },
                       [this](const OptimizerStep& i) { return Execute(i); },
                   },
                   program[k]));
  }
  if (!arrived_) context_.commit->Arrive();
  context_.progress->position.store(program.size(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Interpreter::Execute(const Compute& i) {
  PIPELOOM_RETURN_IF_ERROR(AwaitLocalInputs(i.task));
  const BoundaryBytes boundary = BoundaryOf(graph_, i.task);
  PIPELOOM_RETURN_IF_ERROR(
      context_.account->Release(MemoryItem::kSent, boundary.taken));
  PIPELOOM_RETURN_IF_ERROR(
      context_.account->Take(MemoryItem::kSent, boundary.made));
  const SimTime start = context_.clock->Now();
  PIPELOOM_RETURN_IF_ERROR(context_.device->Compute(i.task));
  AddSpan(Stream::kCompute, SpanKind::kTask, i.task, EdgeId(), start);
  for (const EdgeId e : graph_.outgoing(i.task)) {
    if (graph_.edge(e).delay > kZero &&
        graph_.task(graph_.edge(e).to).rank == context_.rank) {
      delayed_[i.task] = context_.clock->Progress();
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status Interpreter::AwaitLocalInputs(TaskId task) {
  if (delayed_.empty()) return absl::OkStatus();
  for (const EdgeId e : graph_.incoming(task)) {
    const Dependency& d = graph_.edge(e);
    if (d.delay == kZero || graph_.task(d.from).rank != context_.rank) {
      continue;
    }
    const WallTime until =
        delayed_.at(d.from) + ToWall(d.delay, context_.clock->time_scale());
    PIPELOOM_RETURN_IF_ERROR(
        AwaitTransfer(e, until, context_.clock->Progress()));
  }
  return absl::OkStatus();
}

absl::Status Interpreter::Execute(const Send& i) {
  return context_.transport->PostSend(MessageOf(i.edge),
                                      context_.clock->Progress(),
                                      context_.device->Output(i.edge));
}

absl::Status Interpreter::Execute(const Recv& i) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const absl::Span<std::byte> buffer,
      context_.buffers->Take(i.edge, graph_.edge(i.edge).payload));
  return context_.transport->PostRecv(MessageOf(i.edge),
                                      context_.clock->Progress(), buffer);
}

absl::Status Interpreter::Execute(const WaitRecv& i) {
  const Message message = MessageOf(i.edge);
  const WallTime since = context_.clock->Progress();
  PIPELOOM_ASSIGN_OR_RETURN(TransferTimes times, [&] {
    const BlockedScope blocked(context_.progress);
    return context_.transport->WaitRecv(message, context_.deadline);
  }());
  if (times.just_now) times.arrival = context_.clock->Reach();
  spans_.push_back({.rank = message.from,
                    .stream = Stream::kSend,
                    .kind = SpanKind::kTransfer,
                    .edge = i.edge,
                    .start = context_.clock->ToSim(times.begin),
                    .end = context_.clock->ToSim(times.arrival)});
  return times.just_now ? AddWait(i.edge, times.arrival, since)
                        : AwaitTransfer(i.edge, times.arrival, since);
}

absl::Status Interpreter::Execute(const WaitSend& i) {
  const WallTime since = context_.clock->Progress();
  PIPELOOM_ASSIGN_OR_RETURN(const TransferTimes times, [&] {
    const BlockedScope blocked(context_.progress);
    return context_.transport->WaitSend(MessageOf(i.edge), context_.deadline);
  }());
  PIPELOOM_RETURN_IF_ERROR(times.just_now
                               ? AddWait(i.edge, context_.clock->Reach(), since)
                               : AwaitTransfer(i.edge, times.sent, since));
  context_.device->Sent(i.edge);
  return context_.account->Release(MemoryItem::kSent,
                                   graph_.edge(i.edge).payload);
}

absl::Status Interpreter::Execute(const Free& i) {
  return context_.buffers->Free(i.edge);
}

absl::Status Interpreter::Execute(const Offload& i) {
  PIPELOOM_ASSIGN_OR_RETURN(const CopyTimes times,
                            context_.device->Offload(i.task, i.payload));
  AddCopySpan(i.task, times);
  return absl::OkStatus();
}

absl::Status Interpreter::Execute(const Fetch& i) {
  PIPELOOM_ASSIGN_OR_RETURN(const CopyTimes times,
                            context_.device->Fetch(i.task, i.payload));
  AddCopySpan(i.task, times);
  return absl::OkStatus();
}

absl::Status Interpreter::Execute(const ReduceGradients&) {
  const SimTime start = context_.clock->Now();
  PIPELOOM_RETURN_IF_ERROR(context_.device->ReduceGradients());
  AddSpan(Stream::kCompute, SpanKind::kEpilogue, TaskId(), EdgeId(), start);
  return absl::OkStatus();
}

absl::Status Interpreter::Execute(const OptimizerStep&) {
  context_.commit->Arrive();
  arrived_ = true;
  {
    const BlockedScope blocked(context_.progress);
    PIPELOOM_RETURN_IF_ERROR(context_.commit->Wait(context_.deadline));
  }
  const SimTime start = context_.clock->Now();
  PIPELOOM_RETURN_IF_ERROR(context_.device->OptimizerStep());
  AddSpan(Stream::kCompute, SpanKind::kEpilogue, TaskId(), EdgeId(), start);
  return absl::OkStatus();
}

Message Interpreter::MessageOf(EdgeId edge) const {
  const Dependency& d = graph_.edge(edge);
  return {.edge = edge,
          .from = graph_.task(d.from).rank,
          .to = graph_.task(d.to).rank,
          .delay = d.delay,
          .occupancy = d.occupancy};
}

absl::Status Interpreter::AwaitTransfer(EdgeId edge, WallTime until,
                                        WallTime since) {
  PIPELOOM_RETURN_IF_ERROR(context_.clock->WaitUntil(until));
  return until > since ? AddWait(edge, WallNow(), since) : absl::OkStatus();
}

absl::Status Interpreter::AddWait(EdgeId edge, WallTime end, WallTime since) {
  spans_.push_back({.rank = context_.rank,
                    .stream = Stream::kReceive,
                    .kind = SpanKind::kWait,
                    .edge = edge,
                    .start = context_.clock->ToSim(since),
                    .end = context_.clock->ToSim(end)});
  return absl::OkStatus();
}

void Interpreter::AddCopySpan(TaskId task, const CopyTimes& times) {
  if (times.end <= times.begin) return;
  // The first edge to a task of this rank, which uses the copied tensors.
  EdgeId edge;
  for (const EdgeId e : graph_.outgoing(task)) {
    const bool local = graph_.task(graph_.edge(e).to).rank == context_.rank;
    if (edge.is_none() || local) edge = e;
    if (local) break;
  }
  if (edge.is_none()) return;
  spans_.push_back({.rank = context_.rank,
                    .stream = Stream::kCopy,
                    .kind = SpanKind::kTransfer,
                    .edge = edge,
                    .start = context_.clock->ToSim(times.begin),
                    .end = context_.clock->ToSim(times.end)});
}

void Interpreter::AddSpan(Stream stream, SpanKind kind, TaskId task,
                          EdgeId edge, SimTime start) {
  spans_.push_back({.rank = context_.rank,
                    .stream = stream,
                    .kind = kind,
                    .task = task,
                    .edge = edge,
                    .start = start,
                    .end = context_.clock->Now()});
}

}  // namespace pipeloom::runtime
