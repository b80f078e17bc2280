/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The kernel's table of shared memory segments, for tests. */

#ifndef NPEMU_SEGMENTS_H
#define NPEMU_SEGMENTS_H

#include "npemu_test.h"

#include <sys/ipc.h>
#include <sys/shm.h>

namespace npt {

struct Segment {
    int      id;
    shmid_ds ds;
};

/* All that this process may read. */
std::vector<Segment> segments();

/*
 * For tests that need all segments of their IPC namespace to be theirs: none
 * may be there before, and none may be left.
 */
class segment_test : public testing::Test {
protected:
    void SetUp() override;
    void TearDown() override;
};

/* Another process can open the device. */
void expect_device();

/* A child that keeps the device open until it gets a signal. */
void hold_device(Pipe &pipe);

} // namespace npt

#endif
