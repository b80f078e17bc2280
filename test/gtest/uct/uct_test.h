/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_UCT_TEST_H_
#define NPRDMA_TEST_UCT_TEST_H_

#include <uct/api/uct.h>
#include <uct/api/v2/uct_v2.h>

#include <ucs/debug/log_def.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <algorithm>
#include <map>
#include <mutex>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/types.h>

/* Time limit for conditions. The test fails when it expires. */
constexpr std::chrono::seconds patience(60);

/* Addresses that the kernel does not choose by itself, and that sanitizers
 * permit */
#ifdef __SANITIZE_THREAD__
constexpr uint64_t remote_place = UINT64_C(0x1000000000);
#else
constexpr uint64_t remote_place = UINT64_C(0x200000000000);
#endif

/* The same for memory in which a test makes holes that other mappings could
 * fill */
constexpr uint64_t hole_place = remote_place - (UINT64_C(1) << 32);

double now();

/* Device under test: npemu0, unless NPRDMA_TEST_DEVICE names another one */
std::string device_name();

/* Not in an emulated machine, which is much slower */
inline bool is_fast() { return device_name() == "npemu0"; }

/* A time limit that counts less than a second between two looks at it. So it
 * does not expire because the machine, or this process, was stopped. */
class time_limit {
public:
    explicit time_limit(std::chrono::duration<double> limit) :
        m_left(limit.count()), m_last(now())
    {
    }

    bool is_over()
    {
        double last = m_last;

        m_last  = now();
        m_left -= std::min(m_last - last, 1.0);
        return m_left < 0;
    }

private:
    double m_left, m_last;
};

/* Returns when the condition holds. The test fails if it never does. */
void await(const std::function<bool()> &condition);

/* Repeats a step, and yields, until other threads have had the time to do what
 * they can. On a busy machine a yield takes a time slice. */
void idle(const std::function<void()> &step);

/* Name and value pairs for one interface or MD, without the UCX_ prefix */
using config_t = std::map<std::string, std::string>;

/* Loads nprdma. Throws if it is not there. */
uct_component_h find_component();

/* During its lifetime it collects errors and warnings of UCX instead of stderr,
 * or lines of more levels */
class complaints {
public:
    struct line {
        ucs_log_level_t level;
        std::string     text;
    };

    explicit complaints(ucs_log_level_t most = UCS_LOG_LEVEL_WARN);
    ~complaints();
    complaints(const complaints&) = delete;

    std::vector<std::string> lines() const
    {
        std::vector<std::string> texts;

        for (const line &next : all()) {
            texts.push_back(next.text);
        }
        return texts;
    }

    std::vector<line> all() const
    {
        std::lock_guard<std::mutex> guard(lock);
        return m_lines;
    }

    void clear()
    {
        std::lock_guard<std::mutex> guard(lock);
        m_lines.clear();
    }

    /* Called by the log */
    bool add(ucs_log_level_t level, const char *text);

    static inline std::mutex lock; /* Threads of UCX add lines as well */

private:
    static void set_level(ucs_log_level_t level);

    const ucs_log_level_t m_most;
    ucs_log_level_t       m_before; /* Of the log */
    std::vector<line>     m_lines;
};

/* One line was logged, with this text in it */
void expect_line(const complaints &log, const std::string &text);

/* Number of open descriptors of this process */
unsigned num_descriptors();

/* Memory registered with an MD */
class buffer {
public:
    /* New pages, or those at ptr */
    buffer(uct_md_h md, size_t length, void *ptr = nullptr,
           unsigned flags = UCT_MD_MEM_ACCESS_ALL);
    ~buffer();
    buffer(const buffer&) = delete;

    template<typename T = char> T *ptr(size_t offset = 0) const
    {
        return reinterpret_cast<T*>(static_cast<char*>(m_ptr) + offset);
    }

    uint64_t address(size_t offset = 0) const
    {
        return reinterpret_cast<uint64_t>(ptr(offset));
    }

    size_t length() const { return m_length; }
    uct_mem_h memh() const { return m_memh; }

