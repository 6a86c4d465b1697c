#include "cli/report/report.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/sample_step.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::MakeSampleStep;
using ::pipeloom::testing::SampleStep;
using ::pipeloom::testing::TwoModuleGraph;
using ::testing::HasSubstr;
using ::testing::Not;

Report OneStep(const SampleStep& step) {
  Report report;
  report.title = "job <b> & \"co\"";
  report.subtitle = "sub";
  report.figures = {{"step time", "12 ms", "3 % over the bound"}};
  Table table({"schedule", "time", "why"});
  table.AddRow({"1f1b", "1", "2"});
  table.AddRow({"gpipe", "does not fit: 3 < 4"});
  report.tables.push_back({"Strategies", table});
  report.steps = {
      {.title = "Step 0", .plan = &step.plan, .trace = &step.trace}};
  report.notes = {"a note"};
  return report;
}

// "" when every tag is closed in order, else what is wrong.
std::string TagFault(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos;
       at = html.find('<', at + 1)) {
    if (html.compare(at, 2, "<!") == 0) continue;
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "an unfinished tag";
    const bool closing = html[at + 1] == '/';
    const size_t begin = at + (closing ? 2 : 1);
    const std::string name =
        html.substr(begin, html.find_first_of(" />", begin) - begin);
    if (name == "meta" || html[end - 1] == '/') continue;
    if (!closing) {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return absl::StrCat("</", name, "> at ", at);
    } else {
      open.pop_back();
    }
    if (name == "style" && !closing) at = html.find("</style>", at) - 1;
    if (name == "script" && !closing) at = html.find("</script>", at) - 1;
  }
  return open.empty() ? "" : open.back() + " is left open";
}

// The JSON that the page's script reads.
nlohmann::json DataOf(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = html.find(open);
  if (begin == std::string::npos) return nullptr;
  const size_t at = begin + open.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at),
                               nullptr, /*allow_exceptions=*/false);
}

TEST(ReportTest, IsBalancedShowsEveryRankAndTableAndNeedsNoNetwork) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(4, 6));
  const std::string html = ReportHtml(OneStep(step));
  EXPECT_EQ(TagFault(html), "");
  for (int r = 0; r < 4; ++r) {
    EXPECT_THAT(html, HasSubstr(absl::StrCat(">rank ", r, "<")));
  }
  EXPECT_THAT(html, HasSubstr("Strategies"));
  EXPECT_THAT(html, HasSubstr("does not fit: 3 &lt; 4"));
  EXPECT_THAT(html, HasSubstr("Content-Security-Policy"));
  for (const char* fetches :
       {"http:", "https:", " src=", "@import", "url(", "fetch(", "import("}) {
    EXPECT_THAT(html, Not(HasSubstr(fetches)));
  }
}

TEST(ReportTest, DataHasEveryTaskWithItsTimesAndWhatItWaitedFor) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(3, 4));
  const nlohmann::json data = DataOf(ReportHtml(OneStep(step)));
  ASSERT_TRUE(data.is_object());
  const nlohmann::json& tasks = data["steps"][0]["tasks"];
  const StageGraph& graph = step.plan.graph;
  for (const char* column : {"r", "p", "m", "s", "b", "u", "x", "t0", "t1", "w",
                             "a", "e", "g", "y"}) {
    EXPECT_EQ(tasks[column].size(), static_cast<size_t>(graph.num_tasks()))
        << column;
  }
  for (const Span& span : step.trace.spans) {
    if (span.kind != SpanKind::kTask) continue;
    const auto i = static_cast<size_t>(span.task.value());
    EXPECT_EQ(tasks["t0"][i], span.start.time_since_epoch().count());
    EXPECT_EQ(tasks["t1"][i], span.end.time_since_epoch().count());
    EXPECT_EQ(tasks["r"][i], span.rank.value());
  }
}

TEST(ReportTest, IdleTimeInTheDataAddsUpToTheStepWithTasksAndEpilogue) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(4, 5));
  const nlohmann::json data = DataOf(ReportHtml(OneStep(step)))["steps"][0];
  for (const RankId r : step.plan.graph.rank_ids()) {
    int64_t sum = 0;
    for (const auto& ns : data["bubbles"][static_cast<size_t>(r.value())]) {
      sum += ns.get<int64_t>();
    }
    for (const Span& span : step.trace.spans) {
      if (span.rank == r && span.kind != SpanKind::kTransfer) {
        sum += (span.end - span.start).count();
      }
    }
    EXPECT_EQ(sum, step.trace.step_time().count()) << r.value();
  }
}

TEST(ReportTest, MeasuredTimesStandNextToThePredicted) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(2, 3));
  StepTrace measured = step.trace;
  for (Span& span : measured.spans) span.end += Microseconds(7);
  Report report = OneStep(step);
  report.steps[0].measured = &measured;
  const std::string html = ReportHtml(report);
  EXPECT_EQ(TagFault(html), "");
  EXPECT_THAT(html, HasSubstr("Predicted and measured"));
  const nlohmann::json data = DataOf(html)["steps"][0];
  EXPECT_EQ(data["measured"]["t1"][0].get<int64_t>(),
            data["tasks"]["t1"][0].get<int64_t>() + 7000);
}

