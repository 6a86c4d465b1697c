#include "trace/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/text/json_writer.h"
#include "trace/trace_summary.h"

namespace pipeloom::trace {
namespace {

// Thread ids of a rank's process: a hundred for each kind of track.
enum Track { kComputeTrack, kWaitTrack, kSendTrack, kReceiveTrack, kCopyTrack };
constexpr int kNumTracks = 5;
constexpr int kLanesPerTrack = 100;
constexpr const char* kTrackNames[kNumTracks] = {"compute", "wait", "send",
                                                 "receive", "copy"};

Track TrackOf(const Span& span) {
  if (span.kind == SpanKind::kWait) return kWaitTrack;
  switch (span.stream) {
    case Stream::kCompute:
      return kComputeTrack;
    case Stream::kSend:
      return kSendTrack;
    case Stream::kReceive:
      return kReceiveTrack;
    case Stream::kCopy:
      return kCopyTrack;
  }
  return kComputeTrack;
}

const char* PassName(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kBackward:
      return "backward";
    case Pass::kWeightGrad:
      return "weight_grad";
  }
  return "?";
}

class Writer {
 public:
  Writer() { json_.BeginObject().Key("traceEvents").BeginArray(); }

  void AddPlan(const TracedPlan& traced, int first_process, Duration offset) {
    plan_ = traced.plan;
    first_process_ = first_process;
    offset_ = offset;
    lanes_.clear();
    spans_ = TaskSpans(plan_->graph, *traced.trace);
    for (const Span& span : traced.trace->spans) AddSpan(span);
    AddMemory(*traced.trace);
  }

  std::string Finish() {
    for (const auto& [process, names] : processes_) {
      Metadata("process_name", process, 0, names.first);
      Begin("process_sort_index", "M", process, 0);
      json_.Key("args").BeginObject().Key("sort_index").Int(process);
      json_.EndObject().EndObject();
      for (const int thread : names.second) {
        const int lane = thread % kLanesPerTrack;
        const char* track = kTrackNames[thread / kLanesPerTrack];
        Metadata("thread_name", process, thread,
                 lane == 0 ? std::string(track)
                           : absl::StrCat(track, " ", lane + 1));
        Begin("thread_sort_index", "M", process, thread);
        json_.Key("args").BeginObject().Key("sort_index").Int(thread);
        json_.EndObject().EndObject();
      }
    }
    json_.EndArray().Key("displayTimeUnit").String("ms").EndObject();
    return json_.text() + "\n";
  }

 private:
  void Begin(absl::string_view name, absl::string_view phase, int process,
             int thread) {
    json_.BeginObject().Key("name").String(name).Key("ph").String(phase);
    json_.Key("pid").Int(process).Key("tid").Int(thread);
  }
  void Metadata(absl::string_view what, int process, int thread,
                absl::string_view name) {
    Begin(what, "M", process, thread);
    json_.Key("args").BeginObject().Key("name").String(name);
    json_.EndObject().EndObject();
  }
  Duration At(SimTime time) const { return time - kStepStart + offset_; }

  int Process(RankId rank) {
    const int process = first_process_ + rank.value();
    std::string& name = processes_[process].first;
    if (name.empty()) {
      name = plan_->replica == 0 ? absl::StrCat("rank ", rank.value())
                                 : absl::StrCat("replica ", plan_->replica,
                                                " rank ", rank.value());
    }
    return process;
  }

  // Returns the first lane of the track that is free at the span's start.
  int Lane(int process, Track track, const Span& span) {
    std::vector<SimTime>& free_at = lanes_[{process, track}];
    size_t lane = 0;
    while (lane < free_at.size() && free_at[lane] > span.start) ++lane;
    if (lane == free_at.size()) free_at.emplace_back();
    free_at[lane] = span.end;
    const int thread = track * kLanesPerTrack +
                       std::min(static_cast<int>(lane), kLanesPerTrack - 1);
    processes_[process].second.insert(thread);
    return thread;
  }

