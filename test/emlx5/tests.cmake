# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Tests of the emulated adapter in guests: unmodified drivers and programs.

include(${NPRDMA_SOURCE}/test/guest/guest.cmake)

find_library(IBVERBS_LIBRARY ibverbs)
if(NOT IBVERBS_LIBRARY)
    add_test(NAME emlx5 COMMAND sh -c
        "echo 'SKIPPED: libibverbs-dev is not installed'; exit 77")
    set_tests_properties(emlx5 PROPERTIES SKIP_RETURN_CODE 77 LABELS guest)
    return()
endif()

find_package(Threads REQUIRED)
foreach(program emlx5_verbs emlx5_nodes)
    add_executable(${program} guest/${program}.c guest/emlx5_pair.c)
    target_compile_definitions(${program} PRIVATE _GNU_SOURCE)
    target_link_libraries(${program} PRIVATE ${IBVERBS_LIBRARY} Threads::Threads)
endforeach()
add_executable(emlx5_counts guest/emlx5_counts.c)
include(${NPRDMA_SOURCE}/contrib/hwcheck/windows.cmake)

set(hwcheck ${NPRDMA_SOURCE}/contrib/hwcheck)
add_executable(emlx5_gone guest/emlx5_gone.c guest/emlx5_pair.c
               ${hwcheck}/hw_access.c ${hwcheck}/hw_region.c)
target_include_directories(emlx5_gone PRIVATE ${hwcheck} guest)
target_compile_definitions(emlx5_gone PRIVATE _GNU_SOURCE)
target_link_libraries(emlx5_gone PRIVATE ${IBVERBS_LIBRARY} Threads::Threads)

# The default takes one kernel and what shows each feature once
set(NPRDMA_EMLX5 some CACHE STRING
    "Tests of the emulated mlx5 adapter in guests: some or all")

# add_emlx5_test(NAME SCRIPT [ALL_ONLY] [MODULE] [SECONDS N] [LOAD N]
#                [KERNELS K...] [IOMMU MODE] [FUNCTIONS N] [MODEL OPTION...]
#                [ARGS ARGUMENT...])
# Adds test guest.K.emlx5.NAME, which runs guest/SCRIPT in a guest with N (2)
# functions, on each kernel K (6.12), with MODULE after the project's modules are
# built. SECONDS, LOAD (4) and ARGS are as in add_guest_test(): programs that poll
# keep both CPUs of the guest busy. With ALL_ONLY, and on other kernels than 6.12,
# only NPRDMA_EMLX5=all has the test.
function(add_emlx5_test name script)
    cmake_parse_arguments(T "ALL_ONLY;MODULE" "SECONDS;LOAD;IOMMU;FUNCTIONS"
                          "KERNELS;MODEL;ARGS" ${ARGN})
    if(T_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "emlx5.${name}: unknown ${T_UNPARSED_ARGUMENTS}")
    endif()
    if(NOT T_LOAD)
        set(T_LOAD 4)
    endif()
    if(NOT T_KERNELS)
        set(T_KERNELS 6.12)
    endif()
    if(NOT NPRDMA_EMLX5 STREQUAL "all")
        if(T_ALL_ONLY OR NOT "6.12" IN_LIST T_KERNELS)
            return()
        endif()
        set(T_KERNELS 6.12)
    endif()
    if(NOT T_IOMMU)
        set(T_IOMMU legacy)
    endif()
    if(NOT T_FUNCTIONS)
        set(T_FUNCTIONS 2)
    endif()
    set(model --functions ${T_FUNCTIONS})
    foreach(option ${T_MODEL})
        list(APPEND model --model ${option})
    endforeach()
    set(no_module NO_MODULE)
    if(T_MODULE)
        set(no_module "")
    endif()
    add_guest_test(emlx5.${name} guest/${script} ${no_module}
        SECONDS ${T_SECONDS} LOAD ${T_LOAD} KERNELS ${T_KERNELS}
        RUN ${CMAKE_CURRENT_SOURCE_DIR}/guest/run ${model} --
        OPTIONS --iommu ${T_IOMMU} --append iomem=relaxed
        PROPERTIES ENVIRONMENT "EMLX5=$<TARGET_FILE:emlx5>" ARGS ${T_ARGS})
endfunction()

add_emlx5_test(verbs verbs KERNELS 6.1 6.12 7.2 MODEL --delay 50
               ARGS $<TARGET_FILE:emlx5_verbs>)
add_emlx5_test(verbs.ss verbs ALL_ONLY IOMMU ss
               MODEL --delay 50 --seed 2 ARGS $<TARGET_FILE:emlx5_verbs>)
add_emlx5_test(traffic traffic KERNELS 6.1 6.12 7.2)
add_emlx5_test(relaxed relaxed LOAD 2 MODEL --relaxed-writes
               ARGS $<TARGET_FILE:emlx5_verbs>)
add_emlx5_test(ucx ucx ALL_ONLY SECONDS 180 KERNELS 6.1 6.12 7.2)
add_emlx5_test(pyverbs pyverbs ALL_ONLY SECONDS 300 KERNELS 6.1 6.12 7.2
               MODEL --whole --chunk 65536)
add_emlx5_test(mpi mpi ALL_ONLY SECONDS 180 KERNELS 6.1 6.12 7.2 MODEL --chunk 65536)
add_emlx5_test(faults faults ALL_ONLY KERNELS 6.1 6.12 7.2
               ARGS $<TARGET_FILE:emlx5_verbs> $<TARGET_FILE:emlx5_counts>)

