/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "serve.h"
#include "test_mem.h"

#include <fstream>

#include <fcntl.h>
#include <sys/resource.h>

/*
 * A target is at a limit of its system when a peer connects to its service. The
 * peer does not wait for that.
 */

namespace {

/* During its lifetime it holds all descriptors that the process may have */
class all_descriptors {
public:
    all_descriptors()
    {
        struct rlimit few;

        getrlimit(RLIMIT_NOFILE, &m_before);
        few          = m_before;
        few.rlim_cur = num_descriptors() + 32;
        setrlimit(RLIMIT_NOFILE, &few);
        for (int fd; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) {
            m_fds.push_back(fd);
        }
    }

    ~all_descriptors()
    {
        for (int fd : m_fds) {
            close(fd);
        }
        setrlimit(RLIMIT_NOFILE, &m_before);
    }

private:
    struct rlimit    m_before;
    std::vector<int> m_fds;
};

unsigned num_service_threads()
{
    DIR *dir       = opendir("/proc/self/task");
    unsigned count = 0;

    for (struct dirent *entry; (entry = readdir(dir)) != nullptr;) {
        std::ifstream file(std::string("/proc/self/task/") + entry->d_name +
                           "/comm");
        std::string name;
        file >> name;
        count += (name == "nprdma-service");
    }
    closedir(dir);
    return count;
}

/* Serves until the parent sends a byte */
char progress_for(peer &parent, entity &e)
{
    e.wait([&]() { return parent.ready(); });
    return parent.get<char>();
}

/* Stores 8 bytes through the service. @return the status of the flush. */
ucs_status_t put(entity &e, uct_ep_h ep, uct_rkey_t rkey, uint64_t address,
                 uint64_t value)
{
    ucs_status_t status = e.retry([&]() {
        return (e.failed.count(ep) > 0) ? e.failed[ep] :
               uct_ep_put_short(ep, &value, sizeof(value), address, rkey);
    });
    completion comp;

    if (status != UCS_OK) {
        return status;
    }
    status = uct_ep_flush(ep, 0, &comp);
    if (status != UCS_INPROGRESS) {
        return status;
    }
    e.wait([&]() { return comp.done; });
    return comp.status;
}

PEER_FUNCTION(target_without_descriptors)
{
    entity e;
    buffer memory(e.md(), page);
    complaints log;

    memory.fill(0);
    publish(parent, e, memory);
    all_descriptors taken;
    parent.put('r');
    progress_for(parent, e);
    EXPECT_TRUE(log.lines().empty());
    return 0;
}

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
    for (unsigned num_threads : {0u, 1u}) {
        EXPECT_EQ(0, setrlimit(RLIMIT_NPROC, (num_threads == 0) ? &none :
                                                                  &before));
        for (uint64_t value : {5, 6}) {
            EXPECT_EQ(UCS_OK, put(a, a.connect(b.address()), rkey,
                                  memory.address(), value));
            EXPECT_EQ(value, *memory.ptr<uint64_t>());
        }
        EXPECT_EQ(num_threads, num_service_threads());
        EXPECT_EQ(1u, count(log, "ulimit -u is 0"));
        EXPECT_EQ(1u, log.lines().size());
    }
    return 0;
}

struct initiator {
    explicit initiator(peer &target)
    {
        ep      = e.connect(target.get_bytes());
        rkey    = e.unpack(target.get_bytes());
        address = target.get<uint64_t>();
        target.get<char>();
    }

    entity     e;
    uct_ep_h   ep;
    uct_rkey_t rkey;
    uint64_t   address;
};

} // namespace

TEST(test_limits, no_descriptors)
{
    peer target("target_without_descriptors");
    initiator self(target);

    EXPECT_EQ(UCS_OK, put(self.e, self.ep, self.rkey, self.address, 7));
    target.put('f');
    EXPECT_EQ(0, target.join());
}

TEST(test_limits, no_threads)
{
    component_copy everybody_may;
    peer process("process_without_threads", 65534, 8 * 1024 * 1024);

    EXPECT_EQ(0, process.join());
}
