# Which NVIDIA cards this machine has, and for which a build has machine code.

# zg_cuda_cards(<new> <old>): the compute capabilities of the machine's cards from 8.0 on, as "90;120"; and
# names with capabilities of older cards, which the kernels do not support.
function(zg_cuda_cards new old)
  set(found)
  set(too_old)
  execute_process(COMMAND nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE said ERROR_QUIET)
  string(REGEX MATCHALL "[^\n]+, *[0-9]+\\.[0-9]+" cards "${said}")
  foreach(card ${cards})
    string(REGEX MATCH "^(.*), *([0-9]+)\\.([0-9]+)$" matched "${card}")
    if(CMAKE_MATCH_2 LESS 8)
      list(APPEND too_old "${CMAKE_MATCH_1} (${CMAKE_MATCH_2}.${CMAKE_MATCH_3})")
    else()
      list(APPEND found ${CMAKE_MATCH_2}${CMAKE_MATCH_3})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES found)
  list(JOIN too_old ", " too_old)
  set(${new} "${found}" PARENT_SCOPE)
  set(${old} "${too_old}" PARENT_SCOPE)
endfunction()

# zg_old_cuda_cards(<out>): the machine's cards, if all of them are too old; else empty.
function(zg_old_cuda_cards out)
  zg_cuda_cards(new old)
  if(new)
    set(old)
  endif()
  set(${out} "${old}" PARENT_SCOPE)
endfunction()

# zg_cuda_architectures(<out> <cards> <nvcc>): CMAKE_CUDA_ARCHITECTURES for ZG_CUDA_CARDS. A card without machine
# code, or one that nvcc does not know yet, runs the PTX of 8.0, which its driver compiles at the first start.
# Without a card it is machine code for Hopper, which tests inspect.
function(zg_cuda_architectures out cards nvcc)
  execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+" known "${known}")
  set(wanted 80 89 90 100 120)
  if(NOT cards STREQUAL "ALL")
    zg_cuda_cards(wanted old)
    if(NOT wanted)
      set(wanted 90)
    endif()
  endif()
  set(architectures)
  foreach(card ${wanted})
    if(card IN_LIST known OR card STREQUAL "90")
      list(APPEND architectures ${card}-real)
    endif()
  endforeach()
  list(TRANSFORM architectures REPLACE "^90-" "90a-")  # only 90a has wgmma and TMA
  set(${out} "${architectures};80-virtual" PARENT_SCOPE)
endfunction()
