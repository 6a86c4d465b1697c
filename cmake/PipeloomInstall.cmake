# cmake --install: the binary, its data next to it (bin/../share/pipeloom),
# headers, libraries and find_package(pipeloom).
include(CMakePackageConfigHelpers)
include(PipeloomPublicHeaders)

get_property(pipeloom_libraries GLOBAL PROPERTY PIPELOOM_LIBRARIES)
install(TARGETS ${pipeloom_libraries} pipeloom_options EXPORT pipeloom_targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_target_properties(pipeloom_options PROPERTIES EXPORT_NAME options)
install(
  EXPORT pipeloom_targets
  FILE pipeloomTargets.cmake
  NAMESPACE pipeloom::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pipeloom)

foreach(folder base ir adapters emulator partition planner runtime formats proto)
  install(
    DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pipeloom/detail
    FILES_MATCHING
    PATTERN "*.h"
    PATTERN "*.proto"
    PATTERN "golden" EXCLUDE)
endforeach()
install(
  DIRECTORY ${PROJECT_BINARY_DIR}/proto/pipeloom
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pipeloom/detail
  FILES_MATCHING
  PATTERN "*.pb.h")
pipeloom_install_public_headers(${CMAKE_INSTALL_INCLUDEDIR}/pipeloom)

foreach(folder batches bench clusters jobs models profiles validation)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/workloads/${folder}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/pipeloom)
endforeach()

configure_package_config_file(
  cmake/pipeloomConfig.cmake.in ${PROJECT_BINARY_DIR}/pipeloomConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pipeloom)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/pipeloomConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/pipeloomConfig.cmake
              ${PROJECT_BINARY_DIR}/pipeloomConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/pipeloom)
