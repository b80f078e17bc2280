/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "../gtest/uct/uct_test.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * What operations cost two emulated mlx5 adapters, by the adapters' own
 * counters, when all pages are present: mlx5_1 initiates, and mlx5_0 is the
 * target. The initiator's requests are counted, and each byte of the target's
 * DMA. The target's software does nothing meanwhile.
 */

namespace {

constexpr size_t page    = 4096;
constexpr size_t slice   = 128 << 10;
constexpr size_t length  = 1 << 20;
constexpr size_t largest = 300000; /* operation */
constexpr int    ops     = 2;      /* that are counted together */
constexpr int    warm    = 10;     /* that may bring states into the cache */

/* Multiples of the regions' size */
constexpr uint64_t local_place = remote_place + (64 << 20);

/* Registers of 8 bytes: emlx5/firmware/emlx5_monitor.h */
enum {
    MAGIC_AT = 0,
    SENDS    = 0x100 / 8 + 4,
    WRITES,
    READS,
    ATOMICS,
    READ_BYTES  = 0x400 / 8 + 1,
    WRITE_BYTES = READ_BYTES + 2
};

class adapter {
public:
    explicit adapter(const std::string &name)
    {
        std::string path = "/sys/class/infiniband/" + name +
                           "/device/resource0";
        int fd           = open(path.c_str(), O_RDWR | O_CLOEXEC);

        if (fd < 0) {
            throw std::runtime_error("cannot open " + path);
        }
        m_page = mmap(nullptr, page, PROT_READ, MAP_SHARED, fd, 0x6000);
        close(fd);
        if (m_page == MAP_FAILED) {
            throw std::runtime_error("cannot map " + path +
                                     " (iomem=relaxed?)");
        }
        if (get(MAGIC_AT) != UINT64_C(0x35786c6d65)) {
            throw std::runtime_error(name + " is not emulated");
        }
    }
    ~adapter() { munmap(m_page, page); }
    adapter(const adapter&) = delete;

    uint64_t get(int number) const
    {
        return static_cast<volatile uint64_t*>(m_page)[number];
    }

private:
    void *m_page;
};

struct cost {
    uint64_t reads, writes, sends;    /* requests of the initiator */
    uint64_t read_bytes, write_bytes; /* DMA of the target */

    cost operator-(const cost &b) const
    {
        return {reads - b.reads, writes - b.writes, sends - b.sends,
                read_bytes - b.read_bytes, write_bytes - b.write_bytes};
    }
};

/* Slices end at borders of the target's pages, and the first one has the rest
 * of its page as well */
uint64_t num_slices(size_t offset, size_t size)
{
    size_t first = slice + (page - offset % page) % page;

    return (size <= first) ? 1 : 1 + (size - first + slice - 1) / slice;
}

uint64_t num_pages(size_t offset, size_t size)
{
    return (offset + size + page - 1) / page - offset / page;
}

/* Bytes that the kernel has pinned for this process */
size_t pinned()
{
    std::ifstream status("/proc/self/status");
    std::string word;
    size_t kib;

    while (status >> word) {
        if ((word == "VmPin:") && (status >> kib)) {
            return kib << 10;
        }
    }
    throw std::runtime_error("no VmPin in /proc/self/status");
}

} // namespace

class test_dma : public uct_pair_test {
protected:
    using operation = std::function<ucs_status_t(uct_completion_t *comp)>;

    void SetUp() override
    {
        if (access("/dev/nprdma", R_OK | W_OK) != 0) {
            GTEST_SKIP() << "no /dev/nprdma: run in the guest";
        }
        m_initiator = std::make_unique<adapter>("mlx5_1");
        m_target    = std::make_unique<adapter>("mlx5_0");
        m_a         = open_on("mlx5_1");
        m_b         = open_on("mlx5_0");
        m_a->add_progress(m_b.get());
        m_b->add_progress(m_a.get());
        m_ab = m_a->connect(m_b->address());

        m_local  = map(m_a->md(), local_place);
        m_remote = map(m_b->md(), remote_place);
        m_rkey   = m_a->unpack(m_remote->packed_key());
        m_a->wire_up(m_ab, m_local->ptr(), m_remote->address(), m_rkey);
    }