# With the project's module
add_emlx5_test(windows.legacy windows MODULE KERNELS 6.1 6.12 7.2
               ARGS $<TARGET_FILE:hw_windows> 5)
add_emlx5_test(windows.ss windows MODULE ALL_ONLY KERNELS 6.12 7.2
               IOMMU ss ARGS $<TARGET_FILE:hw_windows> 5)

add_emlx5_test(gone gone MODULE ALL_ONLY KERNELS 6.1 6.12 7.2
               ARGS $<TARGET_FILE:emlx5_gone>)

# The transport on windows of the module; arguments are cases of guest/zcopy
add_emlx5_test(zcopy.choice zcopy MODULE KERNELS 6.1 6.12 7.2
               ARGS choice no_flush dma)
add_emlx5_test(zcopy.choice.ss zcopy MODULE ALL_ONLY KERNELS 6.12 7.2 IOMMU ss
               ARGS choice no_flush)
add_emlx5_test(zcopy.disturbed zcopy MODULE SECONDS 200 KERNELS 6.1 6.12 7.2
               ARGS disturbed)
add_emlx5_test(zcopy.collapsed zcopy MODULE ALL_ONLY SECONDS 150
               KERNELS 6.12 7.2 ARGS collapsed)
add_emlx5_test(zcopy.mpi zcopy MODULE KERNELS 6.1 6.12 7.2 ARGS mpi)
add_emlx5_test(zcopy.kept zcopy MODULE SECONDS 60 KERNELS 6.12 7.2 ARGS kept)
add_emlx5_test(zcopy.coll zcopy MODULE ALL_ONLY SECONDS 200 KERNELS 6.12 7.2
               ARGS coll)
add_emlx5_test(zcopy.rma zcopy MODULE ALL_ONLY SECONDS 200 KERNELS 6.12 7.2
               ARGS rma)
add_emlx5_test(zcopy.keys zcopy MODULE SECONDS 60 KERNELS 6.1 6.12 7.2
               ARGS keys)
add_emlx5_test(zcopy.relaxed zcopy MODULE SECONDS 60 MODEL --relaxed-writes
               ARGS relaxed)

# A part of UCX's own gtest, which contrib/ucx-gtest has built. It is copied to
# where the guest can read it.
execute_process(COMMAND sh -c
    "ls \"\${NPRDMA_CACHE:-\${XDG_CACHE_HOME:-\$HOME/.cache}/nprdma}\"/ucx-gtest-*/build/test/gtest/gtest"
    OUTPUT_VARIABLE gtest ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(gtest AND NOT gtest MATCHES "\n")
    configure_file(${gtest} ucx_gtest COPYONLY)
endif()
add_emlx5_test(zcopy.conformance conformance MODULE ALL_ONLY SECONDS 300
    KERNELS 6.12 7.2 ARGS ${CMAKE_CURRENT_BINARY_DIR}/ucx_gtest
    nprdma/test_ucp_tag_match.*/0:nprdma/uct_p2p_rma_test.*bcopy*/1:nprdma/test_ucp_rma.*blocking_zcopy*/0)

# add_emlx5_control(NAME RACE REGEX): the module with control/NAME.patch is found
# out by this race of hw_windows
function(add_emlx5_control name race regex)
    set(dir ${NPRDMA_BUILD}/guest/control-6.12-${name})
    add_emlx5_test(${name} control ALL_ONLY
                   ARGS ${dir} ${race} ${regex} $<TARGET_FILE:hw_windows>)
    if(TEST guest.6.12.emlx5.${name})
        add_test(NAME guest.6.12.emlx5.${name}.modules
                 COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/control/modules 6.12
                         ${name} ${dir})
        set_tests_properties(guest.6.12.emlx5.${name}.modules PROPERTIES
            LABELS guest TIMEOUT 600 SKIP_RETURN_CODE 77 PROCESSORS 2 COST 900
            FIXTURES_SETUP emlx5-${name})
        set_tests_properties(guest.6.12.emlx5.${name} PROPERTIES
            FIXTURES_REQUIRED emlx5-${name})
    endif()
endfunction()
# Whatever the race meets first
add_emlx5_control(no_flush puts "\\(were taken away\\|data is missing\\)")
add_emlx5_control(late_states gets "absent words that the states say are there")

# add_emlx5_nodes(NAME SCRIPT MEMORY PROGRAM): SCRIPT and PROGRAM in two guests
function(add_emlx5_nodes name script memory program)
    if(NPRDMA_EMLX5 STREQUAL "all")
        add_guest_test(emlx5.${name} guest/${script} KERNELS 6.12 SECONDS 100
            LOAD 4 RUN ${CMAKE_CURRENT_SOURCE_DIR}/guest/two
            OPTIONS --iommu legacy --memory ${memory} --append iomem=relaxed
            PROPERTIES ENVIRONMENT "EMLX5=$<TARGET_FILE:emlx5>"
            ARGS ${program})
    endif()
endfunction()
add_emlx5_nodes(nodes nodes 512 $<TARGET_FILE:emlx5_nodes>)
add_emlx5_nodes(zcopy.nodes zcopy_nodes 768 ${CMAKE_BINARY_DIR}/ucp/ucp_nodes)
