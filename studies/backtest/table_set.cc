#include "studies/backtest/table_set.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "studies/backtest/against_prices.h"

namespace pipeloom::studies {
namespace {

using formats::MeasuredRun;

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(prefix, ": ", status.message()));
}

std::string FolderOf(const std::string& file) {
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

std::string NameOf(const std::string& file) {
  std::string name = file.substr(FolderOf(file).size());
  if (absl::EndsWith(name, ".csv")) name.resize(name.size() - 4);
  return name;
}

absl::StatusOr<MeasuredTable> LoadTable(const std::string& file,
                                        const std::string& data_dir,
                                        const formats::FileReader& read) {
  MeasuredTable table{.file = file, .name = NameOf(file)};
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, read(file));
  table.predicted = absl::StartsWith(text, "# Predicted");
  PIPELOOM_ASSIGN_OR_RETURN(table.runs, formats::ParseMeasuredRuns(text, file));
  std::map<std::string, ClusterSpec> known;
  for (MeasuredRun& run : table.runs) {
    const auto place = [&](const absl::Status& status) {
      return Prefixed(absl::StrCat(file, ":", run.line), status);
    };
    if (!run.model_name.empty()) {
      absl::StatusOr<ModelSpec> model =
          formats::LoadModel(run.model_name, data_dir, read);
      if (!model.ok()) return place(model.status());
      run.model = *std::move(model);
      formats::AddPredictedTokens(
          run.predicted_tokens,
          &run.model.modules[ModuleId(run.model.modules.size() - 1)]);
      for (ModuleSpec& module : run.model.modules) {
        for (LayerSpec& layer : module.layers) {
          layer.attention.scaled_rotary |=
              run.scaled_rotary && layer.attention.heads > 0;
        }
      }
    }
    auto it = known.find(run.cluster);
    if (it == known.end()) {
      const bool relative =
          absl::EndsWith(run.cluster, ".json") && run.cluster[0] != '/';
      absl::StatusOr<ClusterSpec> cluster = formats::LoadCluster(
          relative ? absl::StrCat(FolderOf(file), run.cluster) : run.cluster,
          data_dir, read);
      if (!cluster.ok()) return place(cluster.status());
      it = known.emplace(run.cluster, *std::move(cluster)).first;
    }
    table.clusters.push_back(it->second);
  }
  return table;
}

// Returns the sets of runs that are compared at once: those of a framework if
// its scalar is fitted, else every run by itself.
std::vector<std::vector<size_t>> GroupRuns(const std::vector<MeasuredRun>& runs,
                                           bool fit) {
  std::vector<std::vector<size_t>> groups;
  std::map<std::string, size_t> group_of;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto [it, is_new] =
        group_of.emplace(runs[i].framework, groups.size());
    if (!fit || is_new) {
      groups.push_back({i});
    } else {
      groups[it->second].push_back(i);
    }
  }
  return groups;
}

// The state that the tables of a set share.
struct Work {
  const BacktestOptions& options;
  const StudyContext& context;
  const ProgressCallback& progress;
  AgainstPrices prices;
  int64_t done = 0;
};

absl::StatusOr<Comparison> CompareTable(const MeasuredTable& table,
                                        Work* work) {
  const auto stop_at = [&](size_t i) -> absl::Status {
    work->progress(work->done,
                   absl::StrCat(table.name, ", ", table.runs[i].name));
    if (!work->context.stop.stop_requested()) return absl::OkStatus();
    return absl::CancelledError("stopped");
  };
  Comparison result;
  result.runs.resize(table.runs.size());
  std::map<std::string, FrameworkScalar> scalars;
  for (const std::vector<size_t>& group :
       GroupRuns(table.runs, work->options.fit)) {
    std::vector<MeasuredRun> runs;
    std::vector<ClusterSpec> clusters;
    std::vector<const emulator::OpCostModel*> measured;
    std::vector<std::string> prices;
    for (const size_t i : group) {
      PIPELOOM_RETURN_IF_ERROR(stop_at(i));
      runs.push_back(table.runs[i]);
      clusters.push_back(table.clusters[i]);
      PIPELOOM_ASSIGN_OR_RETURN(
          const AgainstPrices::Prices* const of_run,
          work->prices.Of(clusters.back(), runs.back().parallel));
      measured.push_back(of_run->costs.get());
      prices.push_back(of_run->name);
    }
    absl::StatusOr<Comparison> compared =
        CompareRuns(std::move(runs), clusters, work->options.fit, measured,
                    work->context.stop);
    if (!compared.ok()) return Prefixed(table.file, compared.status());
    for (size_t k = 0; k < group.size(); ++k) {
      result.runs[group[k]] = std::move(compared->runs[k]);
      result.runs[group[k]].prices = std::move(prices[k]);
    }
    // Without a fit it is that of the framework's first run.
    for (FrameworkScalar& scalar : compared->scalars) {
      const std::string framework = scalar.framework;
      scalars.emplace(framework, std::move(scalar));
    }
    work->done += static_cast<int64_t>(group.size());
  }
  for (auto& [framework, scalar] : scalars) {
    result.scalars.push_back(std::move(scalar));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<MeasuredTable>> LoadTables(
    const std::vector<std::string>& files, const std::string& data_dir,
    const formats::FileReader& read) {
  std::vector<MeasuredTable> tables;
  std::set<std::string> seen;
  std::map<std::string, int> named;
  for (const std::string& file : files) {
    if (!seen.insert(file).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ": is given twice; name each table once"));
    }
    PIPELOOM_ASSIGN_OR_RETURN(MeasuredTable table,
                              LoadTable(file, data_dir, read));
    ++named[table.name];
    tables.push_back(std::move(table));
  }
  for (MeasuredTable& table : tables) {
    if (named[table.name] > 1) table.name = table.file;
  }
  return tables;
}

absl::StatusOr<std::vector<TableComparison>> CompareTables(
    const std::vector<MeasuredTable>& tables, const BacktestOptions& options,
    const StudyContext& context) {
  int64_t total = 0;
  for (const MeasuredTable& table : tables) {
    total += static_cast<int64_t>(table.runs.size());
  }
  const ProgressCallback progress =
      context.StartProgress("comparing runs", total);
  Work work{.options = options,
            .context = context,
            .progress = progress,
            .prices = AgainstPrices(options.profiles)};
  std::vector<TableComparison> results;
  for (const MeasuredTable& table : tables) {
    TableComparison result{.name = table.name, .predicted = table.predicted};
    PIPELOOM_ASSIGN_OR_RETURN(result.comparison, CompareTable(table, &work));
    for (const ClusterSpec& cluster : table.clusters) {
      const std::string& device = cluster.device.name;
      result.devices.push_back(
          absl::AsciiStrToUpper(device.substr(0, device.find('-'))));
    }
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace pipeloom::studies