    void TearDown() override
    {
        m_local.reset();
        m_remote.reset();
        uct_pair_test::TearDown();
        for (auto place : {local_place, remote_place}) {
            munmap(reinterpret_cast<void*>(place), length);
        }
    }

    /* No probe of a peer that seems to be idle is counted. Other tests have the
     * self-check. */
    static std::unique_ptr<entity> open_on(const char *device)
    {
        setenv("NPRDMA_TEST_DEVICE", device, 1);
        return std::make_unique<entity>(
                config_t{{"MONITOR", "kernel"}, {"SLICE", "128k"},
                         {"SELFCHECK", "n"},
                         {"CM_PROBE_INTERVAL", "1000s"}});
    }

    /* Written memory, which khugepaged leaves as it is */
    static std::unique_ptr<buffer> map(uct_md_h md, uint64_t address)
    {
        void *ptr = mmap(reinterpret_cast<void*>(address), length,
                         PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                         0);

        EXPECT_EQ(reinterpret_cast<void*>(address), ptr);
        EXPECT_EQ(0, madvise(ptr, length, MADV_NOHUGEPAGE));
        auto made = std::make_unique<buffer>(md, length, ptr);
        made->fill(address);
        return made;
    }

    cost now() const
    {
        return {m_initiator->get(READS), m_initiator->get(WRITES),
                m_initiator->get(SENDS), m_target->get(READ_BYTES),
                m_target->get(WRITE_BYTES)};
    }

    /* Pages that were taken or missed: then an operation costs more */
    uint64_t num_absent() const
    {
        uint64_t count = m_a->counter("kernel_pages") +
                         m_b->counter("kernel_pages");

        for (auto name : {"suspect_lines", "suspect_states", "suspect_local",
                          "redone_slices", "assist_populate",
                          "local_populate"}) {
            count += m_a->counter(name);
        }
        return count;
    }

    /* What is pinned in this process beyond the transport's own buffers, which
     * show that the kernel counts */
    size_t pinned_by_others() const
    {
        size_t all = pinned();
        size_t own = m_a->counter("pinned_bytes");

        EXPECT_LT(0u, own);
        EXPECT_LE(own, all);
        return all - own;
    }

    void run(const operation &op)
    {
        completion comp;
        ucs_status_t status = m_a->retry([&]() { return op(&comp); });

        if (status == UCS_INPROGRESS) {
            m_a->wait([&]() { return comp.done; });
            status = comp.status;
        }
        ASSERT_EQ(UCS_OK, status) << ucs_status_string(status);
        m_a->flush(m_ab);
    }

    /* Brings pages in, and their states into the initiator's cache */
    void warm_up(bool is_put, size_t size)
    {
        for (int i = 0; i < warm; ++i) {
            run(zcopy(is_put, 0, size + page));
        }
    }

    cost measure(const operation &op)
    {
        cost spent      = {};
        uint64_t absent = 1;

        run(op);
        for (int tries = 0; (tries < 5) && (absent > 0); ++tries) {
            absent      = num_absent();
            cost before = now();
            for (int i = 0; i < ops; ++i) {
                run(op);
            }
            spent  = now() - before;
            absent = num_absent() - absent;
        }
        EXPECT_EQ(0u, absent) << "the kernel takes pages without end";
        return spent;
    }

    /* Checks what one operation costs, unless an earlier one cost more */
    void expect(const cost &one, size_t offset, size_t size,
                const operation &op)
    {
        if (HasFailure()) {
            return;
        }
        SCOPED_TRACE(std::to_string(size) + " bytes at " +
                     std::to_string(offset));
        cost spent = measure(op);

        EXPECT_EQ(ops * one.reads, spent.reads);
        EXPECT_EQ(ops * one.writes, spent.writes);
        EXPECT_EQ(ops * one.sends, spent.sends);
        EXPECT_EQ(ops * one.read_bytes, spent.read_bytes);
        EXPECT_EQ(ops * one.write_bytes, spent.write_bytes);
        printf("%6zu bytes at %4zu: %.9g READs, %.9g WRITEs, %.9g + %.9g bytes "
               "of DMA\n", size, offset, (double)spent.reads / ops,
               (double)spent.writes / ops, (double)spent.read_bytes / ops,
               (double)spent.write_bytes / ops);
    }

