# Decides whether the build uses CUDA, from ZG_CUDA: AUTO (if nvcc is found), ON or OFF. The runtime
# library is linked statically and the driver is opened at run time, so the same binary also starts
# on a machine without NVIDIA software.
set(ZG_CUDA AUTO CACHE STRING "CUDA devices: AUTO (where nvcc is found), ON or OFF")
set_property(CACHE ZG_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ZG_HAVE_CUDA OFF)
if(NOT ZG_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(ZG_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
    if(ZG_NVCC)
      set(CMAKE_CUDA_COMPILER ${ZG_NVCC} CACHE FILEPATH "")
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Code for Hopper, and PTX that a driver can compile for Ampere and later.
    set(CMAKE_CUDA_ARCHITECTURES "90a-real;80-virtual" CACHE STRING "")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc 12 has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(ZG_HAVE_CUDA ON)
  elseif(ZG_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ZG_CUDA is ON, but no nvcc was found; set CUDACXX, or ZG_CUDA=OFF")
  endif()
endif()
message(STATUS "CUDA: ${ZG_HAVE_CUDA} (ZG_CUDA=${ZG_CUDA}) ${CMAKE_CUDA_COMPILER}")

# As for the CPU, a fused multiply-add appears only where a kernel asks for it.
function(zg_configure_cuda target)
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
                        CUDA_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE --fmad=false --expt-relaxed-constexpr -lineinfo
                         "$<$<BOOL:${ZG_WERROR}>:SHELL:-Werror all-warnings>")
endfunction()
