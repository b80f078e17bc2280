# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# libFuzzer targets. clang compiles a target with the sources it tests and with
# sanitizers, whatever compiler the rest is built with. ctest runs each for a
# short time; for longer runs use the script "run" here.

set(NPRDMA_FUZZ_SECONDS 45 CACHE STRING "Time of one fuzzing test in ctest")

find_program(NPRDMA_FUZZ_CC NAMES clang-14 clang-15 clang-16 clang-19 clang)
set(flags -std=gnu11 -g -O1 -Wall -Wextra -Werror -fno-omit-frame-pointer
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)

set(usable FALSE)
if(NPRDMA_FUZZ_CC)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/probe.c
         "#include <stddef.h>\n#include <stdint.h>\n"
         "int LLVMFuzzerTestOneInput(const uint8_t *d, size_t s);\n"
         "int LLVMFuzzerTestOneInput(const uint8_t *d, size_t s)"
         " { (void)d; (void)s; return 0; }\n")
    execute_process(
        COMMAND ${NPRDMA_FUZZ_CC} ${flags} probe.c -o probe
        WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
        RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(result EQUAL 0)
        set(usable TRUE)
    endif()
endif()

# nprdma_fuzz(NAME [FLAGS FLAG...] SOURCES SOURCE...): target NAME of NAME.c and
# the sources it tests, relative to the top of the tree
set(nprdma_fuzz_dir ${CMAKE_CURRENT_LIST_DIR})
function(nprdma_fuzz name)
    cmake_parse_arguments(T "" "" "FLAGS;SOURCES" ${ARGN})
    set(test fuzz.${name})
    if(usable)
        set(binary ${CMAKE_BINARY_DIR}/fuzz/${name})
        set(sources ${CMAKE_CURRENT_SOURCE_DIR}/${name}.c)
        foreach(source ${T_SOURCES})
            list(APPEND sources ${NPRDMA_SOURCE}/${source})
        endforeach()
        # UCX's own headers need not be free of warnings
        string(REPLACE "-I" "-isystem " cppflags "${NPRDMA_UCX_CPPFLAGS}")
        separate_arguments(cppflags UNIX_COMMAND "${cppflags}")
        separate_arguments(libs UNIX_COMMAND "${NPRDMA_UCX_LIBS}")
        add_custom_command(
            OUTPUT ${binary}
            COMMAND ${NPRDMA_FUZZ_CC} ${flags} -DHAVE_CONFIG_H
                    -DNPRDMA_BUILD_UCT -I${NPRDMA_BUILD}
                    -I${nprdma_fuzz_dir} -I${NPRDMA_SOURCE}/include
                    -D_GNU_SOURCE ${T_FLAGS} ${cppflags} ${sources}
                    -MD -MF ${binary}.d -o ${binary} ${libs} -lpthread -ldl
            DEPENDS ${sources} ${nprdma_fuzz_dir}/fuzz.h
            DEPFILE ${binary}.d
            COMMENT "Building fuzzer ${name}" VERBATIM)
        add_custom_target(${name} ALL DEPENDS ${binary})
    endif()
    add_test(NAME ${test}
             COMMAND ${nprdma_fuzz_dir}/run ${CMAKE_BINARY_DIR}/fuzz
                     ${NPRDMA_FUZZ_SECONDS} ${name})
    math(EXPR timeout "${NPRDMA_FUZZ_SECONDS} * 2 + 60")
    set_tests_properties(${test} PROPERTIES TIMEOUT ${timeout}
                         SKIP_RETURN_CODE 77 LABELS "fuzz")
endfunction()
