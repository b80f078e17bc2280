/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Regions behind an emulated IOMMU, and a process that accesses them. */

#ifndef NPEMU_REGION_H
#define NPEMU_REGION_H

#include "npemu_test.h"

extern "C" {
#include "npemu_iommu.h"
}

#include <sys/mman.h>

namespace npt {

constexpr uint64_t SIGNATURE = 0x5a5a1234c0ffee77;
constexpr size_t   PAGE      = NPRDMA_PAGE_SIZE;

/* What a read of an absent page gives at an address. */
inline uint8_t signature_byte(uint64_t address)
{
    return SIGNATURE >> (8 * (address % 8));
}

/* Memory that a forked child shares. */
class Shared {
public:
    explicit Shared(size_t length) : length(length)
    {
        void *map = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        if (map == MAP_FAILED) {
            abort();
        }
        data = (uint8_t*)map;
    }
    ~Shared() { munmap(data, length); }
    Shared(const Shared &) = delete;

    uint8_t *data;
    size_t   length;
};

/* A region over memory that is there, with MRs on its three views. */
class Region {
public:
    Region(Device &device, void *memory, size_t length,
           uint64_t signature = SIGNATURE) :
        data((uint8_t*)memory), length(length), m_device(device)
    {
        EXPECT_EQ(0, npemu_iommu_create((uintptr_t)memory, length, signature,
                                        &iommu));
        pages = length / PAGE;
        r = reg(0, length, at(0), IBV_ACCESS_REMOTE_READ);
        w = reg(length, length, at(0),
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                        IBV_ACCESS_REMOTE_ATOMIC);
        s = reg(2 * length, 4 * pages, 0, IBV_ACCESS_REMOTE_READ);
    }

    ~Region()
    {
        dereg();
        npemu_iommu_destroy(&iommu);
    }
    Region(const Region &) = delete;

    void dereg()
    {
        for (ibv_mr **mr : {&r, &w, &s}) {
            if (*mr != nullptr) {
                EXPECT_EQ(0, npemu_dereg_mr(*mr));
            }
            *mr = nullptr;
        }
    }

    ibv_mr *reg(uint64_t offset, size_t size, uint64_t iova, int access)
    {
        ibv_mr *mr = npemu_reg_dmabuf_mr(m_device.pd, offset, size, iova,
                                         iommu.fd, access);

        EXPECT_NE(nullptr, mr) << strerror(errno);
        return mr;
    }

    uint64_t at(size_t offset) const { return (uintptr_t)data + offset; }
    uint32_t state(size_t page) const
    {
        return nprdma_page_load(&iommu.states[page]);
    }

    /* Makes pages present in views, or absent. */
    void set(size_t first, size_t count, uint32_t bits = NPRDMA_PAGE_BITS)
    {
        for (size_t i = first; i < first + count; ++i) {
            EXPECT_TRUE(nprdma_page_change(&iommu.states[i], state(i), bits));
        }
    }
    void set_all(uint32_t bits = NPRDMA_PAGE_BITS) { set(0, pages, bits); }
    size_t evict(size_t first, size_t count = 1)
    {
        return npemu_iommu_invalidate(&iommu, first, count, NPRDMA_PAGE_BITS,
                                      0);
    }
    bool has(size_t page, uint32_t bits) const { return state(page) & bits; }

    ibv_sge sge(const ibv_mr *mr, size_t offset, size_t size) const
    {
        return {at(offset), (uint32_t)size, mr->lkey};
    }
    Remote remote(const ibv_mr *mr, size_t offset) const
    {
        return {at(offset), mr->rkey};
    }

    npemu_iommu_stats_t stats() const
    {
        npemu_iommu_stats_t result;

        npemu_iommu_query(&iommu, &result);
        return result;
    }

    npemu_iommu_t iommu;
    uint8_t      *data;
    size_t        length, pages = 0;
    ibv_mr       *r = nullptr, *w = nullptr, *s = nullptr;

private:
    Device &m_device;
};

/* A region, plain memory as large as it, and queue pairs between them. */
struct RegionPair {
    explicit RegionPair(size_t length) :
        memory(length), region(device, memory.data, length),
        plain(device, length), pair(device)
    {
        region.set_all();
    }

    /* Reads the region, or its rest, to the plain memory: returns at once. */
    void read(size_t offset = 0)
    {
        pair.a.read(1, {plain.sge(0, plain.length - offset)},
                    region.remote(region.r, offset));
    }

