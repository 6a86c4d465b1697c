#include "proto/convert/trace_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace pipeloom::convert {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::HasSubstr;

SimTime At(int64_t ns) { return SimTime(Nanoseconds(ns)); }

StepTrace SmallTrace() {
  StepTrace trace;
  trace.num_ranks = 2;
  trace.spans = {{.rank = RankId(0),
                  .stream = Stream::kCompute,
                  .kind = SpanKind::kTask,
                  .task = TaskId(0),
                  .start = At(0),
                  .end = At(5)},
                 {.rank = RankId(0),
                  .stream = Stream::kSend,
                  .kind = SpanKind::kTransfer,
                  .edge = EdgeId(3),
                  .start = At(5),
                  .end = At(7)},
                 {.rank = RankId(1),
                  .stream = Stream::kReceive,
                  .kind = SpanKind::kWait,
                  .edge = EdgeId(3),
                  .start = At(0),
                  .end = At(7)},
                 {.rank = RankId(1),
                  .stream = Stream::kCopy,
                  .kind = SpanKind::kEpilogue,
                  .start = At(7),
                  .end = At(9)}};
  for (int item = 0; item < kNumMemoryItems; ++item) {
    trace.memory.push_back({.rank = RankId(item % 2),
                            .at = At(item),
                            .item = static_cast<MemoryItem>(item),
                            .delta = Bytes(100 - 40 * item)});
  }
  trace.finish = At(9);
  return trace;
}

TEST(TraceProtoTest, EveryStreamKindAndItemComesBack) {
  const StepTrace trace = SmallTrace();
  ASSERT_OK_AND_ASSIGN(const StepTrace again, FromProto(ToProto(trace)));
  EXPECT_EQ(again, trace);
}

TEST(TraceProtoTest, MistakesAreNamedWithFieldAndValue) {
  const v1::StepTrace good = ToProto(SmallTrace());
  const struct {
    std::string name;
    void (*change)(v1::StepTrace&);
    std::string message;
  } cases[] = {
      {"version", [](v1::StepTrace& t) { t.set_version(7); }, "version is 7"},
      {"ranks", [](v1::StepTrace& t) { t.set_num_ranks(-1); },
       "num_ranks is -1"},
      {"too many ranks", [](v1::StepTrace& t) { t.set_num_ranks(2000000000); },
       "num_ranks is 2000000000; it must be in [0, 1048576]"},
      {"rank", [](v1::StepTrace& t) { t.mutable_spans(1)->set_rank(2); },
       "spans[1].rank is 2; it must be in [0, 2)"},
      {"kind", [](v1::StepTrace& t) { t.mutable_spans(0)->clear_kind(); },
       "spans[0].kind is 0"},
      {"task", [](v1::StepTrace& t) { t.mutable_spans(0)->clear_task(); },
       "spans[0]: its kind and its task or edge"},
      {"end", [](v1::StepTrace& t) { t.mutable_spans(1)->set_end_ns(1); },
       "spans[1].end_ns is 1; it must be >= start_ns, which is 5"},
      {"item", [](v1::StepTrace& t) { t.mutable_memory(2)->clear_item(); },
       "memory[2].item is 0"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    v1::StepTrace proto = good;
    c.change(proto);
    EXPECT_THAT(FromProto(proto), FailsWith(absl::StatusCode::kInvalidArgument,
                                            HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace pipeloom::convert
