# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# NPEMU_SHIM: the library that shows npemu0 to verbs programs.
# NPEMU_SHIM_PRELOAD: what LD_PRELOAD must hold for it.

set(NPEMU_SHIM ${NPRDMA_BUILD}/npemu/.libs/libnpemu-verbs.so)
set(NPEMU_SHIM_PRELOAD ${NPEMU_SHIM})

# The sanitizer's library must come first
foreach(sanitizer address thread)
    if(sanitizer IN_LIST NPRDMA_SANITIZE)
        string(SUBSTRING ${sanitizer} 0 1 letter)
        execute_process(
            COMMAND ${CMAKE_C_COMPILER} -print-file-name=lib${letter}san.so
            OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
        get_filename_component(path ${path} REALPATH)
        set(NPEMU_SHIM_PRELOAD "${path}:${NPEMU_SHIM_PRELOAD}")
    endif()
endforeach()