    Device device;
    Shared memory;
    Region region;
    Buffer plain;
    Pair   pair;
};

/* What a servant does. */
struct Order {
    ibv_wr_opcode opcode;
    Remote        remote;
    size_t        offset; /* in the shared memory */
    uint32_t      length;
    uint64_t      add;
};

/*
 * Another process that executes RDMA, at the request of this one, between other
 * memory and memory that both share and that it has registered as a plain MR.
 * Create it before a Device.
 */
class Servant {
public:
    explicit Servant(size_t length) :
        shared(length), m_child([this](Pipe &pipe) { serve(pipe); })
    {
    }

    /* Once there is a device. */
    void connect(Device &device)
    {
        m_cq = std::make_unique<Cq>(device);
        m_qp = std::make_unique<Qp>(device, *m_cq, *m_cq);
        connect_over(m_child.pipe(), *m_qp);
        memory = m_child.pipe().recv<Remote>();
    }

    /* An order can be placed, and its result be waited for later. */
    void place(const Order &order)
    {
        EXPECT_TRUE(m_child.pipe().send(order));
    }
    ibv_wc_status result()
    {
        Result result = m_child.pipe().recv<Result>();

        calls = result.calls;
        return result.status;
    }
    ibv_wc_status run(const Order &order)
    {
        place(order);
        return result();
    }
    ibv_wc_status rdma(ibv_wr_opcode opcode, const Remote &remote,
                       size_t offset, size_t length)
    {
        return run({opcode, remote, offset, (uint32_t)length, 0});
    }

    /* Calls that copied memory of this process for the last result. */
    uint64_t calls = 0;

    /* At the end, before the Device goes */
    void dismiss()
    {
        if (m_child.pid() > 0) {
            place({END, {}, 0, 0, 0});
            m_child.join();
        }
        disconnect();
    }

    void kill()
    {
        m_child.kill();
        disconnect();
    }

    /* This end of the connection is destroyed. */
    void disconnect()
    {
        m_qp.reset();
        m_cq.reset();
    }
    Child &process() { return m_child; }
    Qp &qp() { return *m_qp; }
    Cq &cq() { return *m_cq; }

    Shared shared;
    Remote memory; /* what it registered */

private:
    static constexpr ibv_wr_opcode END = IBV_WR_BIND_MW;

    struct Result {
        ibv_wc_status status;
        uint64_t      calls;
    };

    void serve(Pipe &pipe)
    {
        Device device;
        ibv_mr *mr = npemu_reg_mr(device.pd, shared.data, shared.length,
                                  ACCESS_ALL);
        {
            Cq cq(device);
            Qp qp(device, cq, cq);

            connect_over(pipe, qp);
            pipe.send(Remote{(uintptr_t)shared.data, mr->rkey});
            for (;;) {
                Order order;

                if (!pipe.recv_bytes(&order, sizeof(order)) ||
                    (order.opcode == END)) {
                    break;
                }
                Wr wr(1, order.opcode,
                      {{(uintptr_t)shared.data + order.offset, order.length,
                        mr->lkey}});
                if (order.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                    wr.atomic(order.remote, order.add);
                } else if (order.opcode != IBV_WR_SEND) {
                    wr.rdma(order.remote);
                }
                uint64_t before = npemu_copy_calls(device.context);
                EXPECT_EQ(0, qp.post(wr));
                ibv_wc_status status = cq.wait().status;
                pipe.send(Result{status, npemu_copy_calls(device.context) -
                                         before});
            }
        }
        npemu_dereg_mr(mr);
    }

    Child               m_child;
    std::unique_ptr<Cq> m_cq;
    std::unique_ptr<Qp> m_qp;
};

/* A region, and another process that accesses it. */
class RegionTest : public testing::Test {
protected:
    explicit RegionTest(size_t length) :
        servant(length), memory(length), region(device, memory.data, length)
    {
        region.set_all();
        servant.connect(device);
    }
    ~RegionTest() override { servant.dismiss(); }

    ibv_wc_status read(size_t offset, size_t length)
    {
        return servant.rdma(IBV_WR_RDMA_READ, region.remote(region.r, offset),
                            0, length);
    }
    ibv_wc_status write(size_t offset, size_t length)
    {
        return servant.rdma(IBV_WR_RDMA_WRITE, region.remote(region.w, offset),
                            0, length);
    }

    Servant servant; /* first: it forks */
    Device  device;
    Shared  memory;
    Region  region;
};

} // namespace npt

#endif
