#include "partition/batching/step_instances.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/token_count.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;

// Against the counts by sample, which the costs are made of.
TEST(StepInstances, AddUpToTheWorkOfTheirSamples) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = 3;
  job.parallel.dp = 2;
  job.cluster.num_nodes = 2;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    const BatchMetadata batch = RandomBatch(seed, /*num_samples=*/60, 3);
    ASSERT_OK_AND_ASSIGN(const PackedStep packed, PackStep(job, batch, 0));
    ASSERT_EQ(packed.packed.size(), 2);
    for (size_t replica = 0; replica < 2; ++replica) {
      const StepInstances all = InstancesOf(job.model, packed, replica);
      ASSERT_EQ(all.size(), 3);
      for (const MicrobatchId mb : all.ids()) {
        const std::vector<SampleId>& samples =
            packed.packed[replica][static_cast<size_t>(mb.value())];
        ASSERT_EQ(all[mb].size(), job.model.modules.size());
        for (const ModuleId m : job.model.modules.ids()) {
          std::vector<WorkShape> sums(samples.size());
          int32_t last = 0;
          for (const OwnedInstance& instance : all[mb][m]) {
            EXPECT_EQ(instance.shape.instances, 1);
            EXPECT_GE(instance.owner, last);  // Samples in their order.
            last = instance.owner;
            sums.at(static_cast<size_t>(last)) += instance.shape;
          }
          for (size_t i = 0; i < samples.size(); ++i) {
            const WorkShape whole =
                SampleWork(job.model, packed.samples.samples[samples[i]])[m];
            EXPECT_EQ(sums[i].tokens, whole.tokens);
            EXPECT_EQ(sums[i].output_tokens, whole.output_tokens);
            EXPECT_EQ(sums[i].instances, whole.instances);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipeloom::partition
