#include "trace/trace_analysis.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::trace {
namespace {

constexpr size_t kMaxCandidates = 64;

struct RankView {
  std::vector<const Span*> busy{};   // Tasks and epilogues, sorted by start.
  std::vector<const Span*> waits{};  // Sorted by start.
  std::vector<TaskId> order{};
  // Levels of held memory after each change.
  std::vector<SimTime> changed{};
  std::vector<int64_t> held{};
};

class Analysis {
 public:
  Analysis(const ExecutionPlan& plan, const StepTrace& trace)
      : graph_(plan.graph), trace_(trace), ranks_(graph_.num_ranks()) {
    result_.causes.resize(graph_.num_tasks());
    result_.start.assign(graph_.num_tasks(), SimTime(Duration(1)));
    result_.end.assign(graph_.num_tasks(), kStepStart);
    result_.bubbles.assign(graph_.num_ranks(), BubbleTimes{});
    busy_.assign(graph_.num_ranks(), kZero);
    previous_.resize(graph_.num_tasks());
    transfers_.assign(graph_.num_edges(), nullptr);
    ReadSpans();
    ReadMemory();
    for (const auto& program : plan.programs) {
      for (const Instruction& instruction : program) {
        const Fetch* fetch = std::get_if<Fetch>(&instruction);
        if (fetch == nullptr || !graph_.tasks().Contains(fetch->task)) continue;
        if (fetched_.empty()) fetched_.assign(graph_.num_tasks(), false);
        fetched_[fetch->task] = true;
      }
    }
  }

  TraceAnalysis Run() {
    for (const RankId r : graph_.rank_ids()) FindCauses(r);
    for (const RankId r : graph_.rank_ids()) FindIdle(r);
    FindCriticalPath();
    return std::move(result_);
  }

 private:
  void ReadSpans() {
    for (const Span& span : trace_.spans) {
      if (!ranks_.Contains(span.rank) || span.end < span.start) continue;
      RankView& rank = ranks_[span.rank];
      switch (span.kind) {
        case SpanKind::kTask:
          if (!graph_.tasks().Contains(span.task)) break;
          rank.busy.push_back(&span);
          result_.start[span.task] = span.start;
          result_.end[span.task] = span.end;
          break;
        case SpanKind::kEpilogue:
          rank.busy.push_back(&span);
          break;
        case SpanKind::kWait:
          if (graph_.edges().Contains(span.edge)) rank.waits.push_back(&span);
          break;
        case SpanKind::kTransfer:
          if (graph_.edges().Contains(span.edge)) transfers_[span.edge] = &span;
          break;
      }
    }
    for (const RankId r : ranks_.ids()) {
      RankView& rank = ranks_[r];
      const auto earlier = [](const Span* a, const Span* b) {
        return a->start < b->start;
      };
      std::stable_sort(rank.busy.begin(), rank.busy.end(), earlier);
      std::stable_sort(rank.waits.begin(), rank.waits.end(), earlier);
      for (const Span* span : rank.busy) {
        if (span->kind != SpanKind::kTask) continue;
        busy_[r] += span->end - span->start;
        if (!rank.order.empty()) previous_[span->task] = rank.order.back();
        rank.order.push_back(span->task);
      }
    }
  }

  void ReadMemory() {
    IdVector<RankId, int64_t> held(graph_.num_ranks(), 0);
    for (const MemoryStep& step : trace_.memory) {
      if (!ranks_.Contains(step.rank)) continue;
      held[step.rank] += step.delta.count();
      ranks_[step.rank].changed.push_back(step.at);
      ranks_[step.rank].held.push_back(held[step.rank]);
    }
  }

  SimTime ReadyAt(TaskId task) const {
    SimTime ready = kStepStart;
    for (const EdgeId e : graph_.incoming(task)) {
      const Dependency& d = graph_.edge(e);
      if (result_.HasSpan(d.from)) {
        ready = std::max(ready, result_.end[d.from] + d.delay);
      }
    }
    return ready;
  }

  SimTime ArrivalOf(EdgeId e) const {
    const Dependency& d = graph_.edge(e);
    if (transfers_[e] != nullptr) return transfers_[e]->end;
    return result_.HasSpan(d.from) ? result_.end[d.from] + d.delay : kStepStart;
  }

  void FindCauses(RankId r) {
    const RankView& rank = ranks_[r];
    size_t wait = 0;
    SimTime free_at = kStepStart;
    TaskId before;
    for (const Span* span : rank.busy) {
      if (span->kind == SpanKind::kTask) {
        StartCause& cause = result_.causes[span->task];
        cause.ready = ReadyAt(span->task);
        cause.gap = std::max(kZero, span->start - free_at);
        // The last wait between the two.
        const Span* last = nullptr;
        while (wait < rank.waits.size() &&
               rank.waits[wait]->start < span->start) {
          if (rank.waits[wait]->end > free_at) last = rank.waits[wait];
          ++wait;
        }
        SetCause(span->task, cause.gap > kZero ? last : nullptr, free_at,
                 before);
        before = span->task;
      }
      free_at = std::max(free_at, span->end);
    }
  }

