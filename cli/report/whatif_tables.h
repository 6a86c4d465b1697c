// Tables of `whatif` about the cluster (studies/whatif/infrastructure.h).
#ifndef PIPELOOM_CLI_REPORT_WHATIF_TABLES_H_
#define PIPELOOM_CLI_REPORT_WHATIF_TABLES_H_

#include <vector>

#include "cli/console/table.h"
#include "studies/whatif/infrastructure.h"

namespace pipeloom::cli {

// Returns a table with a row for each domain and share of faulty nodes. The MFU
// is `mfu` of the job times the usable share.
Table DomainTable(const std::vector<studies::DomainWaste>& domains, double mfu);

// Returns a table with a row for each way to reduce gradients. REQUIRES: the
// first is that of exact gradients.
Table CompressionTable(
    const std::vector<studies::GradientReduction>& reductions);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_WHATIF_TABLES_H_
