#include "cli/report/whatif_tables.h"

#include <string>

#include "absl/strings/str_format.h"

namespace pipeloom::cli {

Table DomainTable(const std::vector<studies::DomainWaste>& domains,
                  double mfu) {
  Table table({"domain", "faulty nodes", "wasted GPUs", "99 % of cases below",
               "usable", "MFU of the cluster"});
  for (const studies::DomainWaste& waste : domains) {
    if (!waste.status.ok()) {
      table.AddRow({waste.domain, std::string(waste.status.message())});
      continue;
    }
    for (const emulator::WasteSample& sample : waste.samples) {
      table.AddRow({waste.domain, FormatPercent(sample.fault_ratio, 0),
                    FormatPercent(sample.mean_waste_ratio, 2),
                    FormatPercent(sample.p99_waste_ratio, 2),
                    FormatPercent(sample.mean_mfu_scale),
                    FormatPercent(sample.mean_mfu_scale * mfu)});
    }
  }
  return table;
}

Table CompressionTable(
    const std::vector<studies::GradientReduction>& reductions) {
  Table table(
      {"gradients", "reduction", "coding", "together", "saved", "pays below"});
  const Duration exact = reductions.front().reduction;
  table.AddRow({reductions.front().gradients, FormatDuration(exact), "-",
                FormatDuration(exact), "-", "-"});
  for (size_t i = 1; i < reductions.size(); ++i) {
    const studies::GradientReduction& way = reductions[i];
    table.AddRow({way.gradients, FormatDuration(way.reduction),
                  FormatDuration(way.coding), FormatDuration(way.total()),
                  FormatDuration(exact - way.total()),
                  absl::StrFormat("%.0f GB/s", way.pays_below / 1e9)});
  }
  return table;
}

}  // namespace pipeloom::cli
