// Plans a step of a shipped job. usage: consumer DATA_DIR
#include <pipeloom/files.h>
#include <pipeloom/job_planner.h>
#include <pipeloom/operators.h>
#include <pipeloom/profiles.h>

#include <cstdio>
#include <fstream>
#include <iterator>

int main(int, char** argv) {
  using namespace pipeloom;
  const std::string data = argv[1];
  const auto read = [](const std::string& path) -> absl::StatusOr<std::string> {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto job = formats::LoadJob("dip-vlm-s", data, read);
  const auto text = read(data + "/batches/mixed.jsonl");
  const auto batch = formats::ParseBatch(*text, "mixed.jsonl", nullptr);
  // Without these it plans by the peak rates of the device.
  const auto profile =
      formats::DeviceProfiles(data, read).Find(job->cluster.device.name);
  const auto planner = planner::JobPlanner::Create(
      *job, *batch,
      {.operators =
           emulator::MakeOpCosts(job->cluster, job->parallel, profile->get())});
  const auto plan =
      (*planner)->PlanStep(*batch, {.budget = {.max_evaluations = 60}});
  std::printf("%.3f s\n", ToSeconds(plan->predicted.step_time()));
}
