# pipeloom_library(planner SRCS planner.cc ... DEPS pipeloom::partition ...)
# Defines a static library, one per folder, with the alias pipeloom::<name>.
function(pipeloom_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;DEPS")
  add_library(pipeloom_${name} STATIC ${arg_SRCS})
  add_library(pipeloom::${name} ALIAS pipeloom_${name})
  set_target_properties(pipeloom_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_options(pipeloom_${name} PRIVATE ${PIPELOOM_WARNINGS})
  target_link_libraries(pipeloom_${name} PUBLIC pipeloom_options ${arg_DEPS})
  if(NOT name MATCHES "torch|nccl|mpi")  # Their packages bring flags.
    pipeloom_precompile(pipeloom_${name} pipeloom_library_headers)
  endif()
  set_property(GLOBAL APPEND PROPERTY PIPELOOM_LIBRARIES pipeloom_${name})
endfunction()

# pipeloom_test(planner_tests SRCS a_test.cc ... DEPS pipeloom::planner)
# Defines a GoogleTest program, one per folder; each TEST is a test of ctest.
function(pipeloom_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;DEPS")
  add_executable(${name} ${arg_SRCS})
  target_compile_options(${name} PRIVATE ${PIPELOOM_WARNINGS})
  target_compile_definitions(
    ${name} PRIVATE PIPELOOM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE pipeloom_options ${arg_DEPS}
                                        pipeloom_test_support GTest::gmock
                                        GTest::gtest_main)
  if(NOT name MATCHES "torch|nccl|mpi|service")
    pipeloom_precompile(${name} pipeloom_test_headers)
  endif()
  # Programs that load torch take seconds to start on a busy machine.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
                       PROPERTIES TIMEOUT 2400)
endfunction()

# pipeloom_benchmark(planner_benchmark SRCS ... DEPS ...)
function(pipeloom_benchmark name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;DEPS")
  add_executable(${name} ${arg_SRCS})
  target_compile_options(${name} PRIVATE ${PIPELOOM_WARNINGS})
  target_link_libraries(${name} PRIVATE pipeloom_options ${arg_DEPS}
                                        benchmark::benchmark_main)
endfunction()

# pipeloom_fuzzer(fuzz_plan SRCS fuzz_plan.cc DEPS ...)
function(pipeloom_fuzzer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SRCS;DEPS")
  add_executable(${name} ${arg_SRCS})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE pipeloom_options ${arg_DEPS})
endfunction()