TEST(ReportTest, NamesAreEscaped) {
  const SampleStep step =
      MakeSampleStep(TwoModuleGraph(2, 2, "</script><script>alert(1)"));
  Report report = OneStep(step);
  report.command = "pipeloom plan '<job>'";
  const std::string html = ReportHtml(report);
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("job &lt;b&gt; &amp; &quot;co&quot;"));
  EXPECT_THAT(html, HasSubstr("plan &#39;&lt;job&gt;&#39;"));
  EXPECT_EQ(TagFault(html), "");
  const nlohmann::json data = DataOf(html);
  EXPECT_EQ(data["steps"][0]["modules"][0], "</script><script>alert(1)");
  EXPECT_EQ(data["command"], report.command);
}

TEST(ReportTest, TwentyThousandTasksStayUnderFourMebibytes) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(4, 1250));
  ASSERT_EQ(step.plan.graph.num_tasks(), 20000);
  const std::string html = ReportHtml(OneStep(step));
  EXPECT_EQ(TagFault(html), "");
  EXPECT_LT(html.size(), 4u << 20);
}

TEST(ReportTest, AScatterHasAPointForEachConfigurationThatRan) {
  Report report;
  report.title = "t";
  report.scatters = {{"Step time against GPUs",
                      "GPUs",
                      "seconds",
                      {{"a<b", 8, 2, true}, {"c", 16, 1, true}, {"d", 16, 3}}}};
  const std::string html = ReportHtml(report);
  EXPECT_EQ(TagFault(html), "");
  EXPECT_THAT(html, HasSubstr("a&lt;b"));
  EXPECT_THAT(html, HasSubstr("<circle class=\"p\""));
}

AgreementPlot SecondsPlot() {
  return {.of = "step <time>",
          .series = {"a<b", "empty"},
          .points = {},
          .text = [](double s) { return absl::StrCat(s, " s"); }};
}

TEST(PlotsTest, AnAgreementPlotPutsEqualValuesOnTheLineAndLogarithmsBesides) {
  AgreementPlot plot = SecondsPlot();
  plot.points = {{"equal & \"so\"", 10, 10},
                 {"ten times too long", 10, 100},
                 {"least", 1, 1},
                 {"fitted", 10, 1, 0, true}};
  std::string html;
  AppendAgreement(plot, &html);
  EXPECT_EQ(TagFault(html), "");
  // From 1 / 1.25 to 100 * 1.25: 10 is in the middle.
  EXPECT_THAT(html, HasSubstr("<circle cx=\"50.00%\" cy=\"50.00%\" r=\"3.5\">"
                              "<title>equal &amp; &quot;so&quot;</title>"));
  EXPECT_THAT(html, HasSubstr("<circle cx=\"50.00%\" cy=\"4.42%\""));
  EXPECT_THAT(html, HasSubstr("<circle cx=\"4.42%\" cy=\"95.58%\""));
  EXPECT_THAT(html, HasSubstr("<circle class=\"hollow\" cx=\"50.00%\" "
                              "cy=\"95.58%\""));
  // The band is log(1.1) and log(0.9) of log(156.25) wide.
  EXPECT_THAT(html, HasSubstr("points=\"0,98.113 100,-1.887 100,2.086 "
                              "0,102.086\""));
  for (const char* tick : {">1 s<", ">2 s<", ">100 s<"}) {
    EXPECT_THAT(html, HasSubstr(tick));
  }
  EXPECT_THAT(html, HasSubstr("a&lt;b</button>"));
  EXPECT_THAT(html, Not(HasSubstr("empty</button>")));
}

TEST(PlotsTest, ValuesThatHaveNoLogarithmAreNotDrawn) {
  AgreementPlot plot = SecondsPlot();
  plot.points = {{"zero", 1, 0}, {"none", 0, 1}};
  std::string html;
  AppendAgreement(plot, &html);
  EXPECT_EQ(html, "");
  plot.points.push_back({"one", 1, 1});
  AppendAgreement(plot, &html);
  EXPECT_EQ(TagFault(html), "");
  EXPECT_THAT(html, Not(HasSubstr("zero")));
  EXPECT_THAT(html, HasSubstr("<circle cx=\"50.00%\" cy=\"50.00%\""));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(PlotsTest, MoreSeriesThanColoursHaveAnotherMark) {
  AgreementPlot plot = SecondsPlot();
  plot.series.assign(12, "s");
  for (size_t s = 0; s < 12; ++s) {
    plot.points.push_back(
        {absl::StrCat("of ", s), 1.0 + static_cast<double>(s), 1, s});
  }
  std::string html;
  AppendAgreement(plot, &html);
  size_t circles = 0;
  size_t squares = 0;
  for (size_t at = 0; (at = html.find("<circle", at)) != html.npos; ++at) {
    ++circles;
  }
  for (size_t at = 0; (at = html.find("<rect", at)) != html.npos; ++at) {
    ++squares;
  }
  EXPECT_EQ(circles, 10u);
  EXPECT_EQ(squares, 2u);
}

TEST(PlotsTest, BarsAreAsLongAsTheirValues) {
  std::string html;
  AppendBars({.title = "By <GPU>",
              .bars = {{"H100", 0.1, "10 %", "worst"}, {"B200", 0.4, "40 %"}}},
             0.4, &html);
  EXPECT_EQ(TagFault(html), "");
  EXPECT_THAT(html, HasSubstr("By &lt;GPU&gt;"));
  EXPECT_THAT(html, HasSubstr("title=\"worst\"><i style=\"width:25.00%"));
  EXPECT_THAT(html, HasSubstr("width:100.00%"));
}

}  // namespace
}  // namespace pipeloom::cli
