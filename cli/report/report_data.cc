#include "cli/report/report_data.h"

#include <algorithm>
#include <set>
#include <variant>
#include <vector>

namespace pipeloom::cli {
namespace {

int64_t Ns(SimTime t) { return t.time_since_epoch().count(); }

template <typename Range, typename Value>
void Column(formats::JsonWriter* json, const char* key, const Range& range,
            const Value& value) {
  json->Key(key).BeginArray();
  for (const auto& item : range) json->Int(static_cast<int64_t>(value(item)));
  json->EndArray();
}

void AppendTasks(const StageGraph& graph, const trace::TraceAnalysis& analysis,
                 formats::JsonWriter* json) {
  const auto ids = graph.task_ids();
  const auto of = [&](auto field) {
    return [&graph, field](TaskId t) { return field(graph.task(t)); };
  };
  const auto why = [&](auto field) {
    return [&analysis, field](TaskId t) { return field(analysis.causes[t]); };
  };
  using trace::StartCause;
  json->Key("tasks").BeginObject();
  Column(json, "r", ids, of([](const Task& t) { return t.rank.value(); }));
  Column(json, "p", ids, of([](const Task& t) { return t.pass; }));
  Column(json, "m", ids, of([](const Task& t) { return t.module.value(); }));
  Column(json, "s", ids, of([](const Task& t) { return t.stage.value(); }));
  Column(json, "b", ids,
         of([](const Task& t) { return t.microbatch.value(); }));
  Column(json, "u", ids, of([](const Task& t) { return t.sub_microbatch; }));
  Column(json, "x", ids, of([](const Task& t) { return t.recomputes; }));
  Column(json, "t0", ids, [&](TaskId t) { return Ns(analysis.start[t]); });
  Column(json, "t1", ids, [&](TaskId t) { return Ns(analysis.end[t]); });
  Column(json, "w", ids, why([](const StartCause& c) { return c.reason; }));
  Column(json, "a", ids,
         why([](const StartCause& c) { return c.after.value(); }));
  Column(json, "e", ids,
         why([](const StartCause& c) { return c.edge.value(); }));
  Column(json, "g", ids,
         why([](const StartCause& c) { return c.gap.count(); }));
  Column(json, "y", ids, why([](const StartCause& c) { return Ns(c.ready); }));
  json->EndObject();
}

void AppendEdges(const StageGraph& graph, const StepTrace& trace,
                 const trace::TraceAnalysis& analysis,
                 formats::JsonWriter* json) {
  std::set<EdgeId> named;
  std::vector<const Span*> transfers;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kTransfer ||
        !graph.edges().Contains(span.edge)) {
      continue;
    }
    transfers.push_back(&span);
    named.insert(span.edge);
  }
  for (const trace::StartCause& cause : analysis.causes) {
    if (!cause.edge.is_none()) named.insert(cause.edge);
  }
  for (const trace::IdlePiece& piece : analysis.idle) {
    if (!piece.edge.is_none()) named.insert(piece.edge);
  }
  for (const trace::PathPiece& piece : analysis.critical) {
    if (!piece.edge.is_none()) named.insert(piece.edge);
  }
  const auto of = [&](auto field) {
    return [&graph, field](EdgeId e) { return field(graph.edge(e)); };
  };
  json->Key("edges").BeginObject();
  Column(json, "e", named, [](EdgeId e) { return e.value(); });
  Column(json, "f", named,
         of([](const Dependency& d) { return d.from.value(); }));
  Column(json, "t", named,
         of([](const Dependency& d) { return d.to.value(); }));
  Column(json, "n", named,
         of([](const Dependency& d) { return d.payload.count(); }));
  json->EndObject().Key("transfers").BeginObject();
  Column(json, "e", transfers, [](const Span* s) { return s->edge.value(); });
  Column(json, "t0", transfers, [](const Span* s) { return Ns(s->start); });
  Column(json, "t1", transfers, [](const Span* s) { return Ns(s->end); });
  json->EndObject();
}

void AppendIdle(const trace::TraceAnalysis& analysis,
                formats::JsonWriter* json) {
  using trace::IdlePiece;
  const auto& idle = analysis.idle;
  json->Key("idle").BeginObject();
  Column(json, "r", idle, [](const IdlePiece& p) { return p.rank.value(); });
  Column(json, "k", idle, [](const IdlePiece& p) { return p.kind; });
  Column(json, "t0", idle, [](const IdlePiece& p) { return Ns(p.start); });
  Column(json, "t1", idle, [](const IdlePiece& p) { return Ns(p.end); });
  Column(json, "b", idle, [](const IdlePiece& p) { return p.before.value(); });
  Column(json, "e", idle, [](const IdlePiece& p) { return p.edge.value(); });
  Column(json, "i", idle, [](const IdlePiece& p) { return p.instead.value(); });
  json->EndObject().Key("critical").BeginArray();
  for (const trace::PathPiece& piece : analysis.critical) {
    json->BeginArray().Int(static_cast<int64_t>(piece.kind));
    json->Int(piece.edge.is_none() ? piece.task.value() : piece.edge.value());
    json->Int(Ns(piece.start)).Int(Ns(piece.end)).EndArray();
  }
  json->EndArray().Key("bubbles").BeginArray();
  for (const trace::BubbleTimes& times : analysis.bubbles) {
    json->BeginArray();
    for (const Duration d : times) json->Int(d.count());
    json->EndArray();
  }
  json->EndArray();
}

