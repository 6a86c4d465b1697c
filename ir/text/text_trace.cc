// The text form of StepTrace.
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/text/text_format.h"
#include "ir/text/text_line.h"

namespace pipeloom {
namespace {

constexpr int64_t kVersion = 1;
// Readers of a trace keep data for every rank, with or without spans.
constexpr int32_t kMaxRanks = 1 << 20;

// Indexed by the values of Stream and SpanKind.
constexpr const char* kStreams[] = {"compute", "send", "receive", "copy"};
constexpr const char* kKinds[] = {"task", "transfer", "wait", "epilogue"};

template <typename Enum, size_t n>
Enum ReadEnum(const char* const (&names)[n], const char* expected,
              TextReader& reader) {
  for (size_t i = 0; i < n; ++i) {
    if (reader.At(names[i])) {
      reader.Word();
      return static_cast<Enum>(i);
    }
  }
  reader.Fail(expected);
  return Enum{};
}

MemoryItem ReadItem(TextReader& reader) {
  const char* names[kNumMemoryItems] = {};
  for (int i = 0; i < kNumMemoryItems; ++i) {
    names[i] = MemoryItemName(static_cast<MemoryItem>(i));
  }
  return ReadEnum<MemoryItem>(names, "an item of memory", reader);
}

RankId ReadRank(int32_t num_ranks, TextReader& reader) {
  const int32_t rank = reader.Int32("rank", 0);
  if (rank >= num_ranks) {
    reader.Fail(absl::StrCat("a rank below ", num_ranks, " before this"));
  }
  return RankId(rank);
}

// Reads a span. Its task or edge follows its kind.
Span ReadSpan(int32_t num_ranks, TextReader& reader) {
  Span span;
  span.rank = ReadRank(num_ranks, reader);
  span.stream =
      ReadEnum<Stream>(kStreams, "compute, send, receive or copy", reader);
  if (reader.At("task")) {
    span.task = TaskId(reader.Int32("task", 0));
  } else if (reader.At("transfer")) {
    span.kind = SpanKind::kTransfer;
    span.edge = EdgeId(reader.Int32("transfer", 0));
  } else if (reader.At("wait")) {
    span.kind = SpanKind::kWait;
    span.edge = EdgeId(reader.Int32("wait", 0));
  } else {
    span.kind =
        ReadEnum<SpanKind>(kKinds, "task, transfer, wait or epilogue", reader);
  }
  const int64_t start = reader.Int("from");
  span.start = SimTime(Nanoseconds(start));
  span.end = SimTime(Nanoseconds(reader.Int("to", start)));
  return span;
}

}  // namespace

std::string ToString(const StepTrace& trace) {
  const auto ns = [](SimTime time) { return time.time_since_epoch().count(); };
  std::string out =
      absl::StrFormat("trace version %d ranks %d finish %d\n", kVersion,
                      trace.num_ranks, ns(trace.finish));
  for (const Span& span : trace.spans) {
    const auto kind = static_cast<size_t>(span.kind);
    absl::StrAppend(&out, "span rank ", span.rank.value(), " ",
                    kStreams[static_cast<size_t>(span.stream)], " ",
                    kKinds[kind]);
    if (span.kind == SpanKind::kTask) {
      absl::StrAppend(&out, " ", span.task.value());
    } else if (span.kind != SpanKind::kEpilogue) {
      absl::StrAppend(&out, " ", span.edge.value());
    }
    absl::StrAppend(&out, " from ", ns(span.start), " to ", ns(span.end), "\n");
  }
  for (const MemoryStep& step : trace.memory) {
    absl::StrAppend(&out, "memory rank ", step.rank.value(), " ",
                    MemoryItemName(step.item), " delta ", step.delta.count(),
                    " at ", ns(step.at), "\n");
  }
  absl::StrAppend(&out, "end\n");
  return out;
}

absl::StatusOr<StepTrace> ParseStepTrace(absl::string_view text) {
  TextReader reader(text);
  StepTrace trace;
  reader.NextLine();
  reader.Expect("trace");
  const int64_t version = reader.Int("version");
  if (reader.status().ok() && version != kVersion) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "trace version is %d; this program reads %d", version, kVersion));
  }
  trace.num_ranks = reader.Int32("ranks", 0);
  if (trace.num_ranks > kMaxRanks) {
    reader.Fail(absl::StrCat("at most ", kMaxRanks, " ranks before this"));
  }
  trace.finish = SimTime(Nanoseconds(reader.Int("finish")));
  reader.ExpectEndOfLine();
  bool ended = false;
  bool more = reader.NextLine();
  while (more && !ended) {
    if (reader.At("span")) {
      reader.Word();
      trace.spans.push_back(ReadSpan(trace.num_ranks, reader));
    } else if (reader.At("memory")) {
      reader.Word();
      MemoryStep step;
      step.rank = ReadRank(trace.num_ranks, reader);
      step.item = ReadItem(reader);
      step.delta = Bytes(reader.Int("delta"));
      step.at = SimTime(Nanoseconds(reader.Int("at")));
      trace.memory.push_back(step);
    } else if (reader.At("end")) {
      reader.Word();
      ended = true;
    } else {
      reader.Fail("span, memory or end");
    }
    reader.ExpectEndOfLine();
    more = reader.NextLine();
  }
  if (!ended) reader.Fail("\"end\"");
  if (more) reader.Fail("nothing after \"end\"");
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  return trace;
}

}  // namespace pipeloom
