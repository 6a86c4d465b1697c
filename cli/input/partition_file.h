// Writes a partition as a file to read, edit and give back
// (formats/job/partition_reader.h), and shows it as a table.
#ifndef PIPELOOM_CLI_INPUT_PARTITION_FILE_H_
#define PIPELOOM_CLI_INPUT_PARTITION_FILE_H_

#include <string>

#include "cli/console/table.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::cli {

// JSON of pipeloom.v1.PartitionFile, a stage a line; `with_layout`: with the
// job's layout and microbatches, which whoever plans with the file takes over.
std::string PartitionJson(const JobSpec& job, const Partition& partition,
                          const std::string& comment, bool with_layout = false);

// A row a module: its sub-microbatches, segments and layers by stage.
Table PartitionTable(const JobSpec& job, const Partition& partition);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PARTITION_FILE_H_