    /* The key as it is sent to peers */
    std::vector<char> packed_key() const;
    void deregister();
    void fill(uint64_t seed);

private:
    uct_md_h  m_md;
    void      *m_ptr;
    size_t    m_length;
    bool      m_owner;
    uct_mem_h m_memh;
};

/* A completion and the status it has received */
struct completion : uct_completion_t {
    completion(int count = 1);
    bool done = false;
};

/* Unpacks what a get has brought: arg is its destination */
void unpack_to(void *arg, const void *data, size_t length);

/* A put or a get with zero copy */
ucs_status_t
start_zcopy(bool is_put, uct_ep_h ep, const uct_iov_t &iov, uint64_t address,
            uct_rkey_t rkey, uct_completion_t *comp);

/* Deregisters and revokes the keys. Expects the revocation to be complete on
 * return, unless there is an error. */
ucs_status_t try_invalidate(uct_md_h md, uct_mem_h memh);

/* The same, and expects no error */
void invalidate(uct_md_h md, uct_mem_h memh);

/* A worker with one interface of nprdma. Active messages with id 1 are
 * ignored. */
class entity {
public:
    /* Throws if the transport does not take each of the settings */
    explicit entity(const config_t &config = {});
    ~entity();
    entity(const entity&) = delete;

    uct_md_h md() const { return m_md; }
    uct_iface_h iface() const { return m_iface; }
    uct_worker_h worker() const { return m_worker; }
    const uct_iface_attr_t &attr() const { return m_attr; }
    const uct_md_attr_t &md_attr() const { return m_md_attr; }

    /* Device and interface address, for the peer */
    std::vector<char> address() const;
    uct_ep_h connect(const std::vector<char> &address);
    void disconnect(uct_ep_h ep);
    /* Errors of a user: the MD closed before its interface, and the interface
     * closed before its endpoints */
    void close_md() { uct_md_close(m_md), m_md = nullptr; }
    void leak_endpoints() { m_eps.clear(); }
    /* The MD stays open */
    void close_iface() { uct_iface_close(m_iface), m_iface = nullptr; }
    unsigned progress() { return uct_worker_progress(m_worker); }
    void progress_often(int calls = 1000)
    {
        for (; calls > 0; --calls) {
            progress();
        }
    }

    uct_rkey_t unpack(const std::vector<char> &packed_key);

    /* Repeats an operation while it returns UCS_ERR_NO_RESOURCE. Progresses
     * this entity and those that wait() progresses. */
    ucs_status_t retry(const std::function<ucs_status_t()> &op);

    /* Progresses until the condition holds. The test fails if it never does. */
    void wait(const std::function<bool()> &condition);
    /* The same, and progresses no other entity */
    void wait_alone(const std::function<bool()> &condition);
    void flush(uct_ep_h ep, ucs_status_t expected = UCS_OK);

    /* Repeats an operation as retry() does, and waits for its completion.
     * Returns the status in which it ends. */
    ucs_status_t
    complete(const std::function<ucs_status_t(uct_completion_t*)> &op);

    /* The same with zero copy */
    ucs_status_t put(uct_ep_h ep, const void *local, size_t length,
                     uint64_t address, uct_rkey_t rkey);
    ucs_status_t get(uct_ep_h ep, void *local, size_t length, uint64_t address,
                     uct_rkey_t rkey);

    /* Status in which a flush ends */
    ucs_status_t flush_status(uct_ep_h ep);

    /* Makes both connections of an endpoint, by 8 bytes to a peer's memory and
     * an empty active message. Wire-up and its timers are over afterwards. */
    void wire_up(uct_ep_h ep, const void *buffer, uint64_t address,
                 uct_rkey_t rkey);

    /* The interface's counters from UCX's virtual file system: all of them in
     * their order, or one */
    std::vector<std::pair<std::string, uint64_t>> counters() const;
    uint64_t counter(const std::string &name) const;

    /* Waits until the thread that populates ahead has nothing to do. Otherwise
     * it may be held at a gate, or bring back what a test evicts. */
    void finish_prefetch() const;

