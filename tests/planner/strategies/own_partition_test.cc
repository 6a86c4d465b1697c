// The partition of pipeloom's own rule.
#include "emulator/stage/stage_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "partition/placement/placement.h"
#include "planner/strategies/megatron_tuned.h"
#include "planner/strategies/pipeloom_strategy.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::testing::Contains;
using ::testing::Gt;

// Images are most of the work. With whole microbatches their passes are few and
// long.
TEST(OwnPartitionTest, MayTakeOthersStagesWithItsOwnSubMicrobatches) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, testing::ShippedJob("dip-vlm-s"));
  job.parallel.tp = 4;
  job.parallel.pp = 4;
  job.parallel.dp = 1;
  job.training.microbatches = 4;
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                       testing::ShippedBatch("mixed.jsonl"));
  ASSERT_OK_AND_ASSIGN(const Partition rule,
                       partition::SeparatedPartition(job, costs, batch));
  ASSERT_THAT(rule.sub_microbatch_instances, Contains(Gt(0)));
  ASSERT_OK_AND_ASSIGN(const Partition tuned,
                       MakeMegatronTuned()->MakePartition(costs, batch, {}));
  ASSERT_OK_AND_ASSIGN(const Partition own,
                       MakePipeloom()->MakePartition(costs, batch, {}));
  EXPECT_EQ(own.sub_microbatch_instances, rule.sub_microbatch_instances);
  EXPECT_EQ(own.stages, tuned.stages);
}

}  // namespace
}  // namespace pipeloom::planner
