#include "emulator/trace_builder.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pipeloom::emulator {
namespace {

SimTime At(int64_t ns) { return SimTime(Nanoseconds(ns)); }

// A span of another stream than the program's, kept until its place by start.
struct SideSpan {
  int64_t start = 0;
  int64_t end = 0;
  int32_t edge = -1;
  Stream stream = Stream::kSend;
};

class Builder {
 public:
  Builder(const StageGraph& graph, const StepEngine& engine, StepTrace* trace)
      : graph_(graph),
        engine_(engine),
        program_(engine.program()),
        trace_(trace) {}

  void Full() {
    size_t spans = 0;
    size_t steps = 0;
    for (const RankId rank : graph_.rank_ids()) {
      const auto r = static_cast<size_t>(rank.value());
      spans += program_.fixed_spans[r] + engine_.ranks()[r].waits;
      steps += program_.memory_steps[r];
    }
    spans += program_.copies.size();
    trace_->spans.resize(spans);
    trace_->memory.resize(steps);
    span_ = trace_->spans.data();
    step_ = trace_->memory.data();
    for (const RankId rank : graph_.rank_ids()) FullRank(rank);
    trace_->spans.resize(static_cast<size_t>(span_ - trace_->spans.data()));
    trace_->memory.resize(static_cast<size_t>(step_ - trace_->memory.data()));
  }

  void TasksOnly() {
    trace_->spans.resize(program_.task_of_slot.size());
    trace_->memory.clear();
    span_ = trace_->spans.data();
    for (const RankId rank : graph_.rank_ids()) {
      for (const StepOp& op : program_.ops_of(rank.value())) {
        if (op.code == OpCode::kCompute) {
          Task(rank, op.index);
        } else if (op.code == OpCode::kComputeGuarded) {
          Task(rank, program_.guards[op.index].slot);
        }
      }
    }
  }

 private:
  int64_t Task(RankId rank, uint32_t slot) {
    const int64_t start = engine_.starts()[slot];
    const int64_t end = start + engine_.durations()[slot];
    *span_++ = {.rank = rank,
                .task = program_.task_of_slot[slot],
                .start = At(start),
                .end = At(end)};
    return end;
  }

  // Those that begin before `start`. What comes later along the program begins
  // no earlier than the program has got, so a few are kept at any time.
  void SideSpansUntil(RankId rank, int64_t start) {
    size_t k = 0;
    for (; k < sides_.size() && sides_[k].start < start; ++k) {
      const SideSpan& side = sides_[k];
      *span_++ = {.rank = rank,
                  .stream = side.stream,
                  .kind = SpanKind::kTransfer,
                  .edge = EdgeId(side.edge),
                  .start = At(side.start),
                  .end = At(side.end)};
    }
    if (k > 0)
      sides_.erase(sides_.begin(), sides_.begin() + static_cast<long>(k));
  }

  void AddSide(const SideSpan& side) {
    sides_.push_back(side);
    size_t k = sides_.size() - 1;
    for (; k > 0 && sides_[k - 1].start > side.start; --k) {
      sides_[k] = sides_[k - 1];
    }
    sides_[k] = side;
  }

  void AddCopy(uint32_t index) {
    const CopyState& copy = engine_.copies()[index];
    const EdgeId edge = program_.copies[index].edge;
    if (copy.end == copy.start || edge.is_none()) return;
    AddSide({copy.start, copy.end, edge.value(), Stream::kCopy});
  }

  void AddTransfer(uint32_t edge) {
    if (!engine_.has_begun(edge)) return;
    const TransferState& t = engine_.transfer(edge);
    AddSide(
        {t.start, t.left + t.lag, static_cast<int32_t>(edge), Stream::kSend});
  }

  void Memory(RankId rank, int64_t at, MemoryItem item, Bytes delta) {
    if (delta == Bytes(0)) return;
    *step_++ = {.rank = rank, .at = At(at), .item = item, .delta = delta};
  }

