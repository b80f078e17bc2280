/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Tests whose code runs in a process of its own. */

#ifndef NPRDMA_TEST_CHILD_H
#define NPRDMA_TEST_CHILD_H

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

/* A forked child, whose exit code @a func returns. @return Its wait status */
template<typename F> int wait_status(F func)
{
    int status = -1;
    pid_t pid  = fork();

    if (pid == 0) {
        _exit(func());
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    return status;
}

/* The same; the child must return true */
template<typename F> void expect_child(F func)
{
    EXPECT_EQ(0, wait_status([&]() { return func() ? 0 : 1; }));
}

#endif
