#include "studies/job/launch_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/job/spec_loader.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A step of llama3-8b: one microbatch of one sequence.
class LaunchTimesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        job_, formats::LoadJob("llama3-8b", PIPELOOM_SOURCE_DIR "/workloads",
                               [](const std::string& path) {
                                 return formats::ReadFile(path);
                               }));
  }
  Microbatches Of(int64_t tokens) const {
    Microbatches m;
    m.num_microbatches = 1;
    m.sub_microbatches.push_back(
        {.module = ModuleId(0),
         .microbatch = MicrobatchId(0),
         .shape = {.instances = 1,
                   .tokens = tokens,
                   .output_tokens = tokens,
                   .squared_tokens = static_cast<double>(tokens * tokens)}});
    return m;
  }
  JobSpec job_{};
};

TEST_F(LaunchTimesTest, LaunchesAreALeastTimeOfShortPassesOnly) {
  const auto small = LaunchTimesOf(job_, Of(64), nullptr, Microseconds(30));
  ASSERT_THAT(small, SizeIs(1));
  // 32 layers of at least 25 kernels.
  EXPECT_GE(small[0].with_launches, 32 * 25 * Microseconds(30));
  EXPECT_LT(small[0].on_gpu, small[0].with_launches / 2);
  const auto large = LaunchTimesOf(job_, Of(32768), nullptr, Microseconds(30));
  EXPECT_LT(ToSeconds(large[0].with_launches),
            1.01 * ToSeconds(large[0].on_gpu));
  // Graphs launch all kernels at once.
  job_.setup.graphs = CudaGraphs::kIteration;
  const auto graph = LaunchTimesOf(job_, Of(64), nullptr, Microseconds(30));
  EXPECT_EQ(graph[0].with_launches, graph[0].on_gpu);
}

TEST_F(LaunchTimesTest, AShapeWithoutAGraphIsLaunchedByTheHost) {
  job_.setup.graphs = CudaGraphs::kLayers;
  const auto graphs = LaunchTimesOf(job_, Of(64), nullptr, Microseconds(30));
  Microbatches larger = Of(64);
  larger.sub_microbatches[SubMicrobatchId(0)].shape.host_launched = true;
  const auto host = LaunchTimesOf(job_, larger, nullptr, Microseconds(30));
  job_.setup.graphs = CudaGraphs::kNone;
  const auto none = LaunchTimesOf(job_, Of(64), nullptr, Microseconds(30));
  EXPECT_EQ(host[0].with_launches, none[0].with_launches);
  EXPECT_LT(graphs[0].with_launches, host[0].with_launches);
}

TEST_F(LaunchTimesTest, GraphsOfShapesThatDifferAreNoted) {
  Microbatches two = Of(64);
  SubMicrobatch second = two.sub_microbatches[SubMicrobatchId(0)];
  second.microbatch = MicrobatchId(1);
  two.sub_microbatches.push_back(second);
  two.num_microbatches = 2;
  job_.setup.graphs = CudaGraphs::kLayers;
  EXPECT_THAT(GraphNotes(job_, two), IsEmpty());
  two.sub_microbatches[SubMicrobatchId(1)].shape.tokens = 65;
  const auto notes = GraphNotes(job_, two);
  ASSERT_THAT(notes, SizeIs(1));
  EXPECT_THAT(notes[0], HasSubstr("has 2 shapes in this step"));
  job_.setup.graphs = CudaGraphs::kIteration;
  EXPECT_THAT(GraphNotes(job_, two), SizeIs(2));
  job_.setup.graphs = CudaGraphs::kLayers;
  job_.training.shape_buckets = {{job_.model.modules[ModuleId(0)].name, {128}}};
  EXPECT_THAT(GraphNotes(job_, two), IsEmpty());
  job_.setup.graphs = CudaGraphs::kNone;
  job_.training.shape_buckets.clear();
  EXPECT_THAT(GraphNotes(job_, two), IsEmpty());
}

TEST_F(LaunchTimesTest, AJobThatLeavesLaunchesOutIsToldWhereTheyCount) {
  const auto notes = LaunchNotes(job_, Of(64), nullptr);
  ASSERT_THAT(notes, SizeIs(1));
  EXPECT_THAT(notes[0], HasSubstr("setup.host_per_kernel_us"));
  EXPECT_THAT(notes[0], HasSubstr(job_.model.modules[ModuleId(0)].name));
  EXPECT_THAT(LaunchNotes(job_, Of(32768), nullptr), IsEmpty());
  job_.setup.host_per_kernel = Microseconds(5);
  EXPECT_THAT(LaunchNotes(job_, Of(64), nullptr), IsEmpty());
}

}  // namespace
}  // namespace pipeloom::studies
