/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "npemu_segments.h"

#include <dirent.h>

namespace npt {

std::vector<Segment> segments()
{
    std::vector<Segment> result;
    struct shm_info info;
    int max = shmctl(0, SHM_INFO, (struct shmid_ds*)&info);

    for (int i = 0; i <= max; ++i) {
        Segment it;
        it.id = shmctl(i, SHM_STAT, &it.ds);
        if (it.id >= 0) {
            result.push_back(it);
        }
    }
    return result;
}

static int files_in_dev_shm()
{
    int count = 0;
    DIR *dir  = opendir("/dev/shm");

    while (struct dirent *entry = readdir(dir)) {
        count += entry->d_name[0] != '.';
    }
    closedir(dir);
    return count;
}

void segment_test::SetUp()
{
    SKIP_UNLESS(has_own_fabric(), "no IPC namespace of our own");
    ASSERT_TRUE(segments().empty());
}

void segment_test::TearDown()
{
    if (!has_own_fabric()) {
        return;
    }
    /* A killed process is reaped before its memory is gone. */
    EXPECT_TRUE(wait_until([] { return segments().empty(); }))
            << segments().size() << " segments are left";
    EXPECT_EQ(0, files_in_dev_shm());
}

void expect_device()
{
    in_child([] {
        Device device;
    });
}

void hold_device(Pipe &pipe)
{
    Device device;

    pipe.signal();
    pipe.await();
}

} // namespace npt
