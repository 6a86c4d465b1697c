// Errors of one device profile in predicting the points of another.
//
//   profile_accuracy MODEL.json JUDGE.json   mean error by table
//   profile_accuracy --left-out PROFILE...   mean errors of each device without
//                                            its own points
//   profile_accuracy --fit IN.json OUT.json  writes IN with its constants
//                                            fitted, in canonical form
//
// The model's own points do not count as measured if the judge's device
// differs. Called by scripts/derive_profiles.py --check. A device that is left
// out is priced by the profile of the one that is nearest by data sheet: the
// least sum of the logarithms' differences of peak and of memory bandwidth,
// both a multiprocessor.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/numeric.h"
#include "emulator/calibration/query_cost.h"
#include "emulator/cost/profile_cost.h"
#include "formats/profile/profile_reader.h"

namespace pipeloom {
namespace {

absl::StatusOr<DeviceProfile> Load(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError("cannot read " + path);
  const std::string text((std::istreambuf_iterator<char>(in)),
                         std::istreambuf_iterator<char>());
  return formats::ParseDeviceProfile(text, path);
}

ClusterSpec ClusterOf(const DeviceProfile& profile) {
  ClusterSpec cluster;
  cluster.name = profile.device;
  cluster.num_nodes = 1;
  cluster.gpus_per_node = 8;
  cluster.intra_node = {Duration(2000), {1e11}};
  cluster.inter_node = {Duration(2000), {1e10}};
  cluster.device.name = profile.device;
  cluster.device.bf16 = {profile.rates.bf16_flops_per_second};
  cluster.device.fp8 = {profile.rates.fp8_flops_per_second};
  cluster.device.memory_bandwidth = {profile.rates.bytes_per_second};
  cluster.device.memory = Bytes(int64_t{80} << 30);
  cluster.device.gemm_efficiency = 0.8;
  cluster.device.attention_efficiency = 0.6;
  cluster.device.memory_efficiency = 0.8;
  cluster.device.kernel_overhead = Duration(4000);
  return cluster;
}

class Judge {
 public:
  Judge(const DeviceProfile& model, const DeviceProfile& judge)
      : costs_(ClusterOf(judge), {}, model) {}

  void Point(const emulator::Op& op, double us) {
    const emulator::OpPrice price = costs_.Price(op);
    errors_.push_back(ToSeconds(price.time) * 1e6 / us - 1);
    ++sources_[static_cast<size_t>(price.source)];
  }

  // Returns the mean error of the points since the last call, in percent; 0 if
  // there are none. Prints a line of them if `print`.
  double Take(const std::string& table, bool print) {
    if (errors_.empty()) return 0;
    double sum = 0;
    double bias = 0;
    for (double& error : errors_) {
      bias += error;
      error = std::abs(error);
      sum += error;
    }
    std::sort(errors_.begin(), errors_.end());
    const auto count = static_cast<double>(errors_.size());
    if (print) {
      std::cout << absl::StrFormat(
          "%-36s %6d points  mean %5.2f %%  median %5.2f %%  p95 %5.1f %%  "
          "bias "
          "%+5.1f %%  measured %d, interpolated %d, roofline %d\n",
          table, errors_.size(), 100 * sum / count,
          100 * errors_[errors_.size() / 2],
          100 * errors_[errors_.size() * 95 / 100], 100 * bias / count,
          sources_[0], sources_[1], sources_[2]);
    }
    const double mean = 100 * sum / count;
    errors_.clear();
    std::fill(std::begin(sources_), std::end(sources_), 0);
    return mean;
  }

