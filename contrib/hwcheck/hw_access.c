/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hw_access.h"

void hw_access_open(hw_access_t *a, const char *from, const char *to,
                    hw_kind_t kind, size_t length)
{
    pair_open(&a->pair, from, to);
    pair_connect(&a->pair);
    if (kind == HW_VIEWS) {
        (void)hw_attach(&a->region, to);
    }
    hw_region_map(&a->region, kind, length);
    hw_region_register(&a->region, a->pair.b.pd);
}

void hw_access_close(hw_access_t *a)
{
    hw_region_close(&a->region);
    pair_close(&a->pair);
}

void hw_post(hw_access_t *a, int is_put, size_t offset, size_t from,
             size_t length)
{
    request_t request = {
        .opcode = is_put ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, .from = from,
        .length = (uint32_t)length,
        .remote = (uintptr_t)a->region.memory + offset,
        .rkey = is_put ? a->region.write->rkey : a->region.read->rkey
    };

    side_post(&a->pair.a, &request);
}

void hw_post_states(hw_access_t *a, size_t page, size_t count)
{
    request_t request = {
        .opcode = IBV_WR_RDMA_READ, .from = HW_STATES_AT,
        .length = (uint32_t)(count * sizeof(uint32_t)),
        .remote = page * sizeof(uint32_t), .rkey = a->region.state_mr->rkey
    };

    side_post(&a->pair.a, &request);
}

void hw_wait(hw_access_t *a, int count)
{
    int i;

    for (i = 0; i < count; ++i) {
        (void)side_wait_ok(&a->pair.a);
    }
}

uint64_t hw_get(hw_access_t *a, size_t word, size_t count)
{
    hw_post(a, 0, word * 8, 0, count * 8);
    hw_wait(a, 1);
    return hw_buffer(a)[0];
}

void hw_put(hw_access_t *a, size_t word, uint64_t value)
{
    hw_buffer(a)[0] = value;
    hw_post(a, 1, word * 8, 0, 8);
    hw_wait(a, 1);
}
