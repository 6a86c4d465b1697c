#include "trace/chrome_trace.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_problem.h"
#include "tests/support/sample_step.h"

namespace pipeloom::trace {
namespace {

using ::pipeloom::testing::MakeSampleStep;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::SampleStep;
using ::pipeloom::testing::TwoModuleGraph;
using Json = nlohmann::json;

Json Events(const std::string& text) {
  const Json parsed = Json::parse(text, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << text.substr(0, 500);
  return parsed["traceEvents"];
}

TEST(ChromeTraceTest, HasAnEventForEachTaskAndTransferOfRandomSteps) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const SampleStep step =
        MakeSampleStep(RandomGraph(seed, {.with_epilogues = true}), seed);
    const std::vector<TracedPlan> plans = {{&step.plan, &step.trace}};
    std::map<std::string, int> count;
    std::set<int> tasks;
    for (const Json& event : Events(ChromeTrace(plans))) {
      if (event["ph"] != "X") continue;
      ++count[event["cat"].get<std::string>()];
      if (event["cat"] == "task") {
        tasks.insert(event["args"]["task"].get<int>());
      }
    }
    EXPECT_EQ(count["task"], step.plan.graph.num_tasks());
    EXPECT_EQ(static_cast<int>(tasks.size()), step.plan.graph.num_tasks());
    int transfers = 0;
    for (const Span& span : step.trace.spans) {
      transfers += span.kind == SpanKind::kTransfer ? 1 : 0;
    }
    EXPECT_EQ(count["transfer"], transfers);
  }
}

TEST(ChromeTraceTest, SpansOfOneTrackNeverOverlap) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(4, 6));
  const std::vector<TracedPlan> plans = {{&step.plan, &step.trace}};
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const Json& event : Events(ChromeTrace(plans))) {
    if (event["ph"] != "X") continue;
    const double start = event["ts"].get<double>();
    tracks[{event["pid"].get<int>(), event["tid"].get<int>()}].emplace_back(
        start, start + event["dur"].get<double>());
  }
  EXPECT_GE(tracks.size(), 8u);
  for (auto& [track, spans] : tracks) {
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i) {
      EXPECT_LE(spans[i - 1].second, spans[i].first + 1e-6);
    }
  }
}

TEST(ChromeTraceTest,
     MemoryCountersEndAtTheStaticMemoryAndPeakWhereTheyShould) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(2, 4));
  const std::vector<TracedPlan> plans = {{&step.plan, &step.trace}};
  std::map<int, int64_t> peak;
  std::map<int, int64_t> last;
  for (const Json& event : Events(ChromeTrace(plans))) {
    if (event["ph"] != "C") continue;
    int64_t sum = 0;
    for (const Json& value : event["args"]) sum += value.get<int64_t>();
    const int rank = event["pid"].get<int>();
    peak[rank] = std::max(peak[rank], sum);
    last[rank] = sum;
  }
  const auto peaks = MemoryPeaks(step.trace);
  for (const RankId r : step.plan.graph.rank_ids()) {
    EXPECT_EQ(peak[r.value()], peaks[r].total.count());
    EXPECT_EQ(last[r.value()],
              step.plan.graph.rank(r).memory.static_bytes().count());
  }
}

TEST(ChromeTraceTest, NamesWithQuotesAreEscapedAndStepsFollowEachOther) {
  SampleStep first = MakeSampleStep(TwoModuleGraph(2, 2, "a\"b\\\n</x>"));
  SampleStep second = first;
  second.plan.step = 1;
  const std::vector<TracedPlan> plans = {{&first.plan, &first.trace},
                                         {&second.plan, &second.trace}};
  double latest = 0;
  bool found = false;
  for (const Json& event : Events(ChromeTrace(plans))) {
    if (event["ph"] != "X") continue;
    latest = std::max(latest,
                      event["ts"].get<double>() + event["dur"].get<double>());
    found = found || event["args"].value("module", "") == "a\"b\\\n</x>";
  }
  EXPECT_TRUE(found);
  EXPECT_DOUBLE_EQ(latest, 2 * ToMicroseconds(first.trace.step_time()));
}

}  // namespace
}  // namespace pipeloom::trace
