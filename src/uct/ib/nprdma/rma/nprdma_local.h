/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_LOCAL_H_
#define UCT_NPRDMA_LOCAL_H_

#include "ucm/access/nprdma_access.h"

#include <uct/api/uct.h>
#include <ucs/sys/compiler.h>

#include <stddef.h>
#include <stdint.h>

/*
 * CPU access to the user's own buffers. A buffer that is unmapped, protected or
 * truncated causes an error of its operation, never a signal (ARCHITECTURE 4).
 *
 * The CPU may access a buffer directly while the fault handler is installed and
 * the thread does not block its signals. That check takes system calls.
 * Therefore it is made once per UCT_NPRDMA_LOCAL_INTERVAL copies, and a change
 * by the application in between is not noticed.
 */

/* Copies between two checks */
#define UCT_NPRDMA_LOCAL_INTERVAL  1024u

/* State of an interface; initially all zeros */
typedef struct uct_nprdma_local {
    uint32_t left;      /* Copies until the next check */
    int      may_touch; /* Result of the last check */
} uct_nprdma_local_t;


/* Slow path of uct_nprdma_local_copy(): a check is due, or the kernel copies */
ucs_status_t uct_nprdma_local_copy_slow(uct_nprdma_local_t *local, void *to,
                                        const void *from, size_t length,
                                        const void *user);


/* Copy to or from a buffer of the user, which is one of `to` and `from`. After
 * UCS_ERR_INVALID_ADDR any part may have been copied. */
static inline ucs_status_t
uct_nprdma_local_copy(uct_nprdma_local_t *local, void *to, const void *from,
                      size_t length, const void *user)
{
    if (ucs_likely(local->may_touch && (local->left > 0))) {
        --local->left;
        return ucs_likely(nprdma_touch_copy(to, from, length, user) == 0) ?
               UCS_OK : UCS_ERR_INVALID_ADDR;
    }
    return uct_nprdma_local_copy_slow(local, to, from, length, user);
}


ucs_status_t uct_nprdma_local_gather(uct_nprdma_local_t *local, void *dest,
                                     const uct_iov_t *iov, size_t iovcnt);


/* uct_nprdma_verify_scan() of data in a buffer of the user */
ucs_status_t
uct_nprdma_local_scan(uct_nprdma_local_t *local, const void *data,
                      uint64_t address, size_t length, uint64_t signature,
                      size_t *count_p);

#endif
