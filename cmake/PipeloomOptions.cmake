# pipeloom_options: language standard, warnings and sanitizers of Pipeloom's own
# code. Generated code does not link it, so it gets none of these warnings.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
# Line tables are enough for stack traces and take half the build time of -g.
# With sanitizers the presets choose the flags: they optimise less and keep
# checks.
if(NOT PIPELOOM_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
endif()

find_program(PIPELOOM_CCACHE ccache)
if(PIPELOOM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need this sloppiness of ccache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros
      "${PIPELOOM_CCACHE}")
endif()

if(PIPELOOM_BUILD_FUZZERS)
  # Coverage of the code under test guides the fuzzer.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(PIPELOOM_SANITIZE)
  # All code is instrumented, including generated code.
  add_compile_options(-fsanitize=${PIPELOOM_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PIPELOOM_SANITIZE})
endif()

add_library(pipeloom_options INTERFACE)
target_include_directories(
  pipeloom_options
  INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
            "$<INSTALL_INTERFACE:include>"
            "$<INSTALL_INTERFACE:include/pipeloom/detail>")
target_compile_features(pipeloom_options INTERFACE cxx_std_20)

# These warnings are for this build only, not for users of the headers.
set(PIPELOOM_WARNINGS
    -Wall
    -Wextra
    -Wpedantic
    -Wshadow
    -Wconversion
    -Wno-sign-conversion
    $<$<BOOL:${PIPELOOM_WARNINGS_AS_ERRORS}>:-Werror>
    # std::stable_sort of GCC 12 calls a function that it declares deprecated.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
    $<$<CXX_COMPILER_ID:Clang>:-Werror=thread-safety>)
