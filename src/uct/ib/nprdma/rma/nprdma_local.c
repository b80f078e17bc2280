/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_local.h"
#include "nprdma_verify.h"
#include "uct/ib/nprdma/compat/nprdma_compat.h"

#include "ucm/access/nprdma_access.h"
#include "ucm/access/nprdma_fault.h"

#include <ucs/sys/math.h>

/* Maximum number of bytes that the kernel copies at once for a scan: whole
 * lines */
#define UCT_NPRDMA_LOCAL_COPY_SIZE  (64 * NPRDMA_LINE_SIZE)


/* @return Nonzero if the CPU may access the user's memory directly. */
static int uct_nprdma_local_poll(uct_nprdma_local_t *local)
{
    if (local->left == 0) {
        local->may_touch = nprdma_fault_may_touch();
        local->left      = UCT_NPRDMA_LOCAL_INTERVAL;
    }

    --local->left;
    return local->may_touch;
}

ucs_status_t uct_nprdma_local_copy_slow(uct_nprdma_local_t *local, void *to,
                                        const void *from, size_t length,
                                        const void *user)
{
    if (uct_nprdma_local_poll(local)) {
        return (nprdma_touch_copy(to, from, length, user) == 0) ?
               UCS_OK : UCS_ERR_INVALID_ADDR;
    }

    return nprdma_access_copy((uintptr_t)user,
                              (user == to) ? (void*)from : to, length,
                              user == to);
}

ucs_status_t uct_nprdma_local_gather(uct_nprdma_local_t *local, void *dest,
                                     const uct_iov_t *iov, size_t iovcnt)
{
    ucs_status_t status = UCS_OK;
    size_t i, length;

    for (i = 0; (i < iovcnt) && (status == UCS_OK); ++i) {
        length = uct_iov_get_length(&iov[i]);
        status = uct_nprdma_local_copy(local, dest, iov[i].buffer, length,
                                       iov[i].buffer);
        dest   = UCS_PTR_BYTE_OFFSET(dest, length);
    }
    return status;
}

static ucs_status_t
uct_nprdma_local_scan_copy(uct_nprdma_local_t *local, const void *data,
                           uint64_t address, size_t length, uint64_t signature,
                           size_t *count_p)
{
    char copy[UCT_NPRDMA_LOCAL_COPY_SIZE];
    ucs_status_t status;

    status = uct_nprdma_local_copy(local, copy, data, length, data);
    if (status == UCS_OK) {
        *count_p += uct_nprdma_verify_scan(copy, address, length, signature);
    }
    return status;
}

static ucs_status_t
uct_nprdma_local_scan_lines(uct_nprdma_local_t *local, const char *data,
                            uint64_t address, size_t length, uint64_t signature,
                            size_t *count_p)
{
    ucs_status_t status = UCS_OK;
    size_t done, step;
    long count;

    if (uct_nprdma_local_poll(local)) {
        count = nprdma_touch_lines(data, length / NPRDMA_LINE_SIZE,
                                   signature);
        if (ucs_unlikely(count == NPRDMA_TOUCH_FAULT)) {
            return UCS_ERR_INVALID_ADDR;
        }

        *count_p += count;
        return UCS_OK;
    }

    for (done = 0; (done < length) && (status == UCS_OK); done += step) {
        step   = ucs_min(length - done, (size_t)UCT_NPRDMA_LOCAL_COPY_SIZE);
        status = uct_nprdma_local_scan_copy(local, data + done, address + done,
                                            step, signature, count_p);
    }
    return status;
}

ucs_status_t
uct_nprdma_local_scan(uct_nprdma_local_t *local, const void *data,
                      uint64_t address, size_t length, uint64_t signature,
                      size_t *count_p)
{
    const char *bytes   = data;
    size_t head         = ucs_min(uct_nprdma_verify_head(address), length);
    size_t lines        = ucs_align_down(length - head, NPRDMA_LINE_SIZE);
    size_t tail         = length - head - lines;
    ucs_status_t status = UCS_OK;

    *count_p = 0;
    if (head > 0) {
        status = uct_nprdma_local_scan_copy(local, bytes, address, head,
                                            signature, count_p);
    }

    if ((lines > 0) && (status == UCS_OK)) {
        status = uct_nprdma_local_scan_lines(local, bytes + head,
                                             address + head, lines, signature,
                                             count_p);
    }

    if ((tail > 0) && (status == UCS_OK)) {
        status = uct_nprdma_local_scan_copy(local, bytes + head + lines,
                                            address + head + lines, tail,
                                            signature, count_p);
    }
    return status;
}
