/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_populate_step.h"
#include "nprdma_mem.h"


ucs_status_t
uct_nprdma_populate_step(uct_nprdma_mem_md_t *md, uint64_t key,
                         uint64_t address, uint64_t length, uint32_t access,
                         unsigned flags, uint32_t *states, size_t num_states)
{
    const nprdma_region_t *region;
    uct_nprdma_mem_t *mem;
    ucs_status_t status;
    nprdma_reg_t *reg;
    size_t page, i;

    status = nprdma_reg_get(md->regs, key, address, length, access, &reg);
    if (status != UCS_OK) {
        return status;
    }

    mem = nprdma_reg_extra(reg);
    if (!mem->has_region) {
        status = UCS_ERR_UNSUPPORTED;
        goto out;
    }

    status = nprdma_monitor_populate(md->monitor, &mem->range, address, length,
                                     flags);
    if (status != UCS_OK) {
        goto out;
    }

    region = mem->range.region;
    page   = nprdma_region_page_index(region, address);
    num_states = ucs_min(num_states, nprdma_region_num_pages(address, length));
    for (i = 0; i < num_states; ++i) {
        states[i] = atomic_load_explicit(&region->states[page + i],
                                         memory_order_acquire);
    }

out:
    nprdma_reg_put(reg);
    return status;
}
