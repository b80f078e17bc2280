/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "../refuse.h"
#include "serve.h"
#include "test_mem.h"

#include <cerrno>
#include <memory>

/*
 * Containers refuse system calls. Under the default profiles of Docker and
 * Podman, as far as they concern nprdma, and where single system calls are
 * missing, transfers between processes work, or one line says what is refused.
 */

namespace {

enum outcome {
    WORKS,
    COPIES,  /* Works without zero copy, and one line says so */
    NO_MD    /* Not even one process can; a line says why */
};

struct profile {
    const char        *name;
    outcome           expected;
    const char        *told;
    std::vector<long> refused; /* The filter answers EPERM */
    bool              to_both; /* To the initiator and to the target */
};

/* For containers without CAP_SYS_PTRACE and CAP_SYS_NICE */
const profile profiles[] = {
    /* moby/profiles, seccomp/default.json; process_vm_*() are allowed since
     * Linux 4.8 */
    {"docker", WORKS, "",
     {SYS_pidfd_getfd, SYS_userfaultfd, SYS_mbind, SYS_move_pages,
      SYS_process_madvise, SYS_kcmp}, true},
    {"docker_meets_host", WORKS, "", {SYS_pidfd_getfd}, false},
    /* containers/common, pkg/seccomp/seccomp.json; without its ptrace(), which
     * nprdma does not call and LeakSanitizer does */
    {"podman", NO_MD, "process_vm_writev() to this process itself is refused",
     {SYS_process_vm_readv, SYS_process_vm_writev, SYS_userfaultfd, SYS_mbind,
      SYS_move_pages, SYS_membarrier, SYS_process_madvise, SYS_kcmp}, true},
    {"no_scheduling", WORKS, "", {SYS_sched_getattr, SYS_sched_setattr}, true},
    {"no_memfd", COPIES, "no region for", {SYS_memfd_create}, true},
};

constexpr size_t size = 1u << 20;

PEER_FUNCTION(target_in_container)
{
    complaints log;
    entity e;
    buffer memory(e.md(), size);

    memory.fill(1);
    publish(parent, e, memory);
    parent.put(log.lines().size());
    parent.put(count(log, "no region for"));
    e.wait([&]() { return parent.ready(); });
    if (parent.get<char>()) {
        EXPECT_EQ(7u, *memory.ptr<uint64_t>());
    }
    return 0;
}

/* Large operations in both directions, and a small one. @return the status. */
ucs_status_t transfer(peer &target, entity &e)
{
    uct_ep_h ep      = e.connect(target.get_bytes());
    uct_rkey_t rkey  = e.unpack(target.get_bytes());
    uint64_t address = target.get<uint64_t>();
    uint64_t value   = 7;
    buffer local(e.md(), size), expected(e.md(), size);

    expected.fill(1);
    ucs_status_t status = e.get(ep, local.ptr(), size, address, rkey);
    if (status != UCS_OK) {
        return status;
    }
    EXPECT_EQ(0, memcmp(local.ptr(), expected.ptr(), size));
    status = e.put(ep, local.ptr(), size, address, rkey);
    if (status != UCS_OK) {
        return status;
    }
    EXPECT_EQ(UCS_OK, e.put(ep, &value, sizeof(value), address, rkey));
    e.flush(ep);
    return UCS_OK;
}

PEER_FUNCTION(container)
{
    const profile &p = profiles[parent.get<int>()];
    complaints log;

    testing::internal::CaptureStderr(); /* Also that of children */
    find_component();
    std::unique_ptr<peer> target;
    if (!p.to_both) {
        target.reset(new peer("target_in_container"));
    }
    EXPECT_TRUE(refuse(p.refused, EPERM));
    if (p.expected == NO_MD) {
        EXPECT_THROW(entity(), std::runtime_error);
        EXPECT_EQ(1u, log.lines().size());
        EXPECT_EQ(1u, count(log, p.told));
        return 0;
    }

    if (p.to_both) { /* The child inherits the filter */
        target.reset(new peer("target_in_container"));
    }
    entity e;
    ucs_status_t status = transfer(*target, e);

    /* The line comes from the target when it packs a key, or from the device */
    EXPECT_EQ((p.expected == COPIES) ? 1u : 0u, target->get<size_t>());
    EXPECT_EQ((p.expected == COPIES) ? 1u : 0u, target->get<size_t>());
    target->put((char)(status == UCS_OK));
    EXPECT_EQ(0, target->join());
    EXPECT_EQ(UCS_OK, status);
    EXPECT_EQ(0u, log.lines().size());
    std::string text = testing::internal::GetCapturedStderr();
    fputs(text.c_str(), stderr);
    bool told = text.find(p.told) != std::string::npos;
    EXPECT_EQ(p.expected != COPIES, told);
    return 0;
}

} // namespace

class test_seccomp : public ::testing::TestWithParam<int> {
};

TEST_P(test_seccomp, profile)
{
    peer p("container");

    p.put(GetParam());
    EXPECT_EQ(0, p.join());
}

INSTANTIATE_TEST_SUITE_P(all, test_seccomp,
                         ::testing::Range(0, (int)(sizeof(profiles) /
                                                   sizeof(*profiles))),
                         [](const auto &info) {
                             return profiles[info.param].name;
                         });
