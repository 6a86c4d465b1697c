// A partition as a file that users read, edit and give back
// (formats/job/partition_reader.h), and as a table.
#ifndef PIPELOOM_CLI_REPORT_PARTITION_FILE_H_
#define PIPELOOM_CLI_REPORT_PARTITION_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cli/console/table.h"
#include "formats/text/json_writer.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::cli {

// Returns the JSON of pipeloom.v1.PartitionFile, one line per stage. With
// `with_layout`, it includes the job's layout and microbatches, which commands
// that plan with the file take over.
std::string PartitionJson(const JobSpec& job, const Partition& partition,
                          const std::string& comment, bool with_layout = false);

// Writes the same values as members of an object that is open: "modules" and
// "stages", and "layout" with the job's layout.
void WritePartition(const JobSpec& job, const Partition& partition,
                    formats::JsonWriter* json);

// Writes a layout as members of an object that is open.
void WriteLayout(const ParallelLayout& layout,
                 const std::vector<ModuleParallelism>& modules,
                 int32_t microbatches, formats::JsonWriter* json);

// Returns a table with a row for each module: its sub-microbatches, segments
// and layers of each stage.
Table PartitionTable(const JobSpec& job, const Partition& partition);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_PARTITION_FILE_H_
