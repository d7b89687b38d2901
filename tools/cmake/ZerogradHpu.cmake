# Decides whether the build uses accelerators through Level Zero, from ZG_HPU: AUTO (if the SPIR-V
# compiler and the headers are found), ON or OFF; sets ZG_HAVE_HPU. The loader (libze_loader.so.1)
# is opened at run time, so the same binary also starts without it, and the build needs only its
# headers. Tests that call it directly link level_zero_loader.
set(ZG_HPU AUTO CACHE STRING "Level Zero devices: AUTO (where its tools are found), ON or OFF")
set_property(CACHE ZG_HPU PROPERTY STRINGS AUTO ON OFF)
set(ZG_HAVE_HPU OFF)
set(ZG_HPU_MISSING "ZG_HPU is OFF")
if(NOT ZG_HPU STREQUAL "OFF")
  find_program(ZG_SPIRV_CLANG clang-14)
  find_program(ZG_SPIRV_OPT opt-14)
  find_program(ZG_SPIRV_TRANSLATOR llvm-spirv-14)
  find_program(ZG_SPIRV_VAL spirv-val)
  find_path(LEVEL_ZERO_INCLUDE_DIR level_zero/ze_api.h)
  find_library(LEVEL_ZERO_LOADER ze_loader)
  set(ZG_HPU_MISSING "")
  foreach(part "ZG_SPIRV_CLANG clang-14 clang-14" "ZG_SPIRV_OPT opt-14 llvm-14"
               "ZG_SPIRV_TRANSLATOR llvm-spirv-14 llvm-spirv-14"
               "ZG_SPIRV_VAL spirv-val spirv-tools"
               "LEVEL_ZERO_INCLUDE_DIR level_zero/ze_api.h libze-dev"
               "LEVEL_ZERO_LOADER libze_loader.so libze-dev")
    separate_arguments(part)
    list(GET part 0 variable)
    list(GET part 1 what)
    list(GET part 2 package)
    if(NOT ${variable})
      list(APPEND ZG_HPU_MISSING "${what} (Debian: ${package})")
    endif()
  endforeach()
  list(JOIN ZG_HPU_MISSING ", " ZG_HPU_MISSING)
  if(NOT ZG_HPU_MISSING)
    enable_language(ASM)
    add_library(level_zero_loader UNKNOWN IMPORTED)
    set_target_properties(level_zero_loader PROPERTIES IMPORTED_LOCATION "${LEVEL_ZERO_LOADER}"
                          INTERFACE_INCLUDE_DIRECTORIES "${LEVEL_ZERO_INCLUDE_DIR}")
    set(ZG_HAVE_HPU ON)
  elseif(ZG_HPU STREQUAL "ON")
    message(FATAL_ERROR "ZG_HPU is ON, but these are missing: ${ZG_HPU_MISSING}; "
                        "tools/install-packages hpu installs them, ZG_HPU=OFF does without")
  else()
    message(STATUS "HPU: missing ${ZG_HPU_MISSING}; tools/install-packages hpu installs them")
  endif()
endif()
message(STATUS "HPU: ${ZG_HAVE_HPU} (ZG_HPU=${ZG_HPU})")

# zg_spirv_module(<file> [DTYPES f32 bf16] [VARIANTS portable sg16 sg8 dpas16 dpas8])
# Names <file>.cl, a path from this folder, once for each dtype and variant: file[.dtype][.variant] without
# its folder, portable being the one without a name. zg_add_spirv() compiles and embeds them.
#   f32, bf16     ZG_F32, ZG_BF16
#   portable      OpenCL C 1.2: what every device with SPIR-V has
#   sg<n>         ZG_SUB_GROUPS=n: sub-groups, shuffles, block reads and writes
#   dpas<n>       that and ZG_DPAS=n: products of tiles by a sub-group of n
function(zg_spirv_module file)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "DTYPES;VARIANTS")
  if(NOT arg_DTYPES)
    set(arg_DTYPES none)
  endif()
  if(NOT arg_VARIANTS)
    set(arg_VARIANTS portable)
  endif()
  foreach(dtype ${arg_DTYPES})
    foreach(variant ${arg_VARIANTS})
      set_property(DIRECTORY APPEND PROPERTY ZG_SPIRV_MODULES "${file}|${dtype}|${variant}")
    endforeach()
  endforeach()
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
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/${file}.cl)
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

# zg_add_spirv(<target>): compiles the modules named so far in this folder and embeds them in the
# target, where kernels/hpu/launch.h finds them. <target>_spirv makes the modules alone; their names
# and files are listed, one a line, in spirv/<target>.txt of the build folder.
function(zg_add_spirv target)
  get_property(modules DIRECTORY PROPERTY ZG_SPIRV_MODULES)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/spirv)
  set(table "")
  set(bytes "")
  set(list "")
  set(files "")
  set(index 0)
  foreach(module ${modules})
    string(REPLACE "|" ";" module ${module})
    zg_compile_spirv(${module})
    list(APPEND files ${module_file})
    string(APPEND list "${module_name} ${module_file}\n")
    string(APPEND table "  .quad .Lname${index}, .Lbegin${index}, .Lend${index} - .Lbegin${index}\n")
    string(APPEND bytes ".Lname${index}: .asciz \"${module_name}\"\n  .balign 16\n"
           ".Lbegin${index}: .incbin \"${module_file}\"\n.Lend${index}:\n")
    math(EXPR index "${index} + 1")
  endforeach()
  file(CONFIGURE OUTPUT spirv/${target}.txt CONTENT "${list}" @ONLY)
  file(CONFIGURE OUTPUT spirv/${target}.S @ONLY CONTENT
       "  .section .rodata
${bytes}  .section .data.rel.ro, \"aw\", %progbits
  .balign 8
  .globl zg_hpu_modules, zg_hpu_modules_end
  .hidden zg_hpu_modules, zg_hpu_modules_end
zg_hpu_modules:
${table}zg_hpu_modules_end:
  .section .note.GNU-stack, \"\", %progbits
")
  set(embedded ${CMAKE_CURRENT_BINARY_DIR}/spirv/${target}.S)
  set_source_files_properties(${embedded} PROPERTIES OBJECT_DEPENDS "${files}")
  add_custom_target(${target}_spirv DEPENDS ${files})
  set_target_properties(${target}_spirv PROPERTIES ZG_FILES "${files}")
  target_sources(${target} PRIVATE ${embedded} ${PROJECT_SOURCE_DIR}/kernels/hpu/modules.cpp)
endfunction()
