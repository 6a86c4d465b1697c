// The extension module pipeloom._native. python/pipeloom/_native.pyi documents
// its functions; python/pipeloom/planner has the interface for people.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/flags.h"
#include "cli/console/outputs.h"
#include "formats/job/job_overrides.h"
#include "formats/job/model_writer.h"
#include "formats/job/spec_loader.h"
#include "ir/job/job_spec.h"
#include "ir/text/text_format.h"
#include "planner/strategies/registry.h"
#include "proto/convert/serialize_plan.h"
#include "python/native/interruptible.h"
#include "python/native/job_plan.h"
#include "python/native/step_plan.h"

namespace pipeloom::python {
namespace {

namespace nb = nanobind;

using StepPlanPtr = std::shared_ptr<const StepPlan>;

// Returns whether the caller can put the error right by other arguments.
bool IsBadInput(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
         absl::IsOutOfRange(status) || absl::IsPermissionDenied(status) ||
         cli::IsUsageError(status);
}

// Returns "" for success, otherwise the name of the exception to raise.
const char* ExceptionOf(const absl::Status& status) {
  if (status.ok()) return "";
  return IsBadInput(status) ? "ValueError" : "RuntimeError";
}

void ThrowUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  if (IsBadInput(status)) throw nb::value_error(message.c_str());
  throw std::runtime_error(message);
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowUnlessOk(value.status());
  return *std::move(value);
}

absl::StatusOr<std::string> Read(const std::string& path) {
  return cli::ReadFile(path);
}

absl::Status RunCommand(const std::vector<std::string>& arguments,
                        const cli::Context& context) {
  for (const auto& command : cli::AllCommands()) {
    if (arguments.empty() || command->text().name != arguments[0]) continue;
    const std::vector<cli::Flag> flags = command->Flags();
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::vector<std::string> args,
        cli::ParseFlags(flags, absl::MakeConstSpan(arguments).subspan(1)));
    PIPELOOM_RETURN_IF_ERROR(cli::CheckOutputs(flags, args));
    return command->Run(args, context);
  }
  return absl::InvalidArgumentError("there is no such command");
}

nb::tuple Run(const std::vector<std::string>& arguments,
              const nb::object& progress) {
  const CallResult done = RunInterruptible(
      [arguments](const cli::Context& context) {
        return RunCommand(arguments, context);
      },
      progress);
  return nb::make_tuple(ExceptionOf(done.status),
                        std::string(done.status.message()), done.printed,
                        done.notes);
}

nb::list Counts(const std::vector<Bytes>& bytes) {
  nb::list counts;
  for (const Bytes b : bytes) counts.append(b.count());
  return counts;
}

nb::dict FiguresOf(const PlannedStep& step) {
  nb::dict figures;
  figures["step"] = step.step;
  figures["samples"] = step.num_samples;
  figures["step_time_us"] = ToMicroseconds(step.step_time);
  figures["lower_bound_us"] = ToMicroseconds(step.lower_bound);
  figures["bound_source"] = step.bound_source;
  figures["gap_ratio"] = step.gap_ratio;
  figures["any_partition_gap_ratio"] = step.any_partition_gap;
  figures["bubble_ratio"] = step.bubble_ratio;
  figures["epilogue_ratio"] = step.epilogue_ratio;
  figures["mfu"] = step.mfu;
  figures["peak_bytes"] = Counts(step.peak_bytes);
  figures["search_us"] = ToMicroseconds(step.search_time);
  figures["evaluations"] = step.evaluations;
  return figures;
}

nb::dict TrainerDict(const TrainerFiles& files) {
  nb::list schedules;
  for (const auto& step : files.schedules) {
    nb::list replicas;
    for (const TrainerFiles::Schedule& file : step) {
      replicas.append(nb::make_tuple(file.extension, file.text));
    }
    schedules.append(replicas);
  }
  nb::dict all;
  all["name"] = files.trainer;
  all["schedules"] = schedules;
  all["launch_parts"] = files.launch_parts;
  all["launch_extension"] = files.launch_extension;
  return all;
}

nb::dict PlanDict(const JobPlan& plan) {
  nb::list steps;
  for (const PlannedStep& step : plan.steps) {
    nb::dict one = FiguresOf(step);
    one["slowest"] = step.slowest;
    one["replicas"] = step.replicas;
    steps.append(one);
  }
  nb::dict all;
  all["job"] = plan.job;
  all["strategy"] = plan.strategy;
  all["memory_limit_bytes"] = plan.memory_limit.count();
  all["mean_step_time_us"] = ToMicroseconds(plan.means.step_time);
  all["steps"] = steps;
  if (plan.trainer.has_value()) all["trainer"] = TrainerDict(*plan.trainer);
  return all;
}

