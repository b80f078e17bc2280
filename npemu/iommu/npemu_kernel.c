/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "iommu/npemu_kernel.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Size of the private memory that replaces parts of an emulated table's file: a
 * header, of which the description and the counters are used, and the signature
 * page. */
#define NPEMU_KERNEL_PRIVATE NPEMU_TABLE_STATES

static int npemu_kernel_info(int fd, struct nprdma_ioc_states_info *info)
{
    memset(info, 0, sizeof(*info));
    info->size = sizeof(*info);
    return ioctl(fd, NPRDMA_IOC_STATES_INFO, info);
}

int npemu_kernel_is_states(int fd)
{
    struct nprdma_ioc_states_info info;

    return npemu_kernel_info(fd, &info) == 0;
}

/* Check what the module says of a region. Returns a description of the error,
 * NULL if there is none. */
static const char *
npemu_kernel_check(const struct nprdma_ioc_states_info *info, int pid)
{
    uint64_t num_pages = info->length / NPRDMA_PAGE_SIZE;

    if (info->abi != NPRDMA_ABI_VERSION) {
        return "the kernel module that made its region is of another version";
    }
    if ((pid == getpid()) && !info->owner) {
        return "its region is another process'";
    }
    if ((info->length == 0) || (info->id == 0) ||
        ((info->address | info->length) & (NPRDMA_PAGE_SIZE - 1)) ||
        (info->states_offset < sizeof(struct nprdma_states_header)) ||
        (info->states_offset > info->states_size) ||
        (num_pages > (info->states_size - info->states_offset) /
                             sizeof(uint32_t))) {
        return "the kernel module describes its region wrongly";
    }
    return NULL;
}

static npemu_iommu_header_t *
npemu_kernel_header(const struct nprdma_ioc_states_info *info, int pid)
{
    npemu_iommu_header_t *header;
    uint64_t *page;
    size_t i;
    long addr;

    addr = syscall(SYS_mmap, NULL, NPEMU_KERNEL_PRIVATE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (addr == -1) {
        return NULL;
    }

    header            = (npemu_iommu_header_t*)addr;
    header->version   = NPEMU_TABLE_VERSION;
    header->pid       = pid;
    header->id        = info->id;
    header->address   = info->address;
    header->length    = info->length;
    header->signature = info->signature;
    page              = (uint64_t*)(addr + NPEMU_TABLE_SIGNATURE);
    for (i = 0; i < NPRDMA_PAGE_SIZE / sizeof(*page); ++i) {
        page[i] = info->signature;
    }
    return header;
}

const char *npemu_kernel_open(npemu_table_t *table, int fd, int pid)
{
    struct nprdma_ioc_states_info info;
    const char *problem;
    long addr;

    if (npemu_kernel_info(fd, &info) != 0) {
        return "it is not that of a region";
    }

    problem = npemu_kernel_check(&info, pid);
    if (problem != NULL) {
        return problem;
    }

    addr = syscall(SYS_mmap, NULL, info.states_size, PROT_READ, MAP_SHARED, fd,
                   0);
    if (addr == -1) {
        return "it cannot be mapped";
    }

    table->header = npemu_kernel_header(&info, pid);
    if (table->header == NULL) {
        syscall(SYS_munmap, addr, info.states_size);
        return "no memory";
    }

    table->kernel      = (const struct nprdma_states_header*)addr;
    table->kernel_size = info.states_size;
    table->address     = info.address;
    table->num_pages   = info.length / NPRDMA_PAGE_SIZE;
    table->signature   = (uint8_t*)table->header + NPEMU_TABLE_SIGNATURE;
    table->states      = (nprdma_page_state_t*)(addr + info.states_offset);
    atomic_store(&table->used, 1);
    return NULL;
}

void npemu_kernel_close(npemu_table_t *table)
{
    syscall(SYS_munmap, table->header, NPEMU_KERNEL_PRIVATE);
    syscall(SYS_munmap, table->kernel, table->kernel_size);
    table->kernel = NULL;
}
