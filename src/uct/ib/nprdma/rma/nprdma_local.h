/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_LOCAL_H_
#define UCT_NPRDMA_LOCAL_H_

#include "ucm/access/nprdma_touch.h"

#include <uct/api/uct.h>
#include <ucs/sys/compiler.h>

#include <stddef.h>
#include <stdint.h>

/*
 * The user's own buffers, where the CPU copies them or looks at them: a buffer
 * that is unmapped, protected or truncated is an error of its operation, never
 * a signal (ARCHITECTURE 4).
 *
 * The CPU may touch them while the handler of faults is in place and the thread
 * does not block its signals. To ask that takes system calls, so it is asked
 * once per UCT_NPRDMA_LOCAL_INTERVAL copies; in between, changes by the
 * application are not known.
 */

/* Copies between two looks */
#define UCT_NPRDMA_LOCAL_INTERVAL  1024u

/* Of an interface; all zeros to begin with */
typedef struct uct_nprdma_local {
    uint32_t left;      /* Copies until the next look */
    int      may_touch; /* Result of the last one */
} uct_nprdma_local_t;


/** What uct_nprdma_local_copy() does where the CPU may not, or not yet. */
ucs_status_t uct_nprdma_local_copy_slow(uct_nprdma_local_t *local, void *to,
                                        const void *from, size_t length,
                                        const void *user);


/**
 * Copy to or from a buffer of the user.
 *
 * @param [in] local   Of the interface.
 * @param [in] to      Destination.
 * @param [in] from    Source.
 * @param [in] length  Bytes; may be 0.
 * @param [in] user    @a to or @a from, whichever is the user's.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_ADDR: not all of it is there; any part has
 *         been copied.
 */
static inline ucs_status_t
uct_nprdma_local_copy(uct_nprdma_local_t *local, void *to, const void *from,
                      size_t length, const void *user)
{
#if NPRDMA_TOUCH_SUPPORTED
    if (ucs_likely(local->may_touch && (local->left > 0))) {
        --local->left;
        return ucs_likely(nprdma_touch_copy(to, from, length, user) == 0) ?
               UCS_OK : UCS_ERR_INVALID_ADDR;
    }
#endif
    return uct_nprdma_local_copy_slow(local, to, from, length, user);
}


/**
 * Gather buffers of the user. Arguments as of uct_nprdma_local_copy().
 *
 * @param [out] dest    As long as all of them together.
 * @param [in]  iov     The buffers.
 * @param [in]  iovcnt  Number of them.
 *
 * @return UCS_OK or UCS_ERR_INVALID_ADDR.
 */
ucs_status_t uct_nprdma_local_gather(uct_nprdma_local_t *local, void *dest,
                                     const uct_iov_t *iov, size_t iovcnt);


/**
 * As uct_nprdma_verify_scan(), of data in a buffer of the user.
 *
 * @param [in]  local    Of the interface.
 * @param [in]  data     As there, as the other arguments.
 * @param [out] count_p  Number of lines that may not be real.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_ADDR: not all of the buffer is there.
 */
ucs_status_t
uct_nprdma_local_scan(uct_nprdma_local_t *local, const void *data,
                      uint64_t address, size_t length, uint64_t signature,
                      size_t *count_p);

#endif
