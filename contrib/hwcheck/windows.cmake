# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Program hw_windows, for tests of the module's windows on any RDMA device.
# contrib/hwcheck/hwcheck compiles it by itself.

if(NOT TARGET hw_windows)
    find_package(Threads REQUIRED)
    set(dir ${CMAKE_CURRENT_LIST_DIR})
    set(pair ${dir}/../../test/emlx5/guest)
    file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.c)
    add_executable(hw_windows ${sources} ${pair}/emlx5_pair.c)
    target_include_directories(hw_windows PRIVATE ${pair})
    target_compile_definitions(hw_windows PRIVATE _GNU_SOURCE)
    target_compile_options(hw_windows PRIVATE -Werror)
    target_link_libraries(hw_windows PRIVATE ibverbs Threads::Threads)
endif()
