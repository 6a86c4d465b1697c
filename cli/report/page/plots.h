// The plots of HTML pages, which a table with the same numbers goes with.
#ifndef PIPELOOM_CLI_REPORT_PAGE_PLOTS_H_
#define PIPELOOM_CLI_REPORT_PAGE_PLOTS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace pipeloom::cli {

// A plot with one point per configuration; lower values of both axes are
// better.
struct ScatterPlot {
  struct Point {
    std::string label{};
    double x = 0;
    double y = 0;
    bool best = false;  // Whether no point is better in both.
  };
  std::string title{};
  std::string x_label{};
  std::string y_label{};
  std::vector<Point> points{};
};
// Appends the plot with its heading; nothing if no value is above 0.
void AppendScatter(const ScatterPlot& scatter, std::string* html);

// Predicted against measured values on logarithmic axes of equal range, with
// the line on which they are equal and the band of 10 % around it. As wide as
// its place; its texts keep their size.
struct AgreementPlot {
  struct Point {
    std::string label{};
    double measured = 0;
    double predicted = 0;
    size_t series = 0;
    bool hollow = false;  // Whether the point is apart from the others.
  };
  std::string of{};                   // "step time"
  std::vector<std::string> series{};  // A colour each; keys hide and show them.
  std::vector<Point> points{};
  std::function<std::string(double)> text{};  // A value of an axis.
};
// Points with a value of 0 or less, which these axes do not have, are left out.
void AppendAgreement(const AgreementPlot& plot, std::string* html);

// Horizontal bars from 0, which have their value as a text.
struct BarChart {
  struct Bar {
    std::string label{};
    double value = 0;
    std::string text{};
    std::string details{};  // Shown on pointing at the bar.
  };
  std::string title{};
  std::vector<Bar> bars{};
};
// `most` is the value of a bar of full length. REQUIRES: most > 0.
void AppendBars(const BarChart& chart, double most, std::string* html);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_PAGE_PLOTS_H_
