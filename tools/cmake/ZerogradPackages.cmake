# Debian packages, by `cpack -G DEB` in the build folder: zerograd (the command) and libzerograd-dev (the
# libraries with headers, CMake and pkg-config files). Before 1.0 a minor version may change the binary
# interface, so there is no package of a shared library alone, and the command links the static ones.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME zerograd)
set(CPACK_PACKAGE_VENDOR zerograd)
if(NOT CPACK_PACKAGE_CONTACT)
  set(CPACK_PACKAGE_CONTACT "zerograd maintainers <maintainers@zerograd.invalid>")
endif()
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL command dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMMAND_PACKAGE_NAME zerograd)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMMAND_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS python3-jinja2)  # renders chat templates
set(CPACK_COMPONENT_COMMAND_DESCRIPTION "The command: trains language models with ZeRO on any number of
ranks, plans the memory that a run needs, and generates text.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libzerograd-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS g++)
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS "cmake, pkg-config")
set(CPACK_COMPONENT_DEV_DESCRIPTION "The libraries, their headers, and the files by which CMake and
pkg-config find them.")
if(ZG_HAVE_CUDA)
  string(APPEND CPACK_COMPONENT_DEV_DESCRIPTION " Programs also link the CUDA runtime of the CUDA Toolkit
${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}, wherever that was installed from.")
endif()

# The static libraries leave these files to the link of a program, which needs their packages.
if(ZG_KIND STREQUAL "static")
  set(needed ${OpenMP_gomp_LIBRARY} ${OpenMP_pthread_LIBRARY} ${MPI_CXX_LIBRARIES} ${LIBURING_LIBRARY}
             ${FMT_LIBRARY})
  if(ZG_HAVE_TEXT)
    list(APPEND needed ${PCRE2_8BIT_LIBRARY} ${UTF8PROC_LIBRARY})
  endif()
  find_program(ZG_DPKG dpkg)
  set(packages "")
  foreach(file ${needed})
    if(ZG_DPKG AND IS_ABSOLUTE ${file})
      execute_process(COMMAND ${ZG_DPKG} -S ${file} OUTPUT_VARIABLE owner ERROR_QUIET)
      if(owner MATCHES "^([^:,\n]+)")
        list(APPEND packages ${CMAKE_MATCH_1})
      endif()
    endif()
  endforeach()
  list(REMOVE_DUPLICATES packages)
  list(JOIN packages ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
else()
  set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS ON)
endif()

foreach(package "command zerograd" "dev libzerograd-dev")
  separate_arguments(package)
  list(GET package 0 component)
  list(GET package 1 name)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright COMPONENT ${component}
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${name})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/README.md COMPONENT command
        DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/zerograd)
include(CPack)
