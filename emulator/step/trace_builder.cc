#include "emulator/step/trace_builder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/attributes.h"
#include "emulator/step/huge_pages.h"

namespace pipeloom::emulator {
namespace {

SimTime At(int64_t ns) { return SimTime(Nanoseconds(ns)); }

// A span of another stream than the program's, kept until its turn by start.
struct SideSpan {
  int64_t start = 0;
  int64_t end = 0;
  EdgeId edge{};
  Stream stream = Stream::kSend;
};

// Queue of side spans by start, of which few are kept at any time; ties in
// order of arrival.
class SideSpans {
 public:
  void Clear() { first_ = last_ = items_.data(); }
  bool StartsBefore(int64_t at) const {
    return first_ != last_ && first_->start < at;
  }
  // REQUIRES: StartsBefore() some time. The result is valid until the next Add.
  const SideSpan& Pop() { return *first_++; }
  void Add(int64_t start, int64_t end, EdgeId edge, Stream stream) {
    if (first_ == last_) Clear();
    if (last_ == items_.data() + items_.size()) MakeRoom();
    // Field by field: copying what was just written in parts would wait for all
    // of them.
    SideSpan* at = last_++;
    for (; at != first_ && at[-1].start > start; --at) *at = at[-1];
    at->start = start;
    at->end = end;
    at->edge = edge;
    at->stream = stream;
  }

 private:
  void MakeRoom() {
    items_.erase(items_.begin(), items_.begin() + (first_ - items_.data()));
    const size_t held = items_.size();
    items_.resize(std::max<size_t>(64, 2 * held));
    first_ = items_.data();
    last_ = first_ + held;
  }

  std::vector<SideSpan> items_{};
  SideSpan* first_ = nullptr;  // The kept spans are [first_, last_).
  SideSpan* last_ = nullptr;
};

// Two writers of a list of the trace. Use of both: fill what Next() returns,
// one element after another; `data` and `size` are those so far; end with
// Finish.

// A writer over a list of at least the final length.
template <typename T>
class InPlace {
 public:
  InPlace(std::vector<T>* list, size_t most) : list_(list) {
    list->resize(most);
    next_ = list->data();
  }
  T* Next() {
    // The cache line after the next ones will be written soon.
    __builtin_prefetch(reinterpret_cast<const char*>(next_) + kAhead, 1);
    return next_++;
  }
  T* data() { return list_->data(); }
  size_t size() const { return static_cast<size_t>(next_ - list_->data()); }
  void Finish() { list_->resize(size()); }

