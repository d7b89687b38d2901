# Decides whether the build uses CUDA, from ZG_CUDA: AUTO (if nvcc is found), ON or OFF. The runtime
# library is linked statically and the driver is opened at run time, so the same binary also starts
# on a machine without NVIDIA software.
set(ZG_CUDA AUTO CACHE STRING "CUDA devices: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE ZG_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ZG_HAVE_CUDA OFF)
set(why_no_cuda)
if(NOT ZG_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # not found earlier: looks again
    if(NOT DEFINED ENV{CUDACXX})
      find_program(ZG_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
      if(ZG_NVCC)
        set(ENV{CUDACXX} ${ZG_NVCC})
      endif()
    endif()
    execute_process(COMMAND "$ENV{CUDACXX}" --version OUTPUT_VARIABLE said ERROR_QUIET)
    include(CheckLanguage)
    if(said MATCHES "release ([0-9]+)\\.([0-9]+)" AND CMAKE_MATCH_1 LESS 12)
      set(why_no_cuda ", as $ENV{CUDACXX} is ${CMAKE_MATCH_1}.${CMAKE_MATCH_2}: C++20 needs 12.0 or newer")
    else()
      check_language(CUDA)  # compiles a source
      if(NOT CMAKE_CUDA_COMPILER)
        set(why_no_cuda ", as there is no nvcc that compiles ($ENV{CUDACXX})")
      endif()
    endif()
  endif()
  if(NOT why_no_cuda)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # Code for Hopper, and PTX that a driver can compile for Ampere and later.
      set(CMAKE_CUDA_ARCHITECTURES "90a-real;80-virtual" CACHE STRING "")
    endif()
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc 12 has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(ZG_HAVE_CUDA ON)
  elseif(ZG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CUDA cannot be ON${why_no_cuda}; set CUDACXX to another nvcc, or ZG_CUDA=OFF")
  endif()
endif()
message(STATUS "CUDA: ${ZG_HAVE_CUDA} (ZG_CUDA=${ZG_CUDA})${why_no_cuda} ${CMAKE_CUDA_COMPILER}")

# As for the CPU, a fused multiply-add appears only where a kernel asks for it.
function(zg_configure_cuda target)
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                        CUDA_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE --fmad=false --expt-relaxed-constexpr -lineinfo
                         "SHELL:--options-file ${ZG_CUDA_WARNING_FLAGS}")
endfunction()