nb::tuple Plan(const std::vector<std::string>& arguments,
               const nb::object& progress) {
  const auto plan = std::make_shared<JobPlan>();
  const CallResult done = RunInterruptible(
      [plan, arguments](const cli::Context& context) -> absl::Status {
        PIPELOOM_ASSIGN_OR_RETURN(*plan, PlanJob(arguments, context));
        return absl::OkStatus();
      },
      progress);
  nb::object value = nb::none();
  if (done.status.ok()) value = PlanDict(*plan);
  return nb::make_tuple(ExceptionOf(done.status),
                        std::string(done.status.message()), value, done.notes);
}

nb::dict JobDict(const JobSpec& job) {
  nb::dict all;
  all["name"] = job.name;
  all["model"] = job.model.name;
  all["cluster"] = job.cluster.name;
  all["tp"] = job.parallel.tp;
  all["cp"] = job.parallel.cp;
  all["ep"] = job.parallel.ep;
  all["pp"] = job.parallel.pp;
  all["dp"] = job.parallel.dp;
  all["num_gpus"] = job.parallel.num_gpus();
  all["microbatches"] = job.training.microbatches;
  all["memory_limit_bytes"] = job.MemoryLimit().count();
  all["strategy"] = job.search.schedule;
  all["parameters"] = Parameters(job.model);
  return all;
}

nb::dict DescribeJob(const std::string& source, const std::string& data_dir,
                     const std::vector<std::string>& sets) {
  if (sets.empty()) {
    return JobDict(ValueOrThrow(formats::LoadJob(source, data_dir, Read)));
  }
  std::vector<formats::JobOverride> changes;
  for (const std::string& set : sets) {
    changes.push_back(ValueOrThrow(formats::ParseOverride(set)));
  }
  const auto file =
      ValueOrThrow(formats::JobTemplate::Load(source, data_dir, Read));
  return JobDict(ValueOrThrow(file.With(changes)));
}

nb::dict ModelDict(const ModelSpec& model) {
  nb::list modules;
  for (const ModuleSpec& module : model.modules) {
    nb::dict one;
    one["name"] = module.name;
    one["layers"] = module.layers.size();
    one["parameters"] = Parameters(module);
    modules.append(one);
  }
  nb::dict all;
  all["name"] = model.name;
  all["parameters"] = Parameters(model);
  all["modules"] = modules;
  all["json"] = formats::PrintModel(model);
  return all;
}

nb::dict ClusterDict(const ClusterSpec& cluster) {
  nb::dict all;
  all["name"] = cluster.name;
  all["device"] = cluster.device.name;
  all["num_nodes"] = cluster.num_nodes;
  all["gpus_per_node"] = cluster.gpus_per_node;
  return all;
}

nb::bytes BytesOf(const std::string& text) {
  return nb::bytes(text.data(), text.size());
}

nb::dict TasksDict(const StepPlan& plan) {
  nb::dict columns;
  for (const Column& column : TaskColumns(plan)) {
    columns[column.first.c_str()] = BytesOf(column.second);
  }
  return columns;
}

