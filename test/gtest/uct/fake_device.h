/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_FAKE_DEVICE_H
#define NPRDMA_TEST_FAKE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A verbs device whose DMA goes through views, made of the emulated RNIC: its
 * back end flushes when it invalidates, so it has no drain. It can refuse
 * things, and it can lie.
 */

/* What the device does wrong */
typedef enum fake_lie {
    FAKE_HONEST,
    FAKE_SIGNATURE,      /* absent pages read as something else */
    FAKE_NOT_POPULATED,  /* populating has no effect */
    FAKE_WRONG_DATA,     /* READs return wrong data */
    FAKE_WRONG_STATES,   /* READs of states return wrong states */
    FAKE_OLD_STATES,     /* READs of states return what the first one did */
    FAKE_NOT_TAKEN,      /* invalidating has no effect */
    FAKE_WRITES_ABSENT,  /* WRITEs reach absent pages */
    FAKE_READS_TAKEN,    /* READs reach pages that were taken */
    FAKE_LATE_WRITE,     /* data arrives after an invalidation */
    FAKE_LATE_READ,      /* data is fetched after an invalidation */
    FAKE_OVERTAKEN,      /* data arrives after the READ behind it */
    FAKE_FAILS           /* operations fail */
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

typedef struct fake_device fake_device_t;

/* @return Device, also if the MD could not be opened; NULL: no emulated RNIC */
fake_device_t *fake_open(const fake_params_t *params);
void fake_close(fake_device_t *device);

/* Result of opening the MD's memory, ucs_status_t */
int fake_status(const fake_device_t *device);
int fake_has_zcopy(const fake_device_t *device);
size_t fake_region_size(const fake_device_t *device);
double fake_region_time(const fake_device_t *device);
uint64_t fake_drains(const fake_device_t *device);

/* Pages that the counters say were populated or taken away */
uint64_t fake_counted_pages(const fake_device_t *device);

/* Registers memory, which need not be mapped.
 * @return Length of its region in bytes, or 0 if there is none */
size_t fake_register(fake_device_t *device, uint64_t address, size_t length);

/* Back ends that are open, and registrations on the device */
extern int fake_num_open, fake_num_mrs;

#ifdef __cplusplus
}
#endif

#endif
