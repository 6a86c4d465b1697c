# The headers that a project outside this tree includes, <pipeloom/NAME.h>, and
# the header of ours that each stands for. All other headers are installed under
# pipeloom/detail/, where these find them.
set(PIPELOOM_PUBLIC_HEADERS
    batch=ir/job/batch_metadata.h
    cluster=ir/job/cluster_spec.h
    costs=emulator/stage/stage_cost.h
    emulate=emulator/step/emulate_step.h
    files=formats/job/spec_loader.h
    job=ir/job/job_spec.h
    job_planner=planner/job/job_planner.h
    model=ir/job/model_spec.h
    operators=emulator/cost/profile_cost.h
    partition=ir/plan/partition.h
    plan=ir/plan/execution_plan.h
    profiles=formats/profile/device_profiles.h
    run=runtime/launch.h
    schedule=ir/plan/schedule.h
    search=planner/search/search_graph.h
    stage_graph=ir/plan/stage_graph.h
    strategies=planner/strategies/registry.h
    trace=ir/plan/step_trace.h
    units=base/units.h)

function(pipeloom_install_public_headers destination)
  set(folder ${PROJECT_BINARY_DIR}/public_headers)
  foreach(entry ${PIPELOOM_PUBLIC_HEADERS})
    string(REPLACE "=" ";" entry ${entry})
    list(GET entry 0 name)
    list(GET entry 1 header)
    if(NOT EXISTS ${PROJECT_SOURCE_DIR}/${header})
      message(FATAL_ERROR "pipeloom: no ${header} for <pipeloom/${name}.h>")
    endif()
    string(TOUPPER ${name} guard)
    file(
      CONFIGURE
      OUTPUT ${folder}/${name}.h
      CONTENT
        "#ifndef PIPELOOM_${guard}_H_\n#define PIPELOOM_${guard}_H_\n#include \"${header}\"  // IWYU pragma: export\n#endif\n"
    )
    install(FILES ${folder}/${name}.h DESTINATION ${destination})
  endforeach()
endfunction()
