# How the folders become libraries: zg_<folder> are object libraries, zerograd::zerograd (the engine)
# and zerograd::text are linked from them. Sources are globbed so that adding an op touches no list.

# Includes read "zerograd/runtime/tensor.h" in the project as they do outside. This folder of the build
# has one link per public folder, or headers that forward to them where the file system has no links.
set(ZG_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)
option(ZG_FORWARD_HEADERS "Write forwarding headers even where links work" OFF)
function(zg_link_headers)
  foreach(folder ${ARGN})
    set(link ${ZG_INCLUDE_DIR}/zerograd/${folder})
    file(REMOVE_RECURSE ${link})  # removes a link, not its target
    file(MAKE_DIRECTORY ${ZG_INCLUDE_DIR}/zerograd)
    set(failed ${ZG_FORWARD_HEADERS})
    if(NOT failed)
      file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${link} RESULT failed SYMBOLIC)
    endif()
    if(failed)
      file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
           ${folder}/*.h ${folder}/*.cuh ${folder}/*.clh ${folder}/*.inc)
      foreach(header ${headers})
        file(CONFIGURE OUTPUT ${ZG_INCLUDE_DIR}/zerograd/${header} @ONLY
             CONTENT "#include \"${PROJECT_SOURCE_DIR}/${header}\"\n")
      endforeach()
    endif()
  endforeach()
endfunction()

# Compile options of every target of the project. Contraction is off: a fused multiply-add appears
# only where a kernel asks for it, so the same source gives the same bits.
add_library(zg_options INTERFACE)
target_compile_features(zg_options INTERFACE cxx_std_20)
target_include_directories(zg_options INTERFACE ${ZG_INCLUDE_DIR})
# Compile options of sources named *_amx.cpp; without them the level amx_bf16 does not exist.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-mamx-tile -mamx-bf16" ZG_AMX)
target_compile_definitions(zg_options INTERFACE $<$<BOOL:${ZG_AMX}>:ZG_AMX>)
# ZG_WERROR changes the content of files that compilers read, not their command lines: tools/test, which
# sets it, compiles nothing again that tools/quickstart has compiled.
set(ZG_WARNING_FLAGS ${PROJECT_BINARY_DIR}/warnings.flags)
set(ZG_CUDA_WARNING_FLAGS ${PROJECT_BINARY_DIR}/cuda_warnings.flags)
set(strict 0)
if(ZG_WERROR)
  set(strict 1)
endif()
string(REPEAT "-Werror" ${strict} flag)
file(CONFIGURE OUTPUT ${ZG_WARNING_FLAGS} CONTENT "${flag}\n")
string(REPEAT "-Werror all-warnings" ${strict} flag)
file(CONFIGURE OUTPUT ${ZG_CUDA_WARNING_FLAGS} CONTENT "${flag}\n")
# Designated initialisers leave fields to their defaults on purpose; -Wrestrict is wrong about
# std::string in g++ 12.
target_compile_options(zg_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;\
-Wno-missing-field-initializers;$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>;-ffp-contract=off;\
-fvisibility=hidden;-fvisibility-inlines-hidden;@${ZG_WARNING_FLAGS}>")
# -O3 is for the folders and sources that compute (HOT_CODE). The rest dispatches and parses; -O1 shortens
# its compilation.
define_property(TARGET PROPERTY HOT_CODE INITIALIZE_FROM_VARIABLE ZG_HOT_CODE)
target_compile_options(zg_options INTERFACE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>,\
$<NOT:$<BOOL:$<TARGET_PROPERTY:HOT_CODE>>>>:-O1>")
function(zg_hot_sources)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
endfunction()
if(ZG_SANITIZE)
  target_compile_options(zg_options INTERFACE -fsanitize=${ZG_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(zg_options INTERFACE -fsanitize=${ZG_SANITIZE})
endif()

function(zg_configure_objects target)
  target_compile_definitions(${target} PRIVATE ZG_BUILDING)
  target_link_libraries(${target} PRIVATE zg_options fmt::fmt)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# zg_add_folder(<name> [vendor targets...]): every .cpp below the folder, but *_simd.cpp and *_amx.cpp,
# sources that need CUDA or Level Zero, the sources in SLOTS, models/tokenizer, which is another library, and
# runtime/command_line, which only the command links.
function(zg_add_folder name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SLOTS")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  list(FILTER sources EXCLUDE REGEX
       "_(simd|amx|hpu)\\.cpp$|/runtime/(cuda|hpu|command_line)/|/kernels/hpu/|/models/tokenizer/")
  list(REMOVE_ITEM sources "" ${arg_SLOTS})
  if(NOT sources)
    return()
  endif()
  add_library(zg_${name} OBJECT ${sources})
  zg_configure_objects(zg_${name})
  target_link_libraries(zg_${name} PRIVATE ${arg_UNPARSED_ARGUMENTS})
endfunction()

# Compiles the *_simd.cpp below the folder once for each instruction set, with ZG_ISA naming the
# namespace that the copy lives in, those of matmul also for avx512_bf16, and *_amx.cpp for AMX.
# kernels/cpu/simd.h picks the vector types from the flags. Its small functions must be inlined, so
# that vectors stay in registers: g++ counts the registers of AVX2 as memory on the stack. Loops are
# aligned: otherwise a change elsewhere in a file makes a loop up to 8 % slower or faster.
function(zg_add_simd name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *_simd.cpp)
  set(levels any_cpu)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND levels avx2 avx512 avx512_bf16 amx_bf16)
  endif()
  set(inlining "SHELL:--param early-inlining-insns=1000" "SHELL:--param large-stack-frame=100000"
               "SHELL:--param large-stack-frame-growth=100000")
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512vl -mavx512dq
                   -mprefer-vector-width=512)
  set(avx512_bf16_flags ${avx512_flags} -mavx512bf16)
  set(amx_bf16_flags ${avx512_bf16_flags} -mamx-tile -mamx-bf16)
  if(NOT sources)
    return()
  endif()
  foreach(isa ${levels})
    if(isa STREQUAL "avx512_bf16")
      list(FILTER sources INCLUDE REGEX "/matmul/")
    elseif(isa STREQUAL "amx_bf16")
      if(NOT ZG_AMX)
        break()
      endif()
      file(GLOB_RECURSE sources CONFIGURE_DEPENDS *_amx.cpp)
    endif()
    add_library(zg_${name}_${isa} OBJECT ${sources})
    zg_configure_objects(zg_${name}_${isa})
    target_compile_options(zg_${name}_${isa} PRIVATE ${${isa}_flags} ${inlining} -falign-loops=32
                           # GCC bug 105593: false alarms about the intrinsics' own headers.
                           $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-uninitialized>)
    target_compile_definitions(zg_${name}_${isa} PRIVATE ZG_ISA=${isa})
  endforeach()
endfunction()

# zg_link_objects(<target> <cuda> folders...): the folders' objects; those that differ with CUDA are
# named zg_<folder>_<cuda>: cuda (as this build has it or not) or emulated (for tests).
function(zg_link_objects target cuda)
  foreach(folder ${ARGN})
    foreach(part zg_${folder} zg_${folder}_${cuda} zg_${folder}_slots_${cuda} zg_${folder}_hpu
                 zg_${folder}_any_cpu zg_${folder}_avx2 zg_${folder}_avx512 zg_${folder}_avx512_bf16 zg_${folder}_amx_bf16)
      if(TARGET ${part})
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:${part}>)
      endif()
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

# zg_add_library(<name> EXPORT <export> FILE <file> FOLDERS folders... [PUBLIC libraries...]
#                PRIVATE libraries...)
# One library in both kinds from the same objects: <name>_static and <name>_shared, whose files are
# lib<file>.a and lib<file>.so. zerograd::<export> is the kind that BUILD_SHARED_LIBS asks for; the other
# one is built only where something needs it. PUBLIC libraries are ours and have both kinds too.
if(BUILD_SHARED_LIBS)
  set(ZG_KIND shared)
else()
  set(ZG_KIND static)
endif()
function(zg_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "EXPORT;FILE" "FOLDERS;PUBLIC;PRIVATE")
  foreach(kind static shared)
    set(target ${name}_${kind})
    string(TOUPPER ${kind} type)
    add_library(${target} ${type})
    zg_link_objects(${target} cuda ${arg_FOLDERS})
    # Before 1.0 a minor version may change the binary interface.
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${arg_FILE} EXPORT_NAME ${arg_EXPORT}
                          VERSION ${PROJECT_VERSION} INSTALL_RPATH "$ORIGIN"
                          SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${ZG_INCLUDE_DIR}>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    foreach(library ${arg_PUBLIC})
      target_link_libraries(${target} PUBLIC ${library}_${kind})
    endforeach()
    target_link_libraries(${target} PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:zg_options>)
    if(NOT kind STREQUAL ZG_KIND)
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endforeach()
  # An undefined symbol is an error of this link, not of a program that starts later.
  if(NOT ZG_SANITIZE)
    target_link_options(${name}_shared PRIVATE LINKER:--no-undefined)
  endif()
  add_library(zerograd::${arg_EXPORT} ALIAS ${name}_${ZG_KIND})
endfunction()