  void SetCause(TaskId task, const Span* wait, SimTime free_at, TaskId before) {
    StartCause& cause = result_.causes[task];
    const RankId r = graph_.task(task).rank;
    EdgeId edge;
    if (wait != nullptr) {
      edge = wait->edge;
    } else if (cause.gap > kZero) {
      SimTime latest = free_at;
      for (const EdgeId e : graph_.incoming(task)) {
        const SimTime at = ArrivalOf(e);
        if (at > latest) {
          latest = at;
          edge = e;
        }
      }
      if (edge.is_none() && NeedsFetch(task)) {
        cause.reason = StartReason::kMemory;
        cause.after = before;
        return;
      }
    }
    if (!edge.is_none()) {
      const Dependency& d = graph_.edge(edge);
      cause.edge = edge;
      cause.after = d.from;
      const bool out = graph_.task(d.from).rank == r;
      const bool in = graph_.task(d.to).rank == r;
      cause.reason = out && in ? StartReason::kLocalInput
                     : out     ? StartReason::kBlockedSend
                               : StartReason::kMessage;
      return;
    }
    cause.after = before;
    cause.reason =
        before.is_none() ? StartReason::kStepStart : StartReason::kOwnRank;
  }

  bool NeedsFetch(TaskId task) const {
    if (fetched_.empty()) return false;
    for (const EdgeId e : graph_.incoming(task)) {
      if (fetched_[graph_.edge(e).from]) return true;
    }
    return false;
  }

  void AddIdle(IdlePiece piece, BubbleKind kind, SimTime start, SimTime end) {
    if (end <= start) return;
    piece.kind = kind;
    piece.start = start;
    piece.end = end;
    if (kind != BubbleKind::kOrder && kind != BubbleKind::kMemory) {
      piece.instead = TaskId();
    }
    result_.bubbles[piece.rank][static_cast<size_t>(kind)] += end - start;
    result_.idle.push_back(piece);
  }

  void FindIdle(RankId r) {
    const RankView& rank = ranks_[r];
    SimTime free_at = kStepStart;
    size_t tasks = 0;
    size_t wait = 0;
    for (const Span* span : rank.busy) {
      const bool is_task = span->kind == SpanKind::kTask;
      IdlePiece piece{.rank = r};
      if (span->start > free_at) {
        if (is_task) piece.before = span->task;
        if (tasks == rank.order.size()) {
          AddIdle(piece, BubbleKind::kTail, free_at, span->start);
        } else if (tasks == 0) {
          if (is_task) piece.edge = result_.causes[span->task].edge;
          AddIdle(piece, BubbleKind::kWarmUp, free_at, span->start);
        } else {
          wait = Split(r, free_at, span->start, tasks, wait);
        }
      }
      if (is_task) ++tasks;
      free_at = std::max(free_at, span->end);
    }
    AddIdle({.rank = r},
            rank.order.empty() ? BubbleKind::kWarmUp : BubbleKind::kTail,
            free_at, trace_.finish);
  }

  // Splits idle time in [a, b) before the rank's task at `index`. Returns the
  // first wait that may extend beyond b.
  size_t Split(RankId r, SimTime a, SimTime b, size_t index, size_t wait) {
    const RankView& rank = ranks_[r];
    const TaskId next = rank.order[index];
    IdlePiece piece{.rank = r, .before = next};
    const FreeSlot slot = FindFree(r, a, b, index);
    // End of the part that is attributed to waiting.
    SimTime rest = b;
    if (slot.order_at) rest = *slot.order_at;
    if (slot.memory_at) rest = std::min(rest, *slot.memory_at);
    SimTime at = a;
    for (; wait < rank.waits.size() && rank.waits[wait]->start < b; ++wait) {
      const Span& span = *rank.waits[wait];
      if (span.end <= at) continue;
      const SimTime begin = std::max(at, span.start);
      Waiting(piece, next, EdgeId(), at, std::min(begin, rest));
      Waiting(piece, next, span.edge, std::min(begin, rest),
              std::min({span.end, b, rest}));
      at = std::max(at, std::min({span.end, b, rest}));
      if (span.end >= b) break;
    }
    // The part that no wait covers is attributed to what came last.
    const StartCause& cause = result_.causes[next];
    Waiting(piece, next, cause.edge, std::min(at, rest), rest);
    if (slot.memory_at && *slot.memory_at < slot.order_at.value_or(b)) {
      piece.instead = slot.memory_task;
      AddIdle(piece, BubbleKind::kMemory, *slot.memory_at,
              slot.order_at.value_or(b));
    }
    if (slot.order_at) {
      piece.instead = slot.order_task;
      AddIdle(piece, BubbleKind::kOrder, *slot.order_at, b);
    }
    return wait;
  }

