# Installing: the libraries, their public headers under include/zerograd, and what find_package(zerograd)
# and pkg-config read. Component `dev` has all that, with the libraries of the kind that BUILD_SHARED_LIBS
# asks for. The other kind is a component of its own, `static` or `shared`, installed only by name, after
# its target zerograd_libraries_<kind> was built: find_package() then has both.
include(CMakePackageConfigHelpers)
set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zerograd)
set(libraries zerograd zerograd_bench)
set(public_headers ${ZG_ENGINE_HEADERS} ${ZG_HPU_HEADERS})
if(ZG_HAVE_CUDA)
  list(APPEND public_headers ${ZG_CUDA_HEADERS})
endif()
set(umbrellas zerograd)
if(ZG_HAVE_TEXT)
  list(APPEND libraries zerograd_text)
  list(APPEND public_headers ${ZG_TEXT_HEADERS})
  list(APPEND umbrellas text)
endif()
foreach(header ${public_headers})
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} COMPONENT dev
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerograd/${folder})
endforeach()
list(TRANSFORM umbrellas REPLACE "(.+)" "${ZG_INCLUDE_DIR}/zerograd/\\1.h")
install(FILES ${umbrellas} ${PROJECT_SOURCE_DIR}/bench/bench.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerograd COMPONENT dev)

install(FILES ${PROJECT_SOURCE_DIR}/kernels/hpu/tile.clh COMPONENT dev
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zerograd/kernels/hpu)

# zg_link_flags(<out> files or flags...): "-L<folder> -l<name>" for each library's file.
function(zg_link_flags out)
  set(flags "")
  foreach(library ${ARGN})
    if(library MATCHES "^(/.*)/lib([^/]*)\\.(so|a)$")
      if(NOT CMAKE_MATCH_1 IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
        list(APPEND flags -L${CMAKE_MATCH_1})
      endif()
      list(APPEND flags -l${CMAKE_MATCH_2})
    else()
      list(APPEND flags ${library})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES flags)
  list(JOIN flags " " flags)
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

# The libraries that a program links beside a static library, for pkg-config. find_package() takes
# them from the PRIVATE libraries of zg_add_library().
find_library(FMT_LIBRARY fmt REQUIRED)
set(zerograd_needs ${FMT_LIBRARY} ${OpenMP_CXX_FLAGS} ${CMAKE_THREAD_LIBS_INIT} ${MPI_CXX_LIBRARIES} ${LIBURING_LIBRARY})
if(ZG_HAVE_CUDA)
  list(APPEND zerograd_needs ${CUDA_cudart_static_LIBRARY} -ldl -lrt)
endif()
set(zerograd_text_needs ${PCRE2_8BIT_LIBRARY} ${UTF8PROC_LIBRARY} ${FMT_LIBRARY})
set(zerograd_bench_needs "")
set(zerograd_title "zerograd" "${PROJECT_DESCRIPTION}" "")
set(zerograd_bench_title "zerograd-bench" "Measures kernels for zerograd" "zerograd = ${PROJECT_VERSION}")
set(zerograd_text_title "zerograd-text" "Tokenizers for zerograd" "zerograd = ${PROJECT_VERSION}")

# zg_pkg_config(<library> <kind>): writes pkgconfig/<kind>/<file>.pc. Its folders are relative to itself,
# so that an installation can be moved.
function(zg_pkg_config library kind)
  list(GET ${library}_title 0 file)
  list(GET ${library}_title 1 description)
  list(GET ${library}_title 2 requires)
  zg_link_flags(flags ${${library}_needs})
  if(kind STREQUAL "static")
    set(own " ${flags}")
    set(private "")
  else()
    set(own "")
    set(private "${flags}")
  endif()
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
             OUTPUT_VARIABLE lib)
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY
             ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig OUTPUT_VARIABLE up)
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_INCLUDEDIR BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}
             OUTPUT_VARIABLE include)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/pkgconfig/${kind}/${file}.pc @ONLY CONTENT
       "prefix=\${pcfiledir}/${up}
libdir=\${prefix}/${lib}
includedir=\${prefix}/${include}

Name: ${file}
Description: ${description}
Version: ${PROJECT_VERSION}
Requires: ${requires}
Cflags: -I\${includedir}
Libs: -L\${libdir} -l${file}${own}
Libs.private: ${private}
")
  set(pkg_config_file ${PROJECT_BINARY_DIR}/pkgconfig/${kind}/${file}.pc PARENT_SCOPE)
endfunction()

configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/zerogradConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/zerogradConfig.cmake
                              INSTALL_DESTINATION ${cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zerogradConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)

foreach(kind static shared)
  if(kind STREQUAL ZG_KIND)
    set(component COMPONENT dev)
    set(optional "")
  else()
    set(component COMPONENT ${kind} EXCLUDE_FROM_ALL)
    set(optional OPTIONAL)  # required by CMake for a target that `all` does not build
    set(files "")
    foreach(library ${libraries})
      list(APPEND files $<TARGET_FILE:${library}_${kind}>)
    endforeach()
    install(CODE "set(files \"${files}\")
foreach(file IN LISTS files)
  if(NOT EXISTS \"\${file}\")
    message(FATAL_ERROR \"\${file} is not built; build the target zerograd_libraries_${kind} first\")
  endif()
endforeach()" ${component})
  endif()
  set(targets ${libraries})
  list(TRANSFORM targets APPEND _${kind})
  add_custom_target(zerograd_libraries_${kind} DEPENDS ${targets})
  foreach(library ${libraries})
    list(GET ${library}_title 0 file)
    install(TARGETS ${library}_${kind} EXPORT ${file}-${kind}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component} ${optional}
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component} ${optional})
    install(EXPORT ${file}-${kind} NAMESPACE zerograd:: DESTINATION ${cmake_dir} ${component})
    zg_pkg_config(${library} ${kind})
    install(FILES ${pkg_config_file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig ${component})
  endforeach()
  install(FILES ${PROJECT_BINARY_DIR}/zerogradConfig.cmake
                ${PROJECT_SOURCE_DIR}/tools/cmake/ZerogradOpenCl.cmake
                ${PROJECT_BINARY_DIR}/zerogradConfigVersion.cmake
          DESTINATION ${cmake_dir} ${component})
endforeach()
