/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_FAKE_DEVICE_H
#define NPRDMA_TEST_FAKE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <ucs/type/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The emulated RNIC as another device: one whose DMA goes through views, whose
 * back end flushes when it invalidates, so that it has no drain, or one with
 * on-demand paging. It can refuse things, and it can lie. A process has one at
 * a time.
 */

/* What the device does wrong */
typedef enum fake_lie {
    FAKE_HONEST,

    /* Views */
    FAKE_SIGNATURE,      /* absent pages read as something else */
    FAKE_OLD_STATES,     /* READs of states return what the first one did */
    FAKE_NOT_TAKEN,      /* invalidating has no effect */
    FAKE_WRITES_ABSENT,  /* WRITEs reach absent pages */
    FAKE_LATE_WRITE,     /* data arrives after an invalidation */
    FAKE_LATE_READ,      /* data is fetched after an invalidation */
    FAKE_OVERTAKEN,      /* data arrives after the READ behind it */

    /* On-demand paging */
    FAKE_NOT_THERE,      /* none is reported */
    FAKE_NO_WRITE,       /* only that of READ is */
    FAKE_REFUSES,        /* registrations fail with the errno */
    FAKE_NO_IMPLICIT,    /* only those of the whole address space do */
    FAKE_STUCK,          /* it keeps the pages that it has once seen */
    FAKE_SHARED,         /* it writes to pages that it should copy */
    FAKE_PAGE_STARTS     /* transfers begin at the beginning of pages */
} fake_lie_t;

/* UCX_NPRDMA_MONITOR */
typedef enum fake_monitor {
    FAKE_AUTO,
    FAKE_KERNEL,
    FAKE_EMULATED
} fake_monitor_t;

typedef struct fake_params {
    fake_monitor_t monitor;
    fake_lie_t     lie;
    size_t         region_size;  /* bytes */
    size_t         too_large;    /* bytes of a registration that is EINVAL;
                                  * 0: none */
    int            mr_error;     /* errno of each registration, or 0 */
    int            open_error;   /* nonzero: the back end cannot be opened */
    int            no_backend;   /* nonzero: the provider has none */
    int            no_dmabuf;    /* nonzero: old rdma-core */
    int            is_iwarp;
    int            no_read;      /* nonzero: no RDMA READ */
} fake_params_t;

/* The device, and what came of opening it */
typedef struct fake_device {
    ucs_status_t status;
    int          has_zcopy;
    size_t       region_size;
    double       region_time;
    uint64_t     drains;
    uint64_t     counted_pages;  /* populated or taken away, say the counters */

    char         why[128];       /* empty if there is none */
    int          is_implicit;
    double       reg_cost;
} fake_device_t;

/** Open the device, and zero copy by views.
 *  @return It, also if there is no zero copy */
fake_device_t *fake_open(const fake_params_t *params);
void fake_close(void);

/** Register memory, which need not be mapped.
 *  @return Length of its region in bytes, or 0 if there is none */
size_t fake_register(uint64_t address, size_t length);

/** Open the device, and its on-demand paging.
 *  @return It. After an error there is nothing to close. */
fake_device_t *fake_odp_open(fake_lie_t lie, int error);
void fake_odp_close(void);

/** From now on, registrations fail with an errno value, after some more. */
void fake_odp_refuse(unsigned after, int error);

/** uct_nprdma_odp_export() and _unexport(), of one registration at a time. */
ucs_status_t fake_odp_export(uintptr_t address, size_t length, uint32_t access);
void fake_odp_unexport(void);

/** uct_nprdma_odp_lkey() */
uint32_t fake_odp_lkey(uintptr_t address, size_t length, int is_write);

/* Size in bytes of a part of the address space */
#define FAKE_ODP_PART_SIZE ((size_t)4 << 20)

/** @return Number of parts that may be used. */
unsigned fake_odp_max_parts(void);

/* Back ends that are open, registrations on the device, and those ever */
extern int fake_num_open, fake_num_mrs, fake_num_registrations;

#ifdef __cplusplus
}
#endif

#endif
