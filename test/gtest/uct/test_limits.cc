/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <sys/resource.h>

/*
 * A target may start no thread when a peer connects to its service. The peer
 * does not wait for that.
 */

/* Both ends are in this process: another user has another emulated RNIC */
PEER_FUNCTION(process_without_threads)
{
    struct rlimit before, none;
    entity a, b;
    buffer memory(b.md(), page);
    uct_rkey_t rkey = a.unpack(memory.packed_key());
    complaints log;

    a.add_progress(&b);
    getrlimit(RLIMIT_NPROC, &before);
    none          = before;
    none.rlim_cur = 0;
    for (unsigned count : {0u, 1u}) {
        EXPECT_EQ(0, setrlimit(RLIMIT_NPROC, (count == 0) ? &none : &before));
        for (uint64_t value : {5, 6}) {
            uct_ep_h ep = a.connect(b.address());
            EXPECT_EQ(UCS_OK, a.put(ep, &value, sizeof(value),
                                    memory.address(), rkey));
            a.flush(ep);
            EXPECT_EQ(value, *memory.ptr<uint64_t>());
        }
        EXPECT_EQ(count, num_threads(getpid(), "nprdma-service"));
        EXPECT_EQ(1u, ::count(log, "ulimit -u is 0"));
        EXPECT_EQ(1u, log.lines().size());
    }
    return 0;
}

TEST(test_limits, no_threads)
{
    component_copy everybody_may;
    peer process("process_without_threads", 65534, 8 * 1024 * 1024);

    EXPECT_EQ(0, process.join());
}