void BindStepPlan(nb::module_& m) {
  const auto plan_of = [](const StepPlan& p) -> const ExecutionPlan& {
    return p.result.plan;
  };
  nb::class_<StepPlan> c(m, "StepPlan");
  c.def_static(
      "read",
      [](const nb::bytes& content, const std::string& name) {
        const absl::string_view text(static_cast<const char*>(content.data()),
                                     content.size());
        absl::StatusOr<StepPlanPtr> plan;
        {
          const nb::gil_scoped_release release;
          plan = ReadStepPlan(text, name);
        }
        // A plan that breaks a rule of plans is bad input here.
        if (!plan.ok()) {
          throw nb::value_error(std::string(plan.status().message()).c_str());
        }
        return std::const_pointer_cast<StepPlan>(*plan);
      },
      nb::arg("content"), nb::arg("name"));
  c.def("to_bytes", [plan_of](const StepPlan& p) {
    return BytesOf(convert::SerializePlan(plan_of(p)));
  });
  c.def("to_text",
        [plan_of](const StepPlan& p) { return ToString(plan_of(p)); });
  c.def("report", [](const StepPlan& p) {
    const nb::gil_scoped_release release;
    return ReportOf(p);
  });
  c.def("task_columns", &TasksDict);
  c.def_prop_ro("job", [plan_of](const StepPlan& p) { return plan_of(p).job; });
  c.def_prop_ro("step",
                [plan_of](const StepPlan& p) { return plan_of(p).step; });
  c.def_prop_ro("replica",
                [plan_of](const StepPlan& p) { return plan_of(p).replica; });
  c.def_prop_ro("strategy",
                [plan_of](const StepPlan& p) { return plan_of(p).schedule; });
  c.def_prop_ro("module_names", [plan_of](const StepPlan& p) {
    return plan_of(p).graph.module_names();
  });
  c.def_prop_ro("num_ranks", [plan_of](const StepPlan& p) {
    return plan_of(p).graph.num_ranks();
  });
  c.def_prop_ro("num_tasks", [plan_of](const StepPlan& p) {
    return plan_of(p).graph.num_tasks();
  });
  c.def_prop_ro("step_time_us", [](const StepPlan& p) {
    return ToMicroseconds(p.result.predicted.step_time());
  });
  c.def_prop_ro("lower_bound_us", [](const StepPlan& p) {
    return ToMicroseconds(p.result.lower_bound);
  });
  c.def_prop_ro("bound_source", [](const StepPlan& p) {
    return std::string(p.result.bound_source);
  });
  c.def_prop_ro("bubble_ratio",
                [](const StepPlan& p) { return p.result.bubble_ratio(); });
  c.def_prop_ro("epilogue_ratio",
                [](const StepPlan& p) { return p.result.epilogue_ratio(); });
  c.def_prop_ro("gap_ratio",
                [](const StepPlan& p) { return p.result.gap_ratio(); });
  c.def_prop_ro("mfu", [](const StepPlan& p) { return p.result.mfu(); });
  c.def_prop_ro("peak_bytes", [](const StepPlan& p) {
    return Counts(p.result.peak_bytes());
  });
  c.def_prop_ro("evaluations",
                [](const StepPlan& p) { return p.result.evaluations; });
  c.def_prop_ro("proven_optimal",
                [](const StepPlan& p) { return p.result.proven_optimal; });
}

std::vector<std::string> Shipped(const std::string& kind) {
  if (kind == "job") return formats::ShippedJobNames();
  if (kind == "model") return formats::ShippedModelNames();
  if (kind == "cluster") return formats::ShippedClusterNames();
  throw nb::value_error("kind is job, model or cluster");
}

}  // namespace
}  // namespace pipeloom::python

NB_MODULE(_native, m) {
  namespace nb = nanobind;
  using namespace pipeloom;          // NOLINT
  using namespace pipeloom::python;  // NOLINT
  m.doc() = "The planner of Pipeloom; see pipeloom.planner.";
  m.def("run", &Run, nb::arg("arguments"), nb::arg("progress").none());
  m.def("plan", &Plan, nb::arg("arguments"), nb::arg("progress").none());
  m.def("shipped", &Shipped, nb::arg("kind"));
  m.def("strategies", [] {
    std::vector<std::string> names;
    for (const absl::string_view name : planner::StrategyNames()) {
      names.emplace_back(name);
    }
    return names;
  });
  m.def("describe_job", &DescribeJob, nb::arg("source"), nb::arg("data_dir"),
        nb::arg("sets"));
  m.def(
      "load_model",
      [](const std::string& source, const std::string& data_dir) {
        return ModelDict(
            ValueOrThrow(formats::LoadModel(source, data_dir, Read)));
      },
      nb::arg("source"), nb::arg("data_dir"));
  m.def(
      "parse_model",
      [](const std::string& text, const std::string& name) {
        return ModelDict(ValueOrThrow(formats::ParseModel(text, name)));
      },
      nb::arg("text"), nb::arg("name"));
  m.def(
      "load_cluster",
      [](const std::string& source, const std::string& data_dir) {
        return ClusterDict(
            ValueOrThrow(formats::LoadCluster(source, data_dir, Read)));
      },
      nb::arg("source"), nb::arg("data_dir"));
  m.def(
      "parse_cluster",
      [](const std::string& text, const std::string& name) {
        return ClusterDict(ValueOrThrow(formats::ParseCluster(text, name)));
      },
      nb::arg("text"), nb::arg("name"));
  BindStepPlan(m);
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function(&WaitForBackground));
}
