// The style sheet and the script of the report, built into the binary by CMake
// from the files of cli/report/page.
#ifndef PIPELOOM_CLI_REPORT_PAGE_ASSETS_H_
#define PIPELOOM_CLI_REPORT_PAGE_ASSETS_H_

namespace pipeloom::cli {

extern const char kReportStyle[];
extern const char kReportScript[];

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_PAGE_ASSETS_H_