void AppendMemory(const StageGraph& graph, const StepTrace& trace,
                  formats::JsonWriter* json) {
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(trace);
  IdVector<RankId, std::vector<const MemoryStep*>> steps(graph.num_ranks());
  for (const MemoryStep& step : trace.memory) {
    if (steps.Contains(step.rank)) steps[step.rank].push_back(&step);
  }
  json->Key("memory").BeginArray();
  for (const RankId r : graph.rank_ids()) {
    const MemoryPeak peak = peaks.Contains(r) ? peaks[r] : MemoryPeak();
    json->BeginObject().Key("limit").Count(graph.rank(r).memory.limit);
    json->Key("peak").BeginObject().Key("total").Count(peak.total);
    json->Key("at").Int(Ns(peak.at)).Key("items").BeginArray();
    for (const Bytes b : peak.items) json->Count(b);
    json->EndArray().EndObject();
    Column(json, "t", steps[r], [](const MemoryStep* s) { return Ns(s->at); });
    Column(json, "i", steps[r], [](const MemoryStep* s) { return s->item; });
    Column(json, "d", steps[r],
           [](const MemoryStep* s) { return s->delta.count(); });
    json->EndObject();
  }
  json->EndArray();
}

void AppendMeasured(const StageGraph& graph, const StepTrace& measured,
                    formats::JsonWriter* json) {
  IdVector<TaskId, const Span*> spans(graph.num_tasks(), nullptr);
  for (const Span& span : measured.spans) {
    if (span.kind == SpanKind::kTask && spans.Contains(span.task)) {
      spans[span.task] = &span;
    }
  }
  json->Key("measured").BeginObject().Key("finish").Int(Ns(measured.finish));
  Column(json, "t0", spans,
         [](const Span* s) { return s == nullptr ? 1 : Ns(s->start); });
  Column(json, "t1", spans,
         [](const Span* s) { return s == nullptr ? 0 : Ns(s->end); });
  json->EndObject();
}

}  // namespace

void AppendStepJson(const ReportStep& step,
                    const trace::TraceAnalysis& analysis, Duration axis,
                    formats::JsonWriter* json) {
  const StageGraph& graph = step.plan->graph;
  const StepTrace& trace = *step.trace;
  json->BeginObject().Key("title").String(step.title);
  json->Key("ranks").Int(graph.num_ranks());
  json->Key("finish").Int(Ns(trace.finish)).Key("axis").Int(axis.count());
  json->Key("modules").BeginArray();
  for (const std::string& name : graph.module_names()) json->String(name);
  json->EndArray().Key("items").BeginArray();
  for (int i = 0; i < kNumMemoryItems; ++i) {
    json->String(MemoryItemName(static_cast<MemoryItem>(i)));
  }
  json->EndArray().Key("bubbleNames").BeginArray();
  for (int k = 0; k < trace::kNumBubbleKinds; ++k) {
    json->String(trace::BubbleName(static_cast<trace::BubbleKind>(k)));
  }
  json->EndArray();
  AppendTasks(graph, analysis, json);
  AppendEdges(graph, trace, analysis, json);
  AppendIdle(analysis, json);
  AppendMemory(graph, trace, json);
  json->Key("epilogue").BeginArray();
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kEpilogue) continue;
    json->BeginArray().Int(span.rank.value());
    json->Int(Ns(span.start)).Int(Ns(span.end)).EndArray();
  }
  json->EndArray().Key("offloaded").BeginArray();
  for (const auto& program : step.plan->programs) {
    for (const Instruction& instruction : program) {
      if (const Offload* offload = std::get_if<Offload>(&instruction)) {
        json->Int(offload->task.value());
      }
    }
  }
  json->EndArray();
  const IdVector<RankId, MemoryPeak> peaks = MemoryPeaks(trace);
  RankId fullest(0);
  for (const RankId r : peaks.ids()) {
    if (peaks[r].total > peaks[fullest].total) fullest = r;
  }
  json->Key("fullest").Int(fullest.value());
  if (step.measured != nullptr) AppendMeasured(graph, *step.measured, json);
  json->EndObject();
}

}  // namespace pipeloom::cli
