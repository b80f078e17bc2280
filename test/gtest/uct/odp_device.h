/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_ODP_DEVICE_H_
#define NPRDMA_TEST_ODP_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include <ucs/type/status.h>

/*
 * The emulated RNIC with faults in what it says about on-demand paging and in
 * what it does, and the part of the transport that uses it.
 */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum odp_fault {
    ODP_FAULT_NONE,
    ODP_FAULT_QUERY,          /* The device does not tell, but the errno */
    ODP_FAULT_NOT_THERE,      /* No on-demand paging is reported */
    ODP_FAULT_NO_WRITE,       /* Only that of READ is */
    ODP_FAULT_REFUSES,        /* Registrations fail with the errno */
    ODP_FAULT_NO_IMPLICIT,    /* Only those of the whole address space do */
    ODP_FAULT_NO_RTS,         /* No connection for the check */
    ODP_FAULT_SHIFTED,        /* Data comes from and goes to other addresses */
    ODP_FAULT_STUCK,          /* It keeps the pages that it has once seen */
    ODP_FAULT_SHARED,         /* It writes to pages that it should copy */
    ODP_FAULT_PAGE_STARTS     /* Transfers begin at the beginning of pages */
} odp_fault_t;

typedef struct odp_open_result {
    ucs_status_t status;
    char         why[128];    /* Empty if there is none */
    int          is_implicit;
    double       reg_cost;
} odp_open_result_t;

/**
 * Open the device and its on-demand paging.
 *
 * @param [in]  fault   The fault.
 * @param [in]  error   An errno value for it.
 * @param [out] result  Filled. After an error there is nothing to close.
 */
void odp_device_open(odp_fault_t fault, int error, odp_open_result_t *result);

/** Close both. */
void odp_device_close(void);

/** Memory regions that exist now, and registrations ever. */
unsigned odp_device_live(void);
unsigned odp_device_registrations(void);

/** From now on, registrations fail with an errno value, after some more. */
void odp_device_refuse(unsigned after, int error);

/** uct_nprdma_odp_export() and _unexport(), of one registration at a time. */
ucs_status_t odp_device_export(uintptr_t address, size_t length,
                               uint32_t access);
void odp_device_unexport(void);

/** uct_nprdma_odp_lkey() */
uint32_t odp_device_lkey(uintptr_t address, size_t length, int is_write);

/** Size in bytes of a part of the address space, and the number of parts that
 *  may be used. */
size_t odp_device_part_size(void);
unsigned odp_device_max_parts(void);

#ifdef __cplusplus
}
#endif

#endif
