#include "studies/job/planned_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/job/spec_loader.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MfuNotesTest, NoProductIsFasterThanThePeakOfItsPrecision) {
  ASSERT_OK_AND_ASSIGN(
      JobSpec job,
      formats::LoadJob(
          "llama3-8b", PIPELOOM_SOURCE_DIR "/workloads",
          [](const std::string& path) { return formats::ReadFile(path); }));
  DeviceSpec& device = job.cluster.device;
  device.bf16.flops_per_second = 1e15;
  device.fp8.flops_per_second = 2e15;
  EXPECT_THAT(MfuNotes(job, 1), IsEmpty());
  EXPECT_THAT(MfuNotes(job, 39.967),
              ElementsAre(HasSubstr("MFU is 3996.7 %, and the GPUs' peak "
                                    "allows 100 %")));
  job.setup.fp8_products = true;
  EXPECT_THAT(MfuNotes(job, 2), IsEmpty());
  EXPECT_THAT(MfuNotes(job, 2.01), ElementsAre(HasSubstr("allows 200 %")));
  job.setup.fp8_recipe = Fp8Recipe::kFp4;
  EXPECT_THAT(MfuNotes(job, 2.01), ElementsAre(HasSubstr("allows 200 %")))
      << "as the device has no FP4 units";
  device.bf16.flops_per_second = 2.25e15;
  device.fp8.flops_per_second = 4.5e15;
  EXPECT_THAT(MfuNotes(job, 4), IsEmpty());
  EXPECT_THAT(MfuNotes(job, 4.01), ElementsAre(HasSubstr("allows 400 %")));
  job.setup.fp8_products = false;
  EXPECT_THAT(MfuNotes(job, 1.01), ElementsAre(HasSubstr("allows 100 %")));
  // One group of nodes in another precision.
  job.cluster.node_groups.push_back({.first_node = 0,
                                     .num_nodes = 1,
                                     .device = device,
                                     .precision = Precision::kFp8});
  EXPECT_THAT(MfuNotes(job, 2), IsEmpty());
}

}  // namespace
}  // namespace pipeloom::studies
