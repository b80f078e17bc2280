# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Library emlx5_model: all of the emulated adapter but the program's main(). For
# the program and for its unit tests, either of which may be built alone.

if(NOT TARGET emlx5_model)
    set(dir ${CMAKE_CURRENT_LIST_DIR})
    file(GLOB sources CONFIGURE_DEPENDS ${dir}/base/*.c ${dir}/host/*.c
         ${dir}/object/*.c ${dir}/engine/*.c ${dir}/firmware/*.c ${dir}/bus/*.c)
    add_library(emlx5_model STATIC ${sources})
    target_include_directories(emlx5_model PUBLIC ${dir})
    target_compile_definitions(emlx5_model PUBLIC _GNU_SOURCE)
    target_compile_options(emlx5_model PRIVATE -Werror)
endif()
