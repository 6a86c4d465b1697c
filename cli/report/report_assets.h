// The style sheet and the script of the report, built into the binary: the
// files of cli/report, put together by CMake.
#ifndef PIPELOOM_CLI_REPORT_REPORT_ASSETS_H_
#define PIPELOOM_CLI_REPORT_REPORT_ASSETS_H_

namespace pipeloom::cli {

extern const char kReportStyle[];
extern const char kReportScript[];

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_REPORT_ASSETS_H_
