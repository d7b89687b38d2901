# From OpenCL C to SPIR-V: the kernels of the library, and those of programs that use it. Installed with
# the library; find_package(zerograd) includes it.
set(ZG_SPIRV_PROGRAMS "ZG_SPIRV_CLANG clang-14 clang-14" "ZG_SPIRV_OPT opt-14 llvm-14"
                      "ZG_SPIRV_TRANSLATOR llvm-spirv-14 llvm-spirv-14" "ZG_SPIRV_VAL spirv-val spirv-tools")
foreach(part ${ZG_SPIRV_PROGRAMS})
  separate_arguments(part)
  list(GET part 0 variable)
  list(GET part 1 program)
  find_program(${variable} ${program})
  mark_as_advanced(${variable})
endforeach()

# zg_missing(<out> parts...): those whose variable is not set, each of which is "variable, name and Debian's
# package", as text.
function(zg_missing out)
  set(missing "")
  foreach(part ${ARGN})
    separate_arguments(part)
    list(GET part 0 variable)
    list(GET part 1 what)
    list(GET part 2 package)
    if(NOT ${variable})
      list(APPEND missing "${what} (Debian: ${package})")
    endif()
  endforeach()
  list(JOIN missing ", " missing)
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# Compiles one module: adds the custom command and sets its name and result in the caller's scope.
function(zg_compile_spirv file dtype variant)
  cmake_path(GET file FILENAME name)
  # Contraction is off twice: clang makes no fmuladd, and each kernel forbids it to the device's
  # compiler (ContractionOff). A fused multiply-add appears only where the source says fma().
  # No doubles: some devices reject a whole module for one constant.
  set(flags -Wall -Wextra -Wdouble-promotion -ffp-contract=off
      -cl-fp32-correctly-rounded-divide-sqrt "-I${ZG_INCLUDE_DIR}")
  if(ZG_WERROR)
    list(APPEND flags -Werror)
  endif()
  if(NOT dtype STREQUAL "none")
    string(TOUPPER ${dtype} upper)
    list(APPEND flags -DZG_${upper})
    string(APPEND name .${dtype})
  endif()
  set(extensions "")
  if(variant STREQUAL "portable")
    list(APPEND flags -cl-std=CL1.2)
  elseif(variant MATCHES "^(sg|dpas)(8|16)$")
    set(lanes ${CMAKE_MATCH_2})
    if(CMAKE_MATCH_1 STREQUAL "dpas")
      list(APPEND flags -DZG_DPAS=${lanes})
    endif()
    list(APPEND flags -cl-std=CL3.0 -DZG_SUB_GROUPS=${lanes} -Xclang
         -cl-ext=+cl_khr_subgroups,+cl_intel_subgroups,+cl_intel_subgroups_short,+__opencl_c_subgroups)
    set(extensions --spirv-ext=+SPV_INTEL_subgroups)
    string(APPEND name .${variant})
  else()
    message(FATAL_ERROR "zg_spirv_module: ${file} has no variant ${variant}; there are portable, "
                        "sg8, sg16, dpas8, dpas16")
  endif()
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE source)
  string(APPEND source .cl)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/spirv/${name})
  # The device's compiler optimises: LLVM's -O2 leaves instructions (freeze) that SPIR-V does not
  # have.
  add_custom_command(
    OUTPUT ${out}.spv
    COMMAND ${ZG_SPIRV_CLANG} -x cl -target spir64 ${flags} -O2 -Xclang -disable-llvm-passes
            -emit-llvm -c ${source} -o ${out}.clang.bc -MD -MF ${out}.d -MT ${out}.spv
    COMMAND ${ZG_SPIRV_OPT}
            "-passes=always-inline,function(sroa,mem2reg,early-cse,simplifycfg),globaldce"
            ${out}.clang.bc -o ${out}.bc
    COMMAND ${ZG_SPIRV_TRANSLATOR} --spirv-max-version=1.2 --spirv-fp-contract=off ${extensions}
            ${out}.bc -o ${out}.spv
    COMMAND ${ZG_SPIRV_VAL} --target-env opencl2.2 ${out}.spv
    DEPENDS ${source} DEPFILE ${out}.d VERBATIM COMMENT "Building SPIR-V module ${name}")
  set(module_name ${name} PARENT_SCOPE)
  set(module_file ${out}.spv PARENT_SCOPE)
endfunction()

# zerograd_add_opencl(<target> <file>): compiles <file>.cl, from this folder if the path is relative, and embeds it
# in the target. The program declares it, at namespace scope, as
#   namespace opencl { extern const zg::hpu::Code <name>; }   // <file> without folders
# and launches its kernels by zg::hpu::launch (zerograd/kernels/hpu/launch.h). Without the compilers the
# module is empty: a launch then throws Unsupported with the programs that were missing.
function(zerograd_add_opencl target file)
  cmake_path(GET file FILENAME name)
  set(embedded ${CMAKE_CURRENT_BINARY_DIR}/spirv/${name}.cpp)
  zg_missing(missing ${ZG_SPIRV_PROGRAMS})
  if(missing)
    message(STATUS "${name}.cl is not compiled: missing ${missing}")
    set(value "{nullptr, {}, \"${missing}\"}")
    set(bytes "")
  else()
    if(zerograd_BINARY_DIR)  # the library is a part of this build
      set(ZG_INCLUDE_DIR ${zerograd_BINARY_DIR}/include)
    else()
      get_target_property(ZG_INCLUDE_DIR zerograd::zerograd INTERFACE_INCLUDE_DIRECTORIES)
    endif()
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/spirv)
    zg_compile_spirv(${file} none portable)
    set(bytes "asm(R\"(
  .section .rodata
  .balign 16
  .hidden zg_opencl_${name}, zg_opencl_${name}_end
  .globl zg_opencl_${name}, zg_opencl_${name}_end
zg_opencl_${name}: .incbin \"${module_file}\"
zg_opencl_${name}_end: .byte 0
  .previous
)\");
extern \"C\" const unsigned char zg_opencl_${name}[], zg_opencl_${name}_end[];
")
    set(value "{\"${name}\", {zg_opencl_${name}, zg_opencl_${name}_end}}")
    set_source_files_properties(${embedded} PROPERTIES OBJECT_DEPENDS ${module_file})
  endif()
  file(CONFIGURE OUTPUT ${embedded} @ONLY CONTENT
       "#include \"zerograd/runtime/hpu/module.h\"
@bytes@namespace opencl {
extern const zg::hpu::Code ${name};
const zg::hpu::Code ${name}@value@;
}  // namespace opencl
")
  target_sources(${target} PRIVATE ${embedded})
endfunction()
