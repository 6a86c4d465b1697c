#include "proto/convert/trace_proto.h"

#include <string>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::convert {
namespace {

constexpr int kVersion = 1;
// Readers of a trace keep data for every rank, with or without spans.
constexpr int kMaxRanks = 1 << 20;

// Converts an enum of ours to that of the messages, which has one value more, 0
// for unspecified, in front.
template <typename Proto, typename Ours>
Proto Shifted(Ours value) {
  return static_cast<Proto>(static_cast<int>(value) + 1);
}
template <typename Ours>
absl::StatusOr<Ours> Unshifted(int value, int count, const std::string& field) {
  if (value >= 1 && value <= count) return static_cast<Ours>(value - 1);
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; it must be in [1, %d]", field, value, count));
}

absl::Status CheckRank(int rank, int num_ranks, const std::string& field) {
  if (rank >= 0 && rank < num_ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s.rank is %d; it must be in [0, %d)", field, rank, num_ranks));
}

}  // namespace

v1::StepTrace ToProto(const StepTrace& trace) {
  v1::StepTrace proto;
  proto.set_version(kVersion);
  proto.set_num_ranks(trace.num_ranks);
  for (const Span& span : trace.spans) {
    v1::Span& s = *proto.add_spans();
    s.set_rank(span.rank.value());
    s.set_stream(Shifted<v1::Stream>(span.stream));
    s.set_kind(Shifted<v1::SpanKind>(span.kind));
    if (!span.task.is_none()) s.set_task(span.task.value());
    if (!span.edge.is_none()) s.set_edge(span.edge.value());
    s.set_start_ns(span.start.time_since_epoch().count());
    s.set_end_ns(span.end.time_since_epoch().count());
  }
  for (const MemoryStep& step : trace.memory) {
    v1::MemoryStep& m = *proto.add_memory();
    m.set_rank(step.rank.value());
    m.set_at_ns(step.at.time_since_epoch().count());
    m.set_item(Shifted<v1::MemoryItem>(step.item));
    m.set_delta_bytes(step.delta.count());
  }
  proto.set_finish_ns(trace.finish.time_since_epoch().count());
  return proto;
}

absl::StatusOr<StepTrace> FromProto(const v1::StepTrace& proto) {
  if (proto.version() != kVersion) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "version is %d; it must be %d", proto.version(), kVersion));
  }
  if (proto.num_ranks() < 0 || proto.num_ranks() > kMaxRanks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_ranks is %d; it must be in [0, %d]",
                        proto.num_ranks(), kMaxRanks));
  }
  StepTrace trace;
  trace.num_ranks = proto.num_ranks();
  for (const v1::Span& s : proto.spans()) {
    const std::string field = absl::StrFormat("spans[%d]", trace.spans.size());
    PIPELOOM_RETURN_IF_ERROR(CheckRank(s.rank(), trace.num_ranks, field));
    Span span;
    span.rank = RankId(s.rank());
    PIPELOOM_ASSIGN_OR_RETURN(
        span.stream, Unshifted<Stream>(s.stream(), 4, field + ".stream"));
    PIPELOOM_ASSIGN_OR_RETURN(
        span.kind, Unshifted<SpanKind>(s.kind(), 4, field + ".kind"));
    if (s.has_task()) span.task = TaskId(s.task());
    if (s.has_edge()) span.edge = EdgeId(s.edge());
    const bool needs_task = span.kind == SpanKind::kTask;
    const bool needs_edge =
        span.kind == SpanKind::kTransfer || span.kind == SpanKind::kWait;
    if (needs_task != s.has_task() || needs_edge != s.has_edge() ||
        (needs_task && s.task() < 0) || (needs_edge && s.edge() < 0)) {
      return absl::InvalidArgumentError(
          field + ": its kind and its task or edge do not go together");
    }
    if (s.end_ns() < s.start_ns()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s.end_ns is %d; it must be >= start_ns, which is %d", field,
          s.end_ns(), s.start_ns()));
    }
    span.start = SimTime(Nanoseconds(s.start_ns()));
    span.end = SimTime(Nanoseconds(s.end_ns()));
    trace.spans.push_back(span);
  }
  for (const v1::MemoryStep& m : proto.memory()) {
    const std::string field =
        absl::StrFormat("memory[%d]", trace.memory.size());
    PIPELOOM_RETURN_IF_ERROR(CheckRank(m.rank(), trace.num_ranks, field));
    MemoryStep step;
    step.rank = RankId(m.rank());
    step.at = SimTime(Nanoseconds(m.at_ns()));
    PIPELOOM_ASSIGN_OR_RETURN(
        step.item,
        Unshifted<MemoryItem>(m.item(), kNumMemoryItems, field + ".item"));
    step.delta = Bytes(m.delta_bytes());
    trace.memory.push_back(step);
  }
  trace.finish = SimTime(Nanoseconds(proto.finish_ns()));
  return trace;
}

}  // namespace pipeloom::convert