  void FullRank(RankId rank) {
    sides_.clear();
    MemoryStep* const first_step = step_;
    const RankMemory& held = graph_.rank(rank).memory;
    Memory(rank, 0, MemoryItem::kWeights, held.weights);
    Memory(rank, 0, MemoryItem::kGradients, held.gradients);
    Memory(rank, 0, MemoryItem::kOptimizer, held.optimizer);
    Memory(rank, 0, MemoryItem::kOverhead, held.overhead);
    int64_t now = 0;
    const auto compute = [&](uint32_t slot) {
      now = engine_.starts()[slot];
      SideSpansUntil(rank, now);
      const int64_t end = Task(rank, slot);
      const StepProgram::SlotMemory& memory = program_.memory_of_slot[slot];
      Memory(rank, now, MemoryItem::kActivations, memory.alloc);
      Memory(rank, end, MemoryItem::kActivations, -memory.free);
      now = end;
    };
    const auto wait = [&](uint32_t edge, int64_t at) {
      if (at <= now) return;
      SideSpansUntil(rank, now);
      *span_++ = {.rank = rank,
                  .kind = SpanKind::kWait,
                  .edge = EdgeId(static_cast<int32_t>(edge)),
                  .start = At(now),
                  .end = At(at)};
      now = at;
    };
    bool has_copies = false;
    for (const StepOp& op : program_.ops_of(rank.value())) {
      switch (op.code) {
        case OpCode::kCompute:
          compute(op.index);
          break;
        case OpCode::kComputeGuarded: {
          const Guard& guard = program_.guards[op.index];
          for (const uint32_t copy : guard.fetches) {
            now = std::max(now, engine_.copies()[copy].end);
          }
          for (const Guard::Local& local : guard.locals) {
            wait(static_cast<uint32_t>(local.edge.value()),
                 engine_.local_arrival(local));
          }
          compute(guard.slot);
          break;
        }
        case OpCode::kRecv:
          Memory(rank, now, MemoryItem::kReceived, program_.payloads[op.index]);
          break;
        case OpCode::kFree:
          Memory(rank, now, MemoryItem::kReceived,
                 -program_.payloads[op.index]);
          break;
        case OpCode::kSend:
          AddTransfer(op.index);
          break;
        case OpCode::kBlockingSend:
          AddTransfer(op.index);
          [[fallthrough]];
        case OpCode::kWaitSend:
          wait(op.index, engine_.transfer(op.index).left);
          break;
        case OpCode::kWaitRecv: {
          const TransferState& t = engine_.transfer(op.index);
          wait(op.index, t.left + t.lag);
          break;
        }
        case OpCode::kOffload:
          AddCopy(op.index);
          Memory(rank, engine_.copies()[op.index].end, MemoryItem::kActivations,
                 -program_.copies[op.index].payload);
          has_copies = true;
          break;
        case OpCode::kFetch:
          AddCopy(op.index);
          Memory(rank, engine_.copies()[op.index].start,
                 MemoryItem::kActivations, program_.copies[op.index].payload);
          has_copies = true;
          break;
        case OpCode::kEpilogue:
          SideSpansUntil(rank, now);
          *span_++ = {.rank = rank,
                      .kind = SpanKind::kEpilogue,
                      .start = At(now),
                      .end = At(now + engine_.epilogue(rank.value()))};
          now += engine_.epilogue(rank.value());
          break;
        case OpCode::kNothing:
          break;
      }
    }
    SideSpansUntil(rank, INT64_MAX);
    if (has_copies) {
      std::stable_sort(
          first_step, step_,
          [](const MemoryStep& a, const MemoryStep& b) { return a.at < b.at; });
    }
  }

  const StageGraph& graph_;
  const StepEngine& engine_;
  const StepProgram& program_;
  StepTrace* const trace_;
  Span* span_ = nullptr;
  MemoryStep* step_ = nullptr;
  std::vector<SideSpan> sides_{};
};

}  // namespace

void BuildTrace(const StageGraph& graph, const StepEngine& engine, bool full,
                StepTrace* trace) {
  trace->num_ranks = graph.num_ranks();
  trace->finish = At(engine.finish());
  Builder builder(graph, engine, trace);
  if (full) {
    builder.Full();
  } else {
    builder.TasksOnly();
  }
}

}  // namespace pipeloom::emulator