    operation zcopy(bool is_put, size_t offset, size_t size)
    {
        return [=](uct_completion_t *comp) {
            uct_iov_t iov = {m_local->ptr(), size, m_local->memh(), 0, 1};
            return is_put ? uct_ep_put_zcopy(m_ab, &iov, 1,
                                             m_remote->address(offset), m_rkey,
                                             comp) :
                            uct_ep_get_zcopy(m_ab, &iov, 1,
                                             m_remote->address(offset), m_rkey,
                                             comp);
        };
    }

    std::unique_ptr<adapter> m_initiator, m_target;
    std::unique_ptr<buffer>  m_local, m_remote;
    uct_rkey_t               m_rkey = UCT_INVALID_RKEY;
};

TEST_F(test_dma, small_get_reads_no_states)
{
    warm_up(false, 32768);
    for (size_t size : {8u, 64u, 4096u, 8192u, 16384u, 32768u}) {
        expect({1, 0, 0, size, 0}, 0, size, zcopy(false, 0, size));
    }
    /* The head of an unaligned range is a READ of its own */
    expect({2, 0, 0, 4096, 0}, 8, 4096, zcopy(false, 8, 4096));
}

TEST_F(test_dma, large_get_reads_states_once_per_slice)
{
    warm_up(false, largest);
    for (size_t offset : {0u, 1000u}) {
        for (size_t size : {65536ul, slice, 2 * slice, largest}) {
            uint64_t n = num_slices(offset, size);
            expect({2 * n, 0, 0, size + 4 * num_pages(offset, size), 0},
                   offset, size, zcopy(false, offset, size));
        }
    }
}

TEST_F(test_dma, put_reads_states_once_per_slice)
{
    warm_up(true, largest);
    for (size_t offset : {0u, 1000u}) {
        for (size_t size : {16384ul, 65536ul, slice, 2 * slice, largest}) {
            uint64_t n = num_slices(offset, size);
            expect({n, n, 0, 4 * num_pages(offset, size), size}, offset, size,
                   zcopy(true, offset, size));
        }
    }
}

/* Nor by the operations on it */
TEST_F(test_dma, registered_memory_is_not_pinned)
{
    constexpr size_t size = 16 << 20;
    uint64_t moved        = m_a->counter("nic_put") + m_a->counter("nic_get");

    /* Makes the queue pairs, whose queues are pinned */
    run(zcopy(true, 0, largest));
    run(zcopy(false, 0, largest));
    size_t before = pinned_by_others();
    {
        buffer local(m_a->md(), size), remote(m_b->md(), size);
        uct_rkey_t rkey = m_a->unpack(remote.packed_key());

        local.fill(1);
        remote.fill(2);
        EXPECT_EQ(before, pinned_by_others()) << "by the registration";
        for (size_t at = 0; at < size; at += length) {
            uct_iov_t iov = {local.ptr(at), length, local.memh(), 0, 1};
            run([&](uct_completion_t *comp) {
                return uct_ep_put_zcopy(m_ab, &iov, 1, remote.address(at), rkey,
                                        comp);
            });
            EXPECT_EQ(0, memcmp(local.ptr(at), remote.ptr(at), length));
            memset(local.ptr(at), 0, length);
            run([&](uct_completion_t *comp) {
                return uct_ep_get_zcopy(m_ab, &iov, 1, remote.address(at), rkey,
                                        comp);
            });
            EXPECT_EQ(0, memcmp(local.ptr(at), remote.ptr(at), length));
        }
        EXPECT_EQ(before, pinned_by_others()) << "by the operations";
    }
    EXPECT_LE(moved + 2 * size / length,
              m_a->counter("nic_put") + m_a->counter("nic_get"));
}
