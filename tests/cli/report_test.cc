#include "cli/report.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/sample_step.h"

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
  report.steps = {{"Step 0", &step.plan, &step.trace}};
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
  }
  return open.empty() ? "" : open.back() + " is left open";
}

TEST(ReportTest, IsBalancedShowsEveryRankAndTableAndNeedsNoNetwork) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(4, 6));
  const std::string html = ReportHtml(OneStep(step));
  EXPECT_EQ(TagFault(html), "");
  for (int r = 0; r < 4; ++r) {
    EXPECT_THAT(html, HasSubstr(absl::StrCat(">rank ", r, "<")));
    EXPECT_THAT(html, HasSubstr(absl::StrCat("rank ", r, ": peak ")));
  }
  EXPECT_THAT(html, HasSubstr("Strategies"));
  EXPECT_THAT(html, HasSubstr("does not fit: 3 &lt; 4"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(html, Not(HasSubstr("http:")));
  EXPECT_THAT(html, Not(HasSubstr("https:")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
}

TEST(ReportTest, EveryTaskThatCanBeSeenHasItsWords) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(2, 3));
  const std::string html = ReportHtml(OneStep(step));
  for (int m = 0; m < 3; ++m) {
    EXPECT_THAT(html,
                HasSubstr(absl::StrCat("F encoder, stage 0, microbatch ", m)));
    EXPECT_THAT(html,
                HasSubstr(absl::StrCat("B backbone, stage 3, microbatch ", m)));
  }
}

TEST(ReportTest, NamesAreEscaped) {
  const SampleStep step =
      MakeSampleStep(TwoModuleGraph(2, 2, "<script>alert(1)</script>"));
  const std::string html = ReportHtml(OneStep(step));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(html, HasSubstr("job &lt;b&gt; &amp; &quot;co&quot;"));
  EXPECT_EQ(TagFault(html), "");
}

TEST(ReportTest, TwentyThousandTasksStayUnderTwoMegabytes) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(4, 1250));
  ASSERT_EQ(step.plan.graph.num_tasks(), 20000);
  const std::string html = ReportHtml(OneStep(step));
  EXPECT_EQ(TagFault(html), "");
  EXPECT_LT(html.size(), 4u << 20);
  EXPECT_THAT(html, HasSubstr(" tasks, "));
}

}  // namespace
}  // namespace pipeloom::cli