  void AddSpan(const Span& span) {
    const int process = Process(span.rank);
    const int thread = Lane(process, TrackOf(span), span);
    const StageGraph& graph = plan_->graph;
    const auto begin = [&](absl::string_view name, absl::string_view category) {
      Begin(name, "X", process, thread);
      json_.Key("cat").String(category).Key("ts").Micros(At(span.start));
      json_.Key("dur").Micros(span.end - span.start);
      json_.Key("args").BeginObject();
    };
    switch (span.kind) {
      case SpanKind::kTask: {
        const Task& task = graph.task(span.task);
        const std::string& module =
            graph.module_names()[static_cast<size_t>(task.module.value())];
        begin(absl::StrFormat("%c%d %s", PassLetter(task.pass),
                              task.microbatch.value(), module),
              "task");
        json_.Key("pass").String(PassName(task.pass));
        json_.Key("module").String(module);
        json_.Key("stage").Int(task.stage.value());
        json_.Key("microbatch").Int(task.microbatch.value());
        json_.Key("sub_microbatch").Int(task.sub_microbatch);
        json_.Key("task").Int(span.task.value());
        json_.Key("inputs").String(Inputs(graph, span.task));
        WhichRank(span.rank);
        if (task.recomputes) json_.Key("recomputes").Bool(true);
        if (!task.overlaps.is_none()) {
          json_.Key("overlaps").Int(task.overlaps.value());
        }
        break;
      }
      case SpanKind::kTransfer:
      case SpanKind::kWait: {
        const Dependency& edge = graph.edge(span.edge);
        const RankId from = graph.task(edge.from).rank;
        const RankId to = graph.task(edge.to).rank;
        if (span.kind == SpanKind::kTransfer) {
          begin(absl::StrCat("to rank ", to.value()), "transfer");
        } else {
          begin(absl::StrCat("wait for rank ",
                             (from == span.rank ? to : from).value()),
                "wait");
        }
        json_.Key("edge").Int(span.edge.value());
        json_.Key("payload_bytes").Count(edge.payload);
        json_.Key("rows").Int(edge.rows).Key("width").Int(edge.width);
        break;
      }
      case SpanKind::kEpilogue:
        begin("gradients and optimizer", "epilogue");
        WhichRank(span.rank);
        break;
    }
    json_.EndObject().EndObject();
    if (span.kind == SpanKind::kTransfer && span.stream == Stream::kSend) {
      AddArrow(span, process, thread);
    }
  }

  // Writes the arguments from which `pipeloom trace` knows rank and step.
  void WhichRank(RankId rank) {
    json_.Key("rank").Int(rank.value());
    json_.Key("step").Int(plan_->step);
    if (plan_->replica != 0) json_.Key("replica").Int(plan_->replica);
  }
  static std::string Inputs(const StageGraph& graph, TaskId task) {
    std::string text;
    for (const EdgeId e : graph.incoming(task)) {
      absl::StrAppend(&text, text.empty() ? "" : ",",
                      graph.edge(e).from.value());
    }
    return text;
  }

  void AddArrow(const Span& span, int process, int thread) {
    const Span* consumer = spans_[plan_->graph.edge(span.edge).to];
    if (consumer == nullptr || consumer->start < span.start) return;
    const std::string id =
        absl::StrCat(plan_->step, ".", plan_->replica, ".", span.edge.value());
    Begin("transfer", "s", process, thread);
    json_.Key("cat").String("transfer").Key("id").String(id);
    json_.Key("ts").Micros(At(span.start)).EndObject();
    Begin("transfer", "f", Process(consumer->rank), kComputeTrack);
    json_.Key("cat").String("transfer").Key("id").String(id);
    json_.Key("bp").String("e").Key("ts").Micros(At(consumer->start));
    json_.EndObject();
  }

  // Adds one counter event for all changes at one instant.
  void AddMemory(const StepTrace& trace) {
    std::array<Bytes, kNumMemoryItems> held{};
    for (size_t i = 0; i < trace.memory.size(); ++i) {
      const MemoryStep& step = trace.memory[i];
      if (i == 0 || trace.memory[i - 1].rank != step.rank) held.fill(Bytes(0));
      held[static_cast<size_t>(step.item)] += step.delta;
      const bool more = i + 1 < trace.memory.size() &&
                        trace.memory[i + 1].rank == step.rank &&
                        trace.memory[i + 1].at == step.at;
      if (more) continue;
      Begin("memory_bytes", "C", Process(step.rank), 0);
      json_.Key("ts").Micros(At(step.at)).Key("args").BeginObject();
      for (int item = 0; item < kNumMemoryItems; ++item) {
        json_.Key(MemoryItemName(static_cast<MemoryItem>(item)));
        json_.Count(held[static_cast<size_t>(item)]);
      }
      json_.EndObject().EndObject();
    }
  }

  formats::JsonWriter json_{true};
  const ExecutionPlan* plan_ = nullptr;
  int first_process_ = 0;
  Duration offset_{};
  IdVector<TaskId, const Span*> spans_{};
  // Name and threads of each process, indexed by process.
  std::map<int, std::pair<std::string, std::set<int>>> processes_{};
  std::map<std::pair<int, int>, std::vector<SimTime>> lanes_{};
};

}  // namespace

std::string ChromeTrace(absl::Span<const TracedPlan> plans) {
  int num_ranks = 0;
  for (const TracedPlan& traced : plans) {
    num_ranks = std::max(num_ranks, traced.plan->graph.num_ranks());
  }
  Writer writer;
  Duration offset{};
  Duration longest{};
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i > 0 && plans[i].plan->step != plans[i - 1].plan->step) {
      offset += longest;
      longest = kZero;
    }
    writer.AddPlan(plans[i], plans[i].plan->replica * num_ranks, offset);
    longest = std::max(longest, plans[i].trace->step_time());
  }
  return writer.Finish();
}

}  // namespace pipeloom::trace
