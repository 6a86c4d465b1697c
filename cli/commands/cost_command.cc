// `pipeloom cost`: times of single operators on a device.
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/input/job_input.h"
#include "cli/input/operator_prices.h"
#include "formats/profile/op_query_reader.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

constexpr size_t kMaxOfALine = 1 << 20;  // Bytes.
constexpr size_t kPrintAt = 1 << 16;     // Bytes of answers gathered.

// A reader of lines of bounded length, without their line ends.
class LineReader {
 public:
  LineReader(std::istream& in, std::string name)
      : in_(in), name_(std::move(name)) {}

  // Reads the next line; returns false at the end.
  absl::StatusOr<bool> Next(std::string* line) {
    line->clear();
    ++number_;
    char buffer[4096];
    for (;;) {
      in_.getline(buffer, sizeof(buffer));
      const auto got = static_cast<size_t>(in_.gcount());
      if (in_.bad()) {
        return absl::DataLossError(absl::StrCat("cannot read ", name_));
      }
      if (in_.eof()) {
        line->append(buffer, got);
        return !line->empty();
      }
      // The stream counts a line end, but does not store it.
      const bool cut = in_.fail();
      line->append(buffer, cut ? got : got - 1);
      if (!cut) return true;
      if (got == 0) return !line->empty();
      in_.clear();
      if (line->size() > kMaxOfALine) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s:%d: the line is longer than %d bytes; each "
                            "query stands on a line of its own",
                            name_, number_, kMaxOfALine));
      }
    }
  }

  int32_t number() const { return number_; }
  const std::string& name() const { return name_; }

 private:
  std::istream& in_;
  std::string name_;
  int32_t number_ = 0;
};

class CostCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "cost", "QUERIES --device NAME [options]",
        "times of single operators on a device",
        "Reads operators as JSON Lines, one a line, and prints each line "
        "again with \"time_us\" and \"source\": measured (this very point "
        "is in the device's profile), interpolated (between measured "
        "points, or fp8 priced as bf16 on a device without fp8) or roofline "
        "(computed from the device's rates). QUERIES - is the standard input. "
        "The first bad line ends it with exit code 1; "
        "the lines before it are answered.\n\n"
        "op and its fields: gemm m n k (tokens, outputs, inputs of the "
        "forward product; pass forward, input_grad or weight_grad), "
        "grouped_gemm groups m n k, attention batch seq heads kv_heads "
        "head_dim (mask causal or full), rmsnorm, layernorm, softmax, add, "
        "rope, embedding, gelu, swiglu tokens width, optimizer parameters, "
        "moe tokens width ffn experts top_k, small_layer tokens width "
        "kernels, all_reduce, all_gather, reduce_scatter, all_to_all bytes "
        "ranks, send_recv bytes (span node or inter_node; ranks_per_node "
        "where the group's share of a node is not all of it). pass is "
        "forward or backward for the others; dtype is bf16, fp16, fp8 or "
        "fp32. Fields that are not used are passed on.\n\n"
        "Devices that ship: a100-sxm, a800-sxm, h100-sxm, h200-sxm, h800-sxm, "
        "h20, b200-sxm, l40s."};
  }

  std::vector<Flag> Flags() override {
    return {{"device", &device_, "NAME",
             "the GPU: \"h100-sxm\", or a cluster, by its name or file, for "
             "its GPU and links"},
            {"queries", &queries_, "FILE", "the same as the argument QUERIES"},
            {"profile", &profile_, "FILE",
             "a device profile (of `pipeloom calibrate`) instead of the "
             "shipped one"},
            {"format",
             &format_,
             "FORMAT",
             "of the output: JSON Lines, or an object whose \"answers\" are "
             "these lines",
             {"jsonl", "json"}},
            DataDirFlag(&data_dir_)};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (queries_.empty() && args.size() == 1) queries_ = args[0];
    if (device_.empty()) return UsageError("--device NAME is missing");
    if (queries_.empty())
      return UsageError("QUERIES is missing: a file, or - for stdin");
    if (!args.empty() && args[0] != queries_) {
      return UsageError(absl::StrCat("unexpected argument \"", args[0], "\""));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                              FindDataDir(data_dir_));
    PIPELOOM_ASSIGN_OR_RETURN(
        const emulator::QueryCost costs,
        LoadQueryCost(device_, profile_, data_dir, context));
    if (queries_ == "-") {
      return Answer(LineReader(std::cin, "<stdin>"), costs, context);
    }
    std::ifstream file(queries_, std::ios::binary);
    if (!file) {
      return absl::NotFoundError(absl::StrCat("cannot open ", queries_));
    }
    return Answer(LineReader(file, queries_), costs, context);
  }

 private:
  absl::Status Answer(LineReader lines, const emulator::QueryCost& costs,
                      const Context& context) const {
    const bool as_json = format_ == "json";
    std::string answers;
    if (as_json) {
      answers = absl::StrCat("{\"device\": ", formats::QuoteJson(device_),
                             ", \"answers\": [");
    }
    const char* before = as_json ? "\n" : "";
    const char* const after = as_json ? "" : "\n";
    std::string line;
    absl::Status status;
    bool warned = false;
    while (!context.stop.stop_requested()) {
      const absl::StatusOr<bool> more = lines.Next(&line);
      status = more.status();
      if (!status.ok() || !*more) break;
      if (absl::StripAsciiWhitespace(line).empty()) continue;
      const absl::StatusOr<formats::ParsedQuery> parsed =
          formats::ParseOpQuery(line, lines.name(), lines.number());
      status = parsed.status();
      if (!status.ok()) break;
      if (!parsed->extra.empty() && !warned) {
        warned = true;
        context.warn(absl::StrFormat(
            "pipeloom cost: %s:%d: field \"%s\" of %s is not used, the first "
            "of such fields",
            lines.name(), lines.number(), parsed->extra,
            Name(parsed->query.op)));
      }
      const absl::StatusOr<emulator::QueryPrice> price =
          costs.Price(parsed->query);
      if (!price.ok()) {
        status = absl::Status(price.status().code(),
                              absl::StrCat(lines.name(), ":", lines.number(),
                                           ": ", price.status().message()));
        break;
      }
      absl::StrAppend(
          &answers, before,
          formats::AnswerLine(line, *parsed, absl::StrFormat("%.3f", price->us),
                              emulator::Name(price->source)),
          after);
      if (as_json) before = ",\n";
      if (answers.size() >= kPrintAt) {
        context.print(answers);
        answers.clear();
      }
    }
    // Also after an error, so that the output is whole.
    if (as_json) absl::StrAppend(&answers, "\n]}\n");
    if (!answers.empty()) context.print(answers);
    if (context.stop.stop_requested()) return absl::CancelledError("stopped");
    return status;
  }

  std::string device_{};
  std::string queries_{};
  std::string profile_{};
  std::string format_ = "jsonl";
  std::string data_dir_{};
};

}  // namespace

std::unique_ptr<Command> MakeCostCommand() {
  return std::make_unique<CostCommand>();
}

}  // namespace pipeloom::cli
