# Precompiled headers: the standard and Abseil headers that most files include,
# compiled once for the libraries and once, with GoogleTest, for the tests. They
# halve the time of a build from scratch. Every file still includes what it
# uses: the fuzz build has no precompiled headers.
option(PIPELOOM_PRECOMPILE "Precompile the headers that most files include"
       ${PROJECT_IS_TOP_LEVEL})
if(PIPELOOM_BUILD_FUZZERS)
  set(PIPELOOM_PRECOMPILE OFF)
endif()

set(PIPELOOM_COMMON_HEADERS
    <algorithm>
    <array>
    <cstdint>
    <functional>
    <map>
    <memory>
    <optional>
    <string>
    <tuple>
    <utility>
    <variant>
    <vector>
    <absl/status/status.h>
    <absl/status/statusor.h>
    <absl/strings/str_cat.h>
    <absl/strings/str_format.h>
    <absl/strings/string_view.h>
    <absl/types/span.h>)

# Defines a target that only holds precompiled headers for others.
function(pipeloom_add_precompiled name)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/${name}.cc" CONTENT "" @ONLY)
  add_library(${name} STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/${name}.cc")
  # -Wpedantic sets macros that must be equal.
  target_compile_options(${name} PRIVATE ${PIPELOOM_WARNINGS})
  target_link_libraries(${name} PRIVATE pipeloom_options absl::status
                                        absl::statusor absl::str_format)
  target_precompile_headers(${name} PRIVATE ${PIPELOOM_COMMON_HEADERS} ${ARGN})
endfunction()

# Lets `target` use precompiled headers. REQUIRES: equal flags, except warnings.
function(pipeloom_precompile target from)
  if(PIPELOOM_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# Gives `target` precompiled headers of its own: those above, gRPC and the
# messages of the service, which take a third of the time of its files, and more
# that are named.
function(pipeloom_precompile_grpc target)
  if(PIPELOOM_PRECOMPILE)
    target_precompile_headers(
      ${target} PRIVATE ${PIPELOOM_COMMON_HEADERS} ${ARGN} <grpcpp/grpcpp.h>
      <pipeloom/v1/planner_service.grpc.pb.h>)
  endif()
endfunction()

if(PIPELOOM_PRECOMPILE)
  # With it, ccache can tell whether anything has changed.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
                      "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
  # Clang wants it for all users of a header or for none, as it sets macros.
  add_compile_options(-pthread)
  pipeloom_add_precompiled(pipeloom_library_headers)
  if(PIPELOOM_BUILD_TESTS)
    pipeloom_add_precompiled(pipeloom_test_headers <gmock/gmock.h>
                             <gtest/gtest.h>)
    set_target_properties(pipeloom_test_headers
                          PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(pipeloom_test_headers PRIVATE -fPIE)
    target_link_libraries(pipeloom_test_headers PRIVATE GTest::gmock)
  endif()
endif()
