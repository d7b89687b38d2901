# Decides whether the build uses accelerators through Level Zero, from ZG_HPU: AUTO (if the SPIR-V
# compiler and the headers are found), ON or OFF; sets ZG_HAVE_HPU. The loader (libze_loader.so.1)
# is opened at run time, so the same binary also starts without it, and the build needs only its
# headers. Tests that call it directly link level_zero_loader.
include(ZerogradOpenCl)
set(ZG_HPU AUTO CACHE STRING "Level Zero devices: AUTO (where its tools are found), ON or OFF")
set_property(CACHE ZG_HPU PROPERTY STRINGS AUTO ON OFF)
set(ZG_HAVE_HPU OFF)
set(ZG_HPU_MISSING "ZG_HPU is OFF")
if(NOT ZG_HPU STREQUAL "OFF")
  find_path(LEVEL_ZERO_INCLUDE_DIR level_zero/ze_api.h)
  find_library(LEVEL_ZERO_LOADER ze_loader)
  zg_missing(ZG_HPU_MISSING ${ZG_SPIRV_PROGRAMS} "LEVEL_ZERO_INCLUDE_DIR level_zero/ze_api.h libze-dev"
             "LEVEL_ZERO_LOADER libze_loader.so libze-dev")
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

# zg_add_spirv(<target>): compiles the modules named so far in this folder and embeds them in the
# target, where kernels/hpu/launch.h finds them. <target>_spirv makes only the modules; their names
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
