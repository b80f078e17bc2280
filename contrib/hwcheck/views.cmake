# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
#
# Program hw_views, for tests of the module's views on any RDMA device.
# contrib/hwcheck/hwcheck compiles it by itself.

if(NOT TARGET hw_views)
    find_package(Threads REQUIRED)
    set(dir ${CMAKE_CURRENT_LIST_DIR})
    set(pair ${dir}/../../test/emlx5/guest)
    file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.c)
    add_executable(hw_views ${sources} ${pair}/emlx5_pair.c)
    target_include_directories(hw_views PRIVATE ${pair})
    target_compile_definitions(hw_views PRIVATE _GNU_SOURCE)
    target_compile_options(hw_views PRIVATE -Werror)
    target_link_libraries(hw_views PRIVATE ibverbs Threads::Threads)
endif()
