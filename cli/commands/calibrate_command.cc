// `pipeloom calibrate`: makes a device profile from measurements.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/table.h"
#include "cli/input/job_input.h"
#include "cli/input/operator_prices.h"
#include "emulator/calibration/calibrate.h"
#include "emulator/calibration/query_cost.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/measurement_reader.h"
#include "formats/profile/profile_reader.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

using emulator::Calibration;
using emulator::PredictionError;
using emulator::Refusal;
using emulator::RefusalKind;

// Units of printed rates.
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

std::vector<std::string> RefusalNames() {
  std::vector<std::string> names;
  for (int i = 0; i < emulator::kNumRefusalKinds; ++i) {
    names.emplace_back(emulator::Name(static_cast<RefusalKind>(i)));
  }
  return names;
}

std::string KindOf(const PredictionError& error) {
  if (IsCollective(error.op)) return std::string(Name(error.op));
  return absl::StrCat(Name(error.op), " ", Name(error.pass), " ",
                      Name(error.dtype));
}

class CalibrateCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "calibrate", "MEASUREMENTS... --device NAME --out FILE",
        "a device profile from measured operators",
        "Reads CSV measurements (of scripts/measure_gpu.py, or with the column "
        "names of public data sets; docs/calibration.md), checks that they can "
        "be what they say, makes a device profile of them for --profile, and "
        "prints by operator how well the profile predicts sites that it has "
        "not seen: the points are split by site into folds, and each fold is "
        "predicted from the others.\n\n"
        "Refused, each with its reason: data of another device, type or "
        "operator than it says (mislabelled), two files of the same bytes "
        "(duplicate-file), one shape with times far apart (disagreeing), "
        "times that exceed the device's peak or bandwidth (non-physical), "
        "more work in much less time (non-monotone), slow first rows or "
        "clocks that drift (cold-start), too few shapes (too-few). --accept "
        "takes such data all the same."};
  }

  std::vector<Flag> Flags() override {
    constexpr double kMax = 1e9;
    return {
        {"device", &device_, "NAME", "the GPU that was measured: \"h100-sxm\""},
        {"measurements", &measurements_, "FILES",
         "the same as the arguments, comma separated"},
        OutputFlag("out", &out_, "where the profile goes"),
        {"base", &base_, "NAME",
         "a device that ships, or a profile's file, for what was not measured"},
        {"accept", &accept_, "KINDS", "take data refused as one of these",
         RefusalNames()},
        {"folds", &folds_, "N", "of the cross-validation", {}, 2, 20},
        {"peak-tflops",
         &peak_tflops_,
         "X",
         "dense bf16 peak, TFLOP/s; of a device that ships it is known",
         {},
         0,
         kMax},
        {"peak-fp8-tflops",
         &peak_fp8_tflops_,
         "X",
         "dense fp8 peak, TFLOP/s; 0: none",
         {},
         0,
         kMax},
        {"memory-gbs",
         &memory_gbs_,
         "X",
         "GB/s of the device's memory",
         {},
         0,
         kMax},
        {"link-gbs",
         &link_gbs_,
         "X",
         "GB/s to the other GPUs of its node, one way",
         {},
         0,
         kMax},
        {"multiprocessors",
         &multiprocessors_,
         "N",
         "of the device; shapes of products are tiled over them",
         {},
         0,
         1e6},
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}},
        DataDirFlag(&data_dir_)};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    std::vector<std::string> names = measurements_;
    names.insert(names.end(), args.begin(), args.end());
    if (device_.empty()) return UsageError("--device NAME is missing");
    if (names.empty()) return UsageError("MEASUREMENTS are missing: CSV files");
    if (out_.empty()) return UsageError("--out FILE is missing");
    emulator::CalibrationOptions options;
    PIPELOOM_RETURN_IF_ERROR(SetBase(&options));
    options.folds = static_cast<int>(folds_);
    for (const std::string& name : accept_) {
      for (int i = 0; i < emulator::kNumRefusalKinds; ++i) {
        const auto kind = static_cast<RefusalKind>(i);
        if (emulator::Name(kind) == name) options.accept.insert(kind);
      }
    }
    std::vector<MeasurementFile> files;
    for (const std::string& name : names) {
      PIPELOOM_ASSIGN_OR_RETURN(const std::string contents, ReadFile(name));
      PIPELOOM_ASSIGN_OR_RETURN(MeasurementFile file,
                                formats::ParseMeasurements(contents, name));
      for (const std::string& warning : file.warnings) {
        context.warn(absl::StrCat("pipeloom calibrate: ", warning));
      }
      files.push_back(std::move(file));
    }
    PIPELOOM_ASSIGN_OR_RETURN(
        Calibration result,
        emulator::Calibrate(files, options, emulator::PredictorOf));
    for (const std::string& rows : result.left_out) {
      context.warn(absl::StrCat("pipeloom calibrate: left out ", rows));
    }
    for (const Refusal& refusal : result.accepted) {
      context.warn(absl::StrCat("pipeloom calibrate: accepted, ",
                                emulator::Name(refusal.kind), ": ",
                                refusal.why));
    }
    ProfileSource source;
    source.section = "measured";
    source.changes = absl::StrCat("medians of ", absl::StrJoin(names, ", "),
                                  "; pipeloom calibrate");
    result.profile.sources.push_back(std::move(source));
    PIPELOOM_RETURN_IF_ERROR(
        WriteFileAtomically(out_, formats::PrintDeviceProfile(result.profile)));
    if (format_ == "json") {
      PrintJson(result, context);
    } else {
      PrintTable(result, context);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status SetBase(emulator::CalibrationOptions* options) {
    emulator::DeviceLimits& limits = options->limits;
    limits.name = device_;
    PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                              FindDataDir(data_dir_));
    const auto read = [](const std::string& path) { return ReadFile(path); };
    if (!base_.empty()) {
      absl::StatusOr<DeviceProfile> base = LoadDeviceProfile(base_, data_dir);
      if (absl::IsNotFound(base.status())) {
        return absl::NotFoundError(absl::StrCat(
            "--base: there is no profile \"", base_, "\"; shipped are ",
            absl::StrJoin(formats::ShippedProfileNames(), ", "),
            "; the path of a file has a slash or ends in .json"));
      }
      PIPELOOM_RETURN_IF_ERROR(base.status());
      options->base = *std::move(base);
    }
    // If there is a cluster file of the device's name, it has the rates.
    const absl::StatusOr<ClusterSpec> cluster =
        formats::LoadCluster(device_, data_dir, read);
    if (cluster.ok()) {
      const DeviceSpec& device = cluster->device;
      limits.bf16_flops_per_second = device.bf16.flops_per_second;
      limits.fp8_flops_per_second = device.fp8.flops_per_second;
      limits.memory_bytes_per_second = device.memory_bandwidth.bytes_per_second;
      // The file has the bandwidth that rings reach, about 0.7 of the links'.
      limits.link_bytes_per_second =
          cluster->intra_node.bandwidth.bytes_per_second / 0.7;
    } else if (!base_.empty() && options->base.device == device_) {
      const DeviceRates& rates = options->base.rates;
      limits.bf16_flops_per_second = rates.bf16_flops_per_second;
      limits.fp8_flops_per_second = rates.fp8_flops_per_second;
      limits.memory_bytes_per_second = rates.bytes_per_second;
    }
    const absl::StatusOr<DeviceProfile> shipped =
        LoadDeviceProfile(device_, data_dir);
    if (shipped.ok() && shipped->derived_from.empty()) {
      limits.multiprocessors = shipped->rates.multiprocessors;
    }
    if (multiprocessors_ > 0) limits.multiprocessors = multiprocessors_;
    if (peak_tflops_ > 0) limits.bf16_flops_per_second = peak_tflops_ * kTera;
    if (peak_fp8_tflops_ > 0) {
      limits.fp8_flops_per_second = peak_fp8_tflops_ * kTera;
    }
    if (memory_gbs_ > 0) limits.memory_bytes_per_second = memory_gbs_ * kGiga;
    if (link_gbs_ > 0) limits.link_bytes_per_second = link_gbs_ * kGiga;
    if (limits.bf16_flops_per_second > 0 &&
        limits.memory_bytes_per_second > 0) {
      return absl::OkStatus();
    }
    return UsageError(absl::StrCat(
        "the rates of device \"", device_, "\" are not known; give ",
        "--peak-tflops and --memory-gbs, or one of the devices that ship: ",
        absl::StrJoin(formats::ShippedClusterNames(), ", ")));
  }

  void PrintTable(const Calibration& result, const Context& context) const {
    Table table(
        {"operator", "points", "sites", "mean", "median", "worst", "worst at"});
    for (const PredictionError& error : result.errors) {
      table.AddRow(
          {KindOf(error), absl::StrCat(error.points), absl::StrCat(error.sites),
           FormatPercent(error.mean), FormatPercent(error.median),
           FormatPercent(error.worst),
           absl::StrFormat("%s: %.1f us for %.1f us",
                           ToString(error.worst_point.query), error.worst_us,
                           error.worst_point.time_us)});
    }
    context.print(
        absl::StrFormat("error on sites not seen, %d folds:\n\n%s\nwrote %s\n",
                        folds_, table.ToString(), out_));
  }

  void PrintJson(const Calibration& result, const Context& context) const {
    formats::JsonWriter json(true);
    json.BeginObject();
    json.Key("device").String(device_);
    json.Key("folds").Int(folds_);
    json.Key("errors").BeginArray();
    for (const PredictionError& error : result.errors) {
      json.BeginObject();
      json.Key("op").String(Name(error.op));
      json.Key("pass").String(Name(error.pass));
      json.Key("dtype").String(Name(error.dtype));
      json.Key("points").Int(error.points);
      json.Key("sites").Int(error.sites);
      json.Key("mean_error_ratio").Number(error.mean);
      json.Key("median_error_ratio").Number(error.median);
      json.Key("worst_error_ratio").Number(error.worst);
      json.EndObject();
    }
    json.EndArray();
    json.Key("accepted").BeginArray();
    for (const Refusal& refusal : result.accepted) {
      json.String(
          absl::StrCat(emulator::Name(refusal.kind), ": ", refusal.why));
    }
    json.EndArray();
    json.Key("out").String(out_);
    context.print(json.EndObject().text() + "\n");
  }

  std::string device_{};
  std::vector<std::string> measurements_{};
  std::string out_{};
  std::string base_{};
  std::vector<std::string> accept_{};
  int64_t folds_ = 5;
  double peak_tflops_ = 0;
  double peak_fp8_tflops_ = 0;
  double memory_gbs_ = 0;
  double link_gbs_ = 0;
  int64_t multiprocessors_ = 0;
  std::string format_ = "table";
  std::string data_dir_{};
};

}  // namespace

std::unique_ptr<Command> MakeCalibrateCommand() {
  return std::make_unique<CalibrateCommand>();
}

}  // namespace pipeloom::cli
