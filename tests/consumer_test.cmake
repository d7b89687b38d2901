# Installs the build into a folder of its own, then configures, builds and runs tests/consumer
# against it, and checks that the README shows the program that was run.
# cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DGENERATOR=... [-DLONG=ON] -P consumer_test.cmake
# LONG: of the built programs run those that train for seconds, else the others.
set(folder ${BUILD_DIR}/consumer${LONG})
set(prefix ${folder}/prefix)
file(REMOVE_RECURSE ${folder})
set(long "^(gpt|lora)$")
set(which --exclude-regex)
if(LONG)
  set(which --tests-regex)
endif()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
                  ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed:\n${output}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/consumer -B ${folder}/build
    -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH=${prefix}
    -DCMAKE_CXX_FLAGS=${CXX_FLAGS})
run(${CMAKE_COMMAND} --build ${folder}/build)
run(${CMAKE_CTEST_COMMAND} --test-dir ${folder}/build --output-on-failure --parallel 2 ${which} ${long})

file(READ ${SOURCE_DIR}/README.md readme)
foreach(file tests/consumer/train.cpp)
  file(READ ${SOURCE_DIR}/${file} program)
  string(FIND "${readme}" "${program}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "README.md does not show ${file} as it is")
  endif()
endforeach()
