# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Tests that run in a virtual machine, by test/guest/run

set(NPRDMA_GUEST_KERNELS "6.1;6.12" CACHE STRING
    "Kernels that guest tests are run on, of 6.1, 6.12, 7.2 and 6.12-debug")

# Tests for guests of arm64, compiled by programs
set(NPRDMA_ARM64 ${NPRDMA_BUILD}/guest/arm64/test)

# add_guest_test(NAME SCRIPT [NO_MODULE] [SECONDS N] [LOAD N] [KERNELS K...]
#                [RUN COMMAND...] [OPTIONS OPTION...] [PROPERTIES NAME VALUE...]
#                [ARGS ARGUMENT...])
# Adds test guest.K.NAME, which runs a script of the calling directory by COMMAND
# (test/guest/run) with these options on each kernel K (by default all of
# NPRDMA_GUEST_KERNELS). The project's modules are built before, unless
# NO_MODULE. PROPERTIES are more properties of the test.
# SECONDS (120) is the time on an idle machine. The limit is three times that,
# plus a third of it for a second boot if the kernel hangs in the first one.
# LOAD (2) is how many halves of a CPU it keeps busy on average: 1 for a test
# that mostly waits, 4 for one that keeps both CPUs of its guest busy. Two of
# these at once take longer than one after the other, because a virtual CPU
# spins on a lock while the host does not run the holder's. ctest counts the
# halves as PROCESSORS, so its -j must be twice the number of CPUs. Long tests
# start first, and short ones and those that wait fill the gaps.
function(add_guest_test name script)
    cmake_parse_arguments(T "NO_MODULE" "SECONDS;LOAD"
                          "KERNELS;RUN;OPTIONS;PROPERTIES;ARGS" ${ARGN})
    if(T_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "guest.*.${name}: unknown ${T_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT T_SECONDS)
        set(T_SECONDS 120)
    endif()
    if(NOT T_LOAD)
        set(T_LOAD 2)
    endif()
    if(NOT T_KERNELS)
        set(T_KERNELS 6.1 6.12 7.2 6.12-debug)
    endif()
    if(NOT T_RUN)
        set(T_RUN ${NPRDMA_SOURCE}/test/guest/run)
    endif()
    foreach(kernel ${T_KERNELS})
        if(NOT kernel IN_LIST NPRDMA_GUEST_KERNELS)
            continue()
        endif()
        set(test guest.${kernel}.${name})
        set(options ${T_OPTIONS})
        math(EXPR limit "${T_SECONDS} * 3")
        # Its checkers take time and memory
        if(kernel STREQUAL 6.12-debug)
            math(EXPR limit "${limit} * 4")
            list(PREPEND options --memory 2048)
        endif()
        math(EXPR timeout "${limit} * 4 / 3 + 60")
        add_test(NAME ${test}
                 COMMAND ${T_RUN} --kernel ${kernel} --time ${limit}
                         --build ${NPRDMA_BUILD} --prefix ${NPRDMA_PREFIX}
                         --tests ${CMAKE_BINARY_DIR} ${options}
                         ${CMAKE_CURRENT_SOURCE_DIR}/${script} ${T_ARGS})
        if(NOT T_NO_MODULE)
            set_tests_properties(${test} PROPERTIES
                FIXTURES_REQUIRED modules-${kernel})
        endif()
        set_tests_properties(${test} PROPERTIES LABELS guest
            SKIP_RETURN_CODE 77 TIMEOUT ${timeout} PROCESSORS ${T_LOAD}
            COST ${T_SECONDS} ${T_PROPERTIES})
    endforeach()
endfunction()
