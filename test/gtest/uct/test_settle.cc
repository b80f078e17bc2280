/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucs/type/status.h>

#include <gtest/gtest.h>

extern "C" ucs_status_t settle(unsigned num_accepted, unsigned counted);

/* A new connection waits for a put that does not count it. A stream of those
 * that do does not keep it out. The number of connections may wrap. */
TEST(test_settle, puts_that_count_the_connection)
{
    for (unsigned n : {0u, 1000u, ~0u / 2, ~0u - 1, ~0u}) {
        EXPECT_EQ(UCS_ERR_NO_RESOURCE, settle(n, n)) << n;
        EXPECT_EQ(UCS_OK, settle(n, n + 1)) << n;
    }
}
