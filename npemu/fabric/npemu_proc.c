/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_proc.h"

#include <errno.h>
#include <sys/mman.h>

static npemu_proc_t *_Atomic npemu_self_none;
npemu_proc_t *_Atomic *npemu_self_ptr = &npemu_self_none;

int npemu_self_init(void)
{
    void *page;

    if (npemu_self_ptr != &npemu_self_none) {
        return 0;
    }

    page = mmap(NULL, NPRDMA_PAGE_SIZE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return ENOMEM;
    }

    if (madvise(page, NPRDMA_PAGE_SIZE, MADV_WIPEONFORK) < 0) {
        munmap(page, NPRDMA_PAGE_SIZE);
        return ENOSYS;
    }

    npemu_self_ptr = page;
    return 0;
}
