#include "emulator/trace_builder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/huge_pages.h"

namespace pipeloom::emulator {
namespace {

SimTime At(int64_t ns) { return SimTime(Nanoseconds(ns)); }

// A span of another stream than the program's, kept until its place by start.
struct SideSpan {
  int64_t start = 0;
  int64_t end = 0;
  EdgeId edge{};
  Stream stream = Stream::kSend;
};

// Where a list of the trace is written. Both: Put one after another,
// `data` and `size` of what is there so far, Finish.

// Over what a list of at least the final length holds.
template <typename T>
class InPlace {
 public:
  InPlace(std::vector<T>* list, size_t most) : list_(list) {
    list->resize(most);
    next_ = list->data();
  }
  void Put(const T& item) { *next_++ = item; }
  T* data() { return list_->data(); }
  size_t size() const { return static_cast<size_t>(next_ - list_->data()); }
  void Finish() { list_->resize(size()); }

 private:
  std::vector<T>* const list_;
  T* next_ = nullptr;
};

// Into memory that has never been written, by the block: each page is met once.
template <typename T>
class Grown {
 public:
  Grown(std::vector<T>* list, size_t most) : list_(list) {
    list->clear();
    list->reserve(most);
    AdviseHugePages(list->data(), most * sizeof(T));
  }
  void Put(const T& item) {
    if (held_ == kBlock) Finish();
    block_[held_++] = item;
  }
  T* data() {
    Finish();
    return list_->data();
  }
  size_t size() const { return list_->size() + held_; }
  void Finish() {
    list_->insert(list_->end(), block_.begin(),
                  block_.begin() + static_cast<long>(held_));
    held_ = 0;
  }

 private:
  static constexpr size_t kBlock = 64;
  std::vector<T>* const list_;
  std::array<T, kBlock> block_{};
  size_t held_ = 0;
};

template <template <typename> typename List>
class Builder {
 public:
  Builder(const StageGraph& graph, const StepEngine& engine, size_t spans,
          size_t steps, StepTrace* trace)
      : graph_(graph),
        engine_(engine),
        program_(engine.program()),
        spans_(&trace->spans, spans),
        steps_(&trace->memory, steps) {}

  void Full() {
    for (const RankId rank : graph_.rank_ids()) FullRank(rank);
    spans_.Finish();
    steps_.Finish();
  }

  void TasksOnly() {
    for (const RankId rank : graph_.rank_ids()) {
      for (const StepOp& op : program_.ops_of(rank.value())) {
        if (op.code == OpCode::kCompute) {
          Task(rank, op.index);
        } else if (op.code == OpCode::kComputeGuarded) {
          Task(rank, program_.guards[op.index].slot);
        }
      }
    }
    spans_.Finish();
    steps_.Finish();
  }

 private:
  int64_t Task(RankId rank, uint32_t slot) {
    const int64_t start = engine_.starts()[slot];
    const int64_t end = start + engine_.durations()[slot];
    spans_.Put({.rank = rank,
                .task = program_.task_of_slot[slot],
                .start = At(start),
                .end = At(end)});
    return end;
  }

  // Those that begin before `start`. What comes later along the program begins
  // no earlier than the program has got, so a few are kept at any time.
  void SideSpansUntil(RankId rank, int64_t start) {
    size_t k = 0;
    for (; k < sides_.size() && sides_[k].start < start; ++k) {
      const SideSpan& side = sides_[k];
      spans_.Put({.rank = rank,
                  .stream = side.stream,
                  .kind = SpanKind::kTransfer,
                  .edge = side.edge,
                  .start = At(side.start),
                  .end = At(side.end)});
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
    AddSide({copy.start, copy.end, edge, Stream::kCopy});
  }

  void AddTransfer(uint32_t transfer) {
    if (!engine_.has_begun(transfer)) return;
    AddSide({engine_.start(transfer), engine_.arrived(transfer),
             program_.transfers[transfer].edge, Stream::kSend});
  }

  void Memory(RankId rank, int64_t at, MemoryItem item, Bytes delta) {
    if (delta == Bytes(0)) return;
    steps_.Put({.rank = rank, .at = At(at), .item = item, .delta = delta});
  }

  void FullRank(RankId rank) {
    sides_.clear();
    const size_t first_step = steps_.size();
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
    const auto wait = [&](EdgeId edge, int64_t at) {
      if (at <= now) return;
      SideSpansUntil(rank, now);
      spans_.Put({.rank = rank,
                  .kind = SpanKind::kWait,
                  .edge = edge,
                  .start = At(now),
                  .end = At(at)});
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
            wait(local.edge, engine_.local_arrival(local));
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
          wait(program_.transfers[op.index].edge, engine_.left(op.index));
          break;
        case OpCode::kWaitRecv:
          wait(program_.transfers[op.index].edge, engine_.arrived(op.index));
          break;
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
          spans_.Put({.rank = rank,
                      .kind = SpanKind::kEpilogue,
                      .start = At(now),
                      .end = At(now + engine_.epilogue(rank.value()))});
          now += engine_.epilogue(rank.value());
          break;
        case OpCode::kNothing:
          break;
      }
    }
    SideSpansUntil(rank, INT64_MAX);
    if (has_copies) {
      MemoryStep* const steps = steps_.data();
      std::stable_sort(
          steps + first_step, steps + steps_.size(),
          [](const MemoryStep& a, const MemoryStep& b) { return a.at < b.at; });
    }
  }

  const StageGraph& graph_;
  const StepEngine& engine_;
  const StepProgram& program_;
  List<Span> spans_;
  List<MemoryStep> steps_;
  std::vector<SideSpan> sides_{};
};

}  // namespace

void BuildTrace(const StageGraph& graph, const StepEngine& engine, bool full,
                StepTrace* trace) {
  trace->num_ranks = graph.num_ranks();
  trace->finish = At(engine.finish());
  const StepProgram& program = engine.program();
  size_t spans = program.task_of_slot.size();
  size_t steps = 0;
  if (full) {
    spans = program.copies.size();
    for (const RankId rank : graph.rank_ids()) {
      const auto r = static_cast<size_t>(rank.value());
      spans += program.fixed_spans[r] + engine.ranks()[r].waits;
      steps += program.memory_steps[r];
    }
  }
  const auto build = [&](auto builder) {
    if (full) {
      builder.Full();
    } else {
      builder.TasksOnly();
    }
  };
  if (trace->spans.size() < spans / 2 || trace->memory.size() < steps / 2) {
    build(Builder<Grown>(graph, engine, spans, steps, trace));
    return;
  }
  build(Builder<InPlace>(graph, engine, spans, steps, trace));
}

}  // namespace pipeloom::emulator