 private:
  static constexpr size_t kAhead = 512;  // Bytes.
  std::vector<T>* const list_;
  T* next_ = nullptr;
};

// A writer of blocks to memory that has never been written, so that each page
// is touched once.
template <typename T>
class Grown {
 public:
  Grown(std::vector<T>* list, size_t most) : list_(list) {
    list->clear();
    list->reserve(most);
    AdviseHugePages(list->data(), most * sizeof(T));
  }
  T* Next() {
    if (held_ == kBlock) Finish();
    return &block_[held_++];
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
        run_{.starts = engine.starts().data(),
             .durations = engine.durations().data(),
             .tasks = program_.task_of_slot.data(),
             .memory = program_.memory_of_slot.data(),
             .transfers = program_.transfers.data(),
             .payloads = program_.payloads.data()},
        times_(engine.transfer_times()),
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
  // Overwrites all fields of the next span.
  void Put(RankId rank, Stream stream, SpanKind kind, TaskId task, EdgeId edge,
           int64_t start, int64_t end) {
    Span* const span = spans_.Next();
    span->rank = rank;
    span->stream = stream;
    span->kind = kind;
    span->task = task;
    span->edge = edge;
    span->start = At(start);
    span->end = At(end);
  }

  int64_t Task(RankId rank, uint32_t slot) {
    const int64_t start = run_.starts[slot];
    const int64_t end = start + run_.durations[slot];
    Put(rank, Stream::kCompute, SpanKind::kTask, run_.tasks[slot], EdgeId(),
        start, end);
    return end;
  }

  // Puts the side spans that begin before `start`. Spans that are added later
  // begin no earlier than the program's time, so few are kept at any time.
  void SideSpansUntil(RankId rank, int64_t start) {
    while (sides_.StartsBefore(start)) {
      const SideSpan& side = sides_.Pop();
      Put(rank, side.stream, SpanKind::kTransfer, TaskId(), side.edge,
          side.start, side.end);
    }
  }

  void AddCopy(uint32_t index) {
    const CopyState& copy = engine_.copies()[index];
    const EdgeId edge = program_.copies[index].edge;
    if (copy.end == copy.start || edge.is_none()) return;
    sides_.Add(copy.start, copy.end, edge, Stream::kCopy);
  }

  void AddTransfer(uint32_t transfer) {
    const TransferState& state = times_.states[transfer];
    if (state.stamp != times_.begun) return;
    sides_.Add(state.start, times_.arrived(transfer),
               run_.transfers[transfer].edge, Stream::kSend);
  }

  void Memory(RankId rank, int64_t at, MemoryItem item, Bytes delta) {
    if (delta == Bytes(0)) return;
    MemoryStep* const step = steps_.Next();
    step->rank = rank;
    step->at = At(at);
    step->item = item;
    step->delta = delta;
  }

  // Each returns the time that the program has reached, so that it stays in a
  // register.
  ABSL_ATTRIBUTE_ALWAYS_INLINE int64_t Computed(RankId rank, uint32_t slot) {
    const int64_t start = run_.starts[slot];
    SideSpansUntil(rank, start);
    const int64_t end = Task(rank, slot);
    const StepProgram::SlotMemory& memory = run_.memory[slot];
    Memory(rank, start, MemoryItem::kSent, -memory.taken);
    Memory(rank, start, MemoryItem::kActivations, memory.alloc);
    Memory(rank, start, MemoryItem::kSent, memory.made);
    Memory(rank, end, MemoryItem::kActivations, -memory.free);
    return end;
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE int64_t Waited(RankId rank, int64_t now,
                                              EdgeId edge, int64_t until) {
    if (until <= now) return now;
    SideSpansUntil(rank, now);
    Put(rank, Stream::kCompute, SpanKind::kWait, TaskId(), edge, now, until);
    return until;
  }

  void FullRank(RankId rank) {
    sides_.Clear();
    const size_t first_step = steps_.size();
    const RankMemory& held = graph_.rank(rank).memory;
    Memory(rank, 0, MemoryItem::kWeights, held.weights);
    Memory(rank, 0, MemoryItem::kGradients, held.gradients);
    Memory(rank, 0, MemoryItem::kOptimizer, held.optimizer);
    Memory(rank, 0, MemoryItem::kOverhead, held.overhead);
    int64_t now = 0;
    bool has_copies = false;
    for (const StepOp& op : program_.ops_of(rank.value())) {
      switch (op.code) {
        case OpCode::kCompute:
          now = Computed(rank, op.index);
          break;
        case OpCode::kComputeGuarded: {
          const Guard& guard = program_.guards[op.index];
          for (const uint32_t copy : guard.fetches) {
            now = std::max(now, engine_.copies()[copy].end);
          }
          for (const Guard::Local& local : guard.locals) {
            now = Waited(rank, now, local.edge, engine_.local_arrival(local));
          }
          now = Computed(rank, guard.slot);
          break;
        }
        case OpCode::kRecv:
          Memory(rank, now, MemoryItem::kReceived, run_.payloads[op.index]);
          break;
        case OpCode::kFree:
          Memory(rank, now, MemoryItem::kReceived, -run_.payloads[op.index]);
          break;
        case OpCode::kSend:
          AddTransfer(op.index);
          break;
        case OpCode::kBlockingSend:
          AddTransfer(op.index);
          now = Waited(rank, now, run_.transfers[op.index].edge,
                       times_.left(op.index));
          break;
        case OpCode::kWaitSend:
          now = Waited(rank, now, run_.transfers[op.index].edge,
                       times_.left(op.index));
          Memory(rank, now, MemoryItem::kSent, -run_.payloads[op.index]);
          break;
        case OpCode::kWaitRecv:
          now = Waited(rank, now, run_.transfers[op.index].edge,
                       times_.arrived(op.index));
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
          Put(rank, Stream::kCompute, SpanKind::kEpilogue, TaskId(), EdgeId(),
              now, now + engine_.epilogue(rank.value()));
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
  // Arrays for tasks and transfers, without the look-ups of the vectors.
  struct Arrays {
    const int64_t* starts = nullptr;     // Indexed by slot.
    const int64_t* durations = nullptr;  // Indexed by slot.
    const TaskId* tasks = nullptr;       // Indexed by slot.
    const StepProgram::SlotMemory* memory = nullptr;
    const StepProgram::Transfer* transfers = nullptr;
    const Bytes* payloads = nullptr;  // Indexed by transfer.
  };
  const Arrays run_;
  const StepEngine::TransferTimes times_;
  List<Span> spans_;
  List<MemoryStep> steps_;
  SideSpans sides_{};
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