  // Attributes [a, b) to waiting for `edge`.
  void Waiting(IdlePiece piece, TaskId next, EdgeId edge, SimTime a,
               SimTime b) {
    if (b <= a) return;
    piece.edge = edge;
    if (edge.is_none()) {
      AddIdle(piece,
              result_.causes[next].reason == StartReason::kMemory
                  ? BubbleKind::kMemory
                  : BubbleKind::kOther,
              a, b);
      return;
    }
    const Dependency& d = graph_.edge(edge);
    const bool out = graph_.task(d.from).rank == piece.rank;
    const bool in = graph_.task(d.to).rank == piece.rank;
    if (out) {
      AddIdle(piece, in ? BubbleKind::kDependency : BubbleKind::kTransfer, a,
              b);
      return;
    }
    const SimTime produced =
        result_.HasSpan(d.from) ? result_.end[d.from] : kStepStart;
    const bool queued =
        result_.causes[d.from].reason == StartReason::kOwnRank &&
        result_.causes[d.from].ready < result_.start[d.from];
    const SimTime until = std::min(b, produced);
    SimTime uneven = a;  // [a, uneven) is imbalance.
    if (queued) {
      const Duration more =
          busy_[graph_.task(d.from).rank] - busy_[piece.rank] -
          result_
              .bubbles[piece.rank][static_cast<size_t>(BubbleKind::kImbalance)];
      uneven = std::max(a, std::min(until, a + more));
    }
    AddIdle(piece, BubbleKind::kImbalance, a, uneven);
    AddIdle(piece, BubbleKind::kDependency, uneven, until);
    AddIdle(piece, BubbleKind::kTransfer, std::max(a, produced), b);
  }

  struct FreeSlot {
    std::optional<SimTime> order_at{};
    TaskId order_task{};
    std::optional<SimTime> memory_at{};
    TaskId memory_task{};
  };

  // Finds the earliest instants of [a, b) from which on a later task of the
  // rank could have run within the gap: with room in memory, and without.
  FreeSlot FindFree(RankId r, SimTime a, SimTime b, size_t index) const {
    FreeSlot slot;
    const RankView& rank = ranks_[r];
    const Bytes limit = graph_.rank(r).memory.limit;
    const size_t last = std::min(rank.order.size(), index + 1 + kMaxCandidates);
    for (size_t i = index + 1; i < last; ++i) {
      const TaskId u = rank.order[i];
      const SimTime at = std::max(a, result_.causes[u].ready);
      const Duration length = result_.end[u] - result_.start[u];
      if (length <= kZero || at + length > b) continue;
      if (slot.order_at && at >= *slot.order_at) continue;
      const BoundaryBytes boundary = BoundaryOf(graph_, u);
      const Bytes more = graph_.task(u).alloc + boundary.made - boundary.taken;
      const bool room =
          limit <= Bytes(0) || more <= Bytes(0) ||
          PeakHeld(rank, at, result_.start[u]) + more.count() <= limit.count();
      if (room) {
        slot.order_at = at;
        slot.order_task = u;
      } else if (!slot.memory_at || at < *slot.memory_at) {
        slot.memory_at = at;
        slot.memory_task = u;
      }
    }
    return slot;
  }

  // Returns the most memory held in [from, to).
  static int64_t PeakHeld(const RankView& rank, SimTime from, SimTime to) {
    const auto first =
        std::upper_bound(rank.changed.begin(), rank.changed.end(), from);
    auto i = static_cast<size_t>(first - rank.changed.begin());
    int64_t most = i == 0 ? 0 : rank.held[i - 1];
    for (; i < rank.changed.size() && rank.changed[i] < to; ++i) {
      most = std::max(most, rank.held[i]);
    }
    return most;
  }

