# Debian and Ubuntu packages only: nothing is vendored or downloaded. What is
# optional says here whether it was found.
find_package(Threads REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(Protobuf REQUIRED)
find_package(TBB CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
if(PIPELOOM_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
  include(GoogleTest)
endif()
if(PIPELOOM_BUILD_BENCHMARKS)
  find_package(benchmark CONFIG QUIET)
endif()

find_package(gRPC CONFIG QUIET)
# Programs with sanitizers go without what is not built with them and leaks or
# races in their eyes.
if(NOT PIPELOOM_SANITIZE)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
find_package(CUDAToolkit QUIET)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV
                                        NCCL_ROOT PATH_SUFFIXES include)
if(NOT PIPELOOM_SANITIZE)
  find_package(Torch QUIET CONFIG)
endif()

function(pipeloom_report name found used_for)
  if(found)
    message(STATUS "pipeloom: ${name} found")
  else()
    message(STATUS "pipeloom: ${name} not found; without it: ${used_for}")
  endif()
endfunction()
pipeloom_report("Google Benchmark" "${benchmark_FOUND}" "no benchmarks")
pipeloom_report("gRPC" "${gRPC_FOUND}" "no planner service")
pipeloom_report("MPI" "${MPI_CXX_FOUND}" "no mpi transport")
pipeloom_report("CUDA" "${CUDAToolkit_FOUND}"
                "no cuda device, no nccl transport (not built yet)")
pipeloom_report("NCCL" "${NCCL_INCLUDE_DIR}"
                "no nccl transport (not built yet)")
pipeloom_report("torch" "${Torch_FOUND}" "no torch device")
