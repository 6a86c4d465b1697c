// Writes a partition as a file to read, edit and give back
// (workloads/partition_reader.h), and shows it as a table.
#ifndef PIPELOOM_CLI_PARTITION_FILE_H_
#define PIPELOOM_CLI_PARTITION_FILE_H_

#include <string>

#include "cli/table.h"
#include "ir/job_spec.h"
#include "ir/partition.h"

namespace pipeloom::cli {

// JSON of pipeloom.v1.PartitionFile, a stage a line; `with_layout`: with the
// job's layout and microbatches, which whoever plans with the file takes over.
std::string PartitionJson(const JobSpec& job, const Partition& partition,
                          const std::string& comment, bool with_layout = false);

// A row a module: its sub-microbatches, segments and layers by stage.
Table PartitionTable(const JobSpec& job, const Partition& partition);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_PARTITION_FILE_H_
