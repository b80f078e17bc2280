/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_OPERATIONS_H_
#define NPRDMA_TEST_OPERATIONS_H_

#include "uct_test.h"

#include <algorithm>
#include <cstring>

/* One kind of operation, between the beginning of a local buffer and an address
 * of a peer */
struct operation {
    const char *name;
    size_t     length;
    bool       writes;     /* At the peer */
    ucs_status_t (*start)(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                          const buffer &local, uct_completion_t *comp);
};

/* An operation that only a flush reports ends when the flush does */
inline ucs_status_t
flush_behind(uct_ep_h ep, ucs_status_t status, uct_completion_t *comp)
{
    if (status < 0) {
        return status;
    }
    status = uct_ep_flush(ep, 0, comp);
    /* What was started is not started again */
    return (status == UCS_ERR_NO_RESOURCE) ? UCS_OK : status;
}

inline constexpr operation op_am = {
    "am", 0, false,
    [](uct_ep_h ep, uint64_t, uct_rkey_t, const buffer &local,
       uct_completion_t *comp) {
        return flush_behind(ep, uct_ep_am_short(ep, 1, 0, local.ptr(), 100),
                            comp);
    }
};

inline constexpr operation op_put_short = {
    "put_short", 8, true,
    [](uct_ep_h ep, uint64_t address, uct_rkey_t rkey, const buffer &local,
       uct_completion_t *comp) {
        return flush_behind(ep, uct_ep_put_short(ep, local.ptr(), 8, address,
                                                 rkey), comp);
    }
};

template<size_t length>
ucs_status_t start_put_bcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                             const buffer &local, uct_completion_t *comp)
{
    auto pack = [](void *dest, void *arg) {
        memcpy(dest, arg, length);
        return length;
    };
    ssize_t packed = uct_ep_put_bcopy(ep, pack, local.ptr(), address, rkey);

    return flush_behind(ep, (ucs_status_t)std::min<ssize_t>(0, packed), comp);
}

template<size_t length>
ucs_status_t start_get_bcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                             const buffer &local, uct_completion_t *comp)
{
    return uct_ep_get_bcopy(ep, unpack_to, local.ptr(), length, address, rkey,
                            comp);
}

template<size_t length>
ucs_status_t start_put_zcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                             const buffer &local, uct_completion_t *comp)
{
    uct_iov_t iov = {local.ptr(), length, local.memh(), 0, 1};

    return uct_ep_put_zcopy(ep, &iov, 1, address, rkey, comp);
}

template<size_t length>
ucs_status_t start_get_zcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                             const buffer &local, uct_completion_t *comp)
{
    uct_iov_t iov = {local.ptr(), length, local.memh(), 0, 1};

    return uct_ep_get_zcopy(ep, &iov, 1, address, rkey, comp);
}

inline constexpr operation op_atomic_post = {
    "atomic_post", 8, true,
    [](uct_ep_h ep, uint64_t address, uct_rkey_t rkey, const buffer &,
       uct_completion_t *comp) {
        return flush_behind(ep, uct_ep_atomic64_post(ep, UCT_ATOMIC_OP_ADD, 1,
                                                     address, rkey), comp);
    }
};

inline constexpr operation op_atomic_fetch = {
    "atomic_fetch", 8, true,
    [](uct_ep_h ep, uint64_t address, uct_rkey_t rkey, const buffer &local,
       uct_completion_t *comp) {
        return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1,
                                     local.ptr<uint64_t>(), address, rkey,
                                     comp);
    }
};

#endif