    /* Other entities of this process that have to be progressed */
    void add_progress(entity *other) { m_others.push_back(other); }

    /* Failed endpoints and their status */
    std::map<uct_ep_h, ucs_status_t> failed;

    /* Calls of the error handler */
    unsigned num_errors = 0;

    /* Called by the error handler */
    std::function<void()> on_failure = []() {};

private:
    void close();
    void open_md(config_t *left);
    void open_iface(config_t *left);
    static ucs_status_t
    on_error(void *arg, uct_ep_h ep, ucs_status_t status);

    uct_component_h     m_component = nullptr;
    ucs_async_context_t *m_async    = nullptr;
    uct_worker_h        m_worker    = nullptr;
    uct_md_h            m_md        = nullptr;
    uct_iface_h         m_iface     = nullptr;
    uct_iface_attr_t    m_attr      = {};
    uct_md_attr_t       m_md_attr   = {};
    std::vector<uct_ep_h>           m_eps;
    std::vector<uct_rkey_bundle_t>  m_rkeys;
    std::vector<entity*>            m_others;
};

/* Two entities in this process, each with an endpoint to the other */
class uct_pair_test : public ::testing::Test {
protected:
    void SetUp() override { open(m_config, m_config); }
    void TearDown() override;
    void open(const config_t &config_a, const config_t &config_b);
    virtual void prepare() {} /* Before the first connection */

    config_t                m_config; /* Of both, set by constructors */
    std::unique_ptr<entity> m_a, m_b;
    uct_ep_h                m_ab = nullptr; /* Endpoint of a to b */
    uct_ep_h                m_ba = nullptr;
};

/* The same with a buffer for each, and the key by which a reaches b's */
class uct_buffer_test : public uct_pair_test {
protected:
    explicit uct_buffer_test(size_t length) : m_length(length) {}
    void SetUp() override;
    void TearDown() override;

    const size_t            m_length;
    std::unique_ptr<buffer> m_local, m_remote;
    uct_rkey_t              m_rkey = UCT_INVALID_RKEY;
};

/* Another process. It runs one of the functions below, with a socket to this
 * one. */
class peer {
public:
    using function_t = int (*)(peer &parent);

    explicit peer(const std::string &function, uid_t uid = 0,
                  size_t memlock = 0);
    explicit peer(int fd) : m_fd(fd) {}
    ~peer();
    peer(const peer&) = delete;

    void send(const void *data, size_t length);
    void receive(void *data, size_t length);
    /* Whether something can be received, or the other side has closed */
    bool ready() const;

    template<typename T> void put(const T &value)
    {
        send(&value, sizeof(value));
    }

    template<typename T> T get()
    {
        T value;
        receive(&value, sizeof(value));
        return value;
    }

    void put_bytes(const std::vector<char> &bytes);
    std::vector<char> get_bytes();

    pid_t pid() const { return m_pid; }
    void kill();
    void stop();  /* Returns when the process has stopped */
    void go_on();
    /* Exit status: 0 if all of its checks passed */
    int join();

    /* Functions that a process can be started with */
    struct registration {
        registration(const char *name, function_t function);
    };
    static std::map<std::string, function_t> &functions();

private:
    int   m_fd  = -1;
    pid_t m_pid = -1;
};

/* While it lives, new processes load the component from a path that all users
 * can read */
class component_copy {
public:
    component_copy();
    ~component_copy();

private:
    std::string m_dir;
};

#define PEER_FUNCTION(_name) \
    static int _name(peer &parent); \
    static peer::registration _name##_registration(#_name, _name); \
    static int _name([[maybe_unused]] peer &parent)

/* Value in kilobytes of a line like "VmLck:" of /proc/PID/status */
long proc_status_kb(pid_t pid, const std::string &name);

/* Threads of a process with this name */
unsigned num_threads(pid_t pid, const std::string &name);

/* Whether all threads of a process with this name, at least one, are blocked in
 * poll() without a timeout, so that only an event can make them use the CPU */
bool thread_sleeps(pid_t pid, const std::string &name);

#endif
