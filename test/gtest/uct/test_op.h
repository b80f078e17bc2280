/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_TEST_OP_H_
#define NPRDMA_TEST_TEST_OP_H_

#include "page_table.h"
#include "uct_test.h"

#include <atomic>

/*
 * The rules of ARCHITECTURE 3, one by one. The fault plan of the emulated RNIC
 * takes pages at chosen moments of an operation. All data is compared.
 */

constexpr size_t page_size = 4096;

/* Memory far away from all other memory, so that regions do not overlap */
class far_memory {
public:
    explicit far_memory(size_t length);
    ~far_memory();
    far_memory(const far_memory&) = delete;
    char *ptr() const { return m_ptr; }

private:
    char   *m_ptr;
    size_t m_length;
};

/* Memory registered with an MD, and its page table */
class paged_buffer {
public:
    /* Allocated here, or the caller's */
    paged_buffer(entity &owner, size_t length, void *place = nullptr);
    ~paged_buffer();

    char *ptr(size_t offset = 0) const { return m_ptr + offset; }
    uint64_t address(size_t offset = 0) const { return (uint64_t)ptr(offset); }
    size_t length() const { return m_length; }
    uct_mem_h memh() const { return m_buffer->memh(); }
    std::vector<char> packed_key() const { return m_buffer->packed_key(); }
    void deregister() { m_buffer->deregister(); }
    void fill(uint64_t seed) { m_buffer->fill(seed); }

    /* Exists once a page in it has been populated */
    page_table_t *table();
    bool has(size_t offset, size_t length, uint32_t bits);
    void evict(size_t offset, size_t length, uint32_t bits = PAGE_R | PAGE_W);
    int fault(size_t offset, uint32_t views, uint32_t access, uint32_t tear,
              uint32_t restore, bool from_start = false);
    page_table_stats_t stats();

private:
    std::unique_ptr<far_memory> m_memory;
    char                        *m_ptr;
    size_t                      m_length;
    std::unique_ptr<buffer>     m_buffer;
    page_table_t                *m_table = nullptr;
};

/* Settings, and the end of the name of tests with them */
using named_config = std::pair<const char*, config_t>;

inline std::string
config_name(const ::testing::TestParamInfo<named_config> &info)
{
    return info.param.first;
}

enum op_t {
    GET_BCOPY,
    GET_COPIED, /* A get_zcopy small enough for a slot */
    GET_ZCOPY,
    PUT_ZCOPY
};

/* Operations by the NIC between two entities of this process. The peer
 * "op_target" is one of another process, with 4 MiB of memory: it sends its
 * address, the key and the address of the memory, and serves until it is
 * killed. */
class test_op : public uct_pair_test {
protected:
    test_op()
    {
        m_config = {{"REGION_SIZE", "2m"}, {"SLICE", "64k"},
                    {"SCAN_MAX", "8k"}, {"MONITOR", "emulated"}};
    }

    void set(const config_t &others)
    {
        for (auto &item : others) {
            m_config[item.first] = item.second;
        }
    }

    void TearDown() override; /* Also opens the gate of hook.h */

    /* Creates both buffers and populates them for reading and writing */
    void make(size_t length);

    /* The target's service populates an absent page for a put of an endpoint of
     * m_a, which lasts until go_on() */
    void stop_service(uct_ep_h ep, size_t offset, completion *put);
    void go_on()
    {
        page_table_gate_release(m_remote->table(), GATE_MAP);
    }

    /* Runs one operation to its completion, and compares its data */
    void start(op_t op, size_t local, size_t remote, size_t length,
               completion *comp);
    void fill(op_t op, size_t from, size_t length);
    void run(op_t op, size_t local, size_t remote, size_t length);
    void expect_data(op_t op, size_t local, size_t remote, size_t length);

    std::atomic<uint64_t> *remote_word(size_t offset)
    {
        return (std::atomic<uint64_t>*)m_remote->ptr(offset);
    }
    ucs_status_t put_word(size_t offset, uint64_t value);

    /* A counter of an interface, see nprdma_stats.h */
    uint64_t counter(const char *name) { return m_a->counter(name); }

    /* Slices that failed verification, for any reason */
    uint64_t suspects()
    {
        return counter("suspect_lines") + counter("suspect_states") +
               counter("suspect_local");
    }

#ifdef NPRDMA_TEST_TSAN
    static constexpr bool is_tsan = true;
#else
    static constexpr bool is_tsan = false;
#endif
#ifdef __SANITIZE_ADDRESS__
    static constexpr bool is_sanitized = true;
#else
    static constexpr bool is_sanitized = is_tsan;
#endif

    /* Where tests are slow, the first and the last case of each kind. The other
     * cases involve the same threads and sizes of accesses. */
    template<typename T>
    static std::vector<T> some(std::vector<T> all, bool is_slow = is_tsan)
    {
        if (is_slow && (all.size() > 2)) {
            all.erase(all.begin() + 1, all.end() - 1);
        }
        return all;
    }

    /* The side that is read from or written to */
    paged_buffer &source(op_t op)
    {
        return (op == PUT_ZCOPY) ? *m_local : *m_remote;
    }
    paged_buffer &side(bool is_local)
    {
        return is_local ? *m_local : *m_remote;
    }

    static uint32_t view(op_t op, bool is_local)
    {
        return ((op == PUT_ZCOPY) == is_local) ? PAGE_R : PAGE_W;
    }
    /* Some gets read into pinned memory */
    static bool has_pages(op_t op, bool is_local)
    {
        return !is_local || ((op != GET_BCOPY) && (op != GET_COPIED));
    }

    size_t max_bcopy() const { return m_a->attr().cap.get.max_bcopy; }

    std::unique_ptr<paged_buffer> m_local, m_remote;
    uct_rkey_t                    m_rkey = 0;
    uint64_t                      m_seed = 1;
};

#endif