 private:
  emulator::ProfileCost costs_;
  std::vector<double> errors_{};
  int sources_[3] = {};
};

// Returns the mean error of each table, in percent, by its name.
std::map<std::string, double> JudgeAll(const DeviceProfile& model,
                                       const DeviceProfile& points,
                                       bool print) {
  Judge judge(model, points);
  std::map<std::string, double> errors;
  const auto take = [&](const std::string& table) {
    errors[table] = judge.Take(table, print);
  };
  for (const GemmTable& t : points.gemm) {
    for (size_t i = 0; i < t.size(); ++i) {
      OpQuery q{.op = OpType::kGemm, .pass = t.pass, .dtype = t.dtype};
      q.m = t.m[i];
      q.n = t.n[i];
      q.k = t.k[i];
      if (!t.groups.empty() && t.groups[i] > 1) {
        q.op = OpType::kGroupedGemm;
        q.groups = t.groups[i];
      }
      emulator::Op op = emulator::OpsOf(q).front();
      if (t.pass == QueryPass::kWeightGrad) {
        std::get<emulator::GemmOp>(op).result_bytes = 8;
      }
      judge.Point(op, t.us[i]);
    }
    take(absl::StrFormat("gemm %s %s", Name(t.pass), Name(t.dtype)));
  }
  for (const AttentionTable& t : points.attention) {
    for (size_t i = 0; i < t.size(); ++i) {
      OpQuery q{.op = OpType::kAttention,
                .pass = t.pass,
                .dtype = t.dtype,
                .mask = t.mask};
      q.batch = t.batch[i];
      q.seq = t.seq[i];
      q.heads = t.heads[i];
      q.kv_heads = t.kv_heads[i];
      q.head_dim = t.head_dim[i];
      if (!t.window.empty()) q.window = t.window[i];
      emulator::Op op = emulator::OpsOf(q).front();
      auto& attention = std::get<emulator::AttentionOp>(op);
      attention.value_dim = t.value_dim[i];
      attention.flops *= 0.5 + 0.5 * static_cast<double>(t.value_dim[i]) /
                                   static_cast<double>(t.head_dim[i]);
      judge.Point(op, t.us[i]);
    }
    take(absl::StrFormat("attention %s %s %s", Name(t.mask), Name(t.pass),
                         Name(t.dtype)));
  }
  for (const StreamTable& t : points.stream) {
    for (size_t i = 0; i < t.size(); ++i) {
      OpQuery q{.op = t.op, .pass = t.pass, .dtype = t.dtype};
      q.tokens = t.tokens[i];
      q.width = t.width[i];
      q.parameters = t.tokens[i];
      judge.Point(emulator::OpsOf(q).front(), t.us[i]);
    }
    take(absl::StrFormat("%s %s", Name(t.op), Name(t.pass)));
  }
  return errors;
}

double Distance(const DeviceRates& a, const DeviceRates& b) {
  const double processors = Real(a.multiprocessors) / Real(b.multiprocessors);
  return std::abs(std::log(a.bf16_flops_per_second / b.bf16_flops_per_second /
                           processors)) +
         std::abs(
             std::log(a.bytes_per_second / b.bytes_per_second / processors));
}

// Prints the errors of each profile's points by that of the nearest device.
void JudgeLeftOut(const std::vector<DeviceProfile>& profiles) {
  const std::vector<std::string> tables = {
      "gemm forward bf16", "gemm forward fp8", "attention causal forward bf16",
      "attention full forward bf16"};
  std::cout << absl::StrFormat("%-12s %-12s", "judged", "by");
  for (const std::string& table : tables) {
    std::cout << absl::StrFormat(" %30s", table);
  }
  std::cout << "\n";
  for (const DeviceProfile& judged : profiles) {
    const DeviceProfile* nearest = nullptr;
    for (const DeviceProfile& other : profiles) {
      if (other.device == judged.device) continue;
      if (nearest == nullptr || Distance(other.rates, judged.rates) <
                                    Distance(nearest->rates, judged.rates)) {
        nearest = &other;
      }
    }
    if (nearest == nullptr) continue;
    const auto errors = JudgeAll(*nearest, judged, /*print=*/false);
    std::cout << absl::StrFormat("%-12s %-12s", judged.device, nearest->device);
    for (const std::string& table : tables) {
      const auto found = errors.find(table);
      std::cout << (found == errors.end()
                        ? absl::StrFormat(" %30s", "-")
                        : absl::StrFormat(" %28.1f %%", found->second));
    }
    std::cout << "\n";
  }
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[0] == "--fit") {
    absl::StatusOr<DeviceProfile> profile = Load(arguments[1]);
    if (!profile.ok()) {
      std::cerr << profile.status().message() << "\n";
      return 1;
    }
    emulator::FitProfile(&*profile);
    std::ofstream(arguments[2]) << formats::PrintDeviceProfile(*profile);
    return 0;
  }
  if (!arguments.empty() && arguments[0] == "--left-out") {
    std::vector<DeviceProfile> profiles;
    for (size_t i = 1; i < arguments.size(); ++i) {
      absl::StatusOr<DeviceProfile> profile = Load(arguments[i]);
      if (!profile.ok()) {
        std::cerr << profile.status().message() << "\n";
        return 1;
      }
      // A derived profile holds the points of another device.
      if (profile->derived_from.empty()) {
        profiles.push_back(*std::move(profile));
      }
    }
    if (profiles.size() < 2) {
      std::cerr << "profile_accuracy --left-out: " << profiles.size()
                << " measured profiles; it needs two or more\n";
      return 2;
    }
    JudgeLeftOut(profiles);
    return 0;
  }
  if (arguments.size() != 2) {
    std::cerr << "usage: profile_accuracy MODEL.json JUDGE.json\n"
                 "       profile_accuracy --left-out PROFILE.json...\n"
                 "       profile_accuracy --fit IN.json OUT.json\n";
    return 2;
  }
  const absl::StatusOr<DeviceProfile> model = Load(arguments[0]);
  const absl::StatusOr<DeviceProfile> judge = Load(arguments[1]);
  for (const auto* loaded : {&model, &judge}) {
    if (loaded->ok()) continue;
    std::cerr << loaded->status().message() << "\n";
    return 1;
  }
  JudgeAll(*model, *judge, /*print=*/true);
  return 0;
}

}  // namespace
}  // namespace pipeloom

int main(int argc, char** argv) {
  return pipeloom::Main(std::vector<std::string>(argv + 1, argv + argc));
}