  // Pieces are found from the end of the step to its start.
  void FindCriticalPath() {
    const Span* last = nullptr;
    for (const RankView& rank : ranks_) {
      for (const Span* span : rank.busy) {
        if (last == nullptr || span->end > last->end) last = span;
      }
    }
    if (last == nullptr) return;
    path_end_ = trace_.finish;
    RankId rank = last->rank;
    AddPiece({.kind = PathPiece::Kind::kGap, .rank = rank}, last->end);
    if (last->kind == SpanKind::kEpilogue) {
      AddPiece({.kind = PathPiece::Kind::kEpilogue, .rank = rank}, last->start);
    }
    TaskId at = last->kind == SpanKind::kTask ? last->task
                : ranks_[rank].order.empty()  ? TaskId()
                                              : ranks_[rank].order.back();
    if (!at.is_none()) {
      AddPiece({.kind = PathPiece::Kind::kGap, .rank = rank}, result_.end[at]);
    }
    // The count bounds the walk, as measured clocks may disagree.
    for (int32_t left = graph_.num_tasks(); left > 0 && !at.is_none(); --left) {
      rank = graph_.task(at).rank;
      AddPiece({.kind = PathPiece::Kind::kTask, .rank = rank, .task = at},
               result_.start[at]);
      const StartCause& cause = result_.causes[at];
      const TaskId before = previous_[at];
      const SimTime free_at =
          before.is_none() ? kStepStart : result_.end[before];
      if (cause.reason == StartReason::kMessage ||
          cause.reason == StartReason::kBlockedSend ||
          cause.reason == StartReason::kLocalInput) {
        const SimTime produced = result_.end[cause.after];
        const Span* transfer = transfers_[cause.edge];
        if (transfer != nullptr && produced <= transfer->start) {
          AddPiece({.kind = PathPiece::Kind::kGap, .rank = rank, .task = at},
                   transfer->end);
          AddPiece({.kind = PathPiece::Kind::kTransfer,
                    .rank = transfer->rank,
                    .edge = cause.edge},
                   transfer->start);
          AddPiece({.kind = PathPiece::Kind::kQueue,
                    .rank = transfer->rank,
                    .edge = cause.edge},
                   produced);
        } else {
          AddPiece({.kind = PathPiece::Kind::kTransfer,
                    .rank = graph_.task(cause.after).rank,
                    .edge = cause.edge},
                   produced);
        }
        at = result_.HasSpan(cause.after) ? cause.after : TaskId();
      } else {
        AddPiece({.kind = PathPiece::Kind::kGap, .rank = rank, .task = at},
                 free_at);
        at = before;
      }
      if (path_end_ <= kStepStart) break;
    }
    AddPiece({.kind = PathPiece::Kind::kGap, .rank = rank}, kStepStart);
    std::reverse(result_.critical.begin(), result_.critical.end());
  }

  void AddPiece(PathPiece piece, SimTime start) {
    start = std::max(start, kStepStart);
    // Empty tasks stay: they are links of the chain.
    if (start >= path_end_ && piece.kind != PathPiece::Kind::kTask) return;
    piece.start = std::min(start, path_end_);
    piece.end = path_end_;
    path_end_ = piece.start;
    result_.critical.push_back(piece);
  }

  const StageGraph& graph_;
  const StepTrace& trace_;
  IdVector<RankId, RankView> ranks_;
  IdVector<RankId, Duration> busy_{};    // Time in tasks.
  IdVector<TaskId, TaskId> previous_{};  // The task before it on its rank.
  IdVector<EdgeId, const Span*> transfers_{};
  IdVector<TaskId, bool> fetched_{};  // Empty: none.
  SimTime path_end_{};
  TraceAnalysis result_{};
};

}  // namespace

absl::string_view BubbleName(BubbleKind kind) {
  switch (kind) {
    case BubbleKind::kWarmUp:
      return "warm-up";
    case BubbleKind::kImbalance:
      return "imbalance";
    case BubbleKind::kDependency:
      return "dependency";
    case BubbleKind::kTransfer:
      return "transfer";
    case BubbleKind::kMemory:
      return "memory";
    case BubbleKind::kOrder:
      return "order";
    case BubbleKind::kTail:
      return "tail";
    case BubbleKind::kOther:
      return "other";
  }
  return "?";
}

Duration Total(const BubbleTimes& times) {
  Duration sum{};
  for (const Duration d : times) sum += d;
  return sum;
}

TraceAnalysis Analyze(const ExecutionPlan& plan, const StepTrace& trace) {
  return Analysis(plan, trace).Run();
}

std::string Words(const StageGraph& graph, const StartCause& cause) {
  const auto edge = [&](absl::string_view end) {
    const Dependency& d = graph.edge(cause.edge);
    return absl::StrFormat("the tensor (%s) of %s on rank %d %s",
                           FormatBytes(d.payload), DescribeTask(graph, d.from),
                           graph.task(d.from).rank.value(), std::string(end));
  };
  switch (cause.reason) {
    case StartReason::kStepStart:
      return "the step began";
    case StartReason::kOwnRank:
      return absl::StrCat("its rank was busy with ",
                          DescribeTask(graph, cause.after));
    case StartReason::kMessage:
      return edge("arrived");
    case StartReason::kLocalInput:
      return edge("was ready");
    case StartReason::kBlockedSend:
      return edge("had to be sent first");
    case StartReason::kMemory:
      return "offloaded activations came back";
  }
  return "";
}

}  // namespace pipeloom::trace
