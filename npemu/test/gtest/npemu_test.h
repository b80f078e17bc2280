/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What all tests of the emulated device share: objects that clean up after
 * themselves, waiting for completions with a deadline, and child processes.
 */

#ifndef NPEMU_TEST_H
#define NPEMU_TEST_H

/* Templates of its own: not to be first seen within extern "C". */
#include <infiniband/verbs.h>

extern "C" {
#include "npemu.h"
}

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <sys/shm.h>
#include <sys/types.h>

namespace npt {

/* Everything a remote side may do. */
constexpr int ACCESS_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/* Long enough for a loaded machine under a sanitizer; never slept through. */
constexpr int WAIT_MS = 60000;

/* The status of a completion that did not come. */
constexpr ibv_wc_status NO_COMPLETION = (ibv_wc_status)31;

using Clock = std::chrono::steady_clock;

/* Milliseconds since @a start. */
double ms_since(Clock::time_point start);

/* Waits until @a condition holds; false if that takes longer than @a ms. */
bool wait_until(const std::function<bool()> &condition, int ms = WAIT_MS);

/* Whether poll() finds something to read within @a ms. */
bool is_readable(int fd, int ms);

/* An environment variable for the time of a test. */
class Env {
public:
    Env(const char *name, const std::string &value) : m_name(name)
    {
        setenv(name, value.c_str(), 1);
    }
    ~Env() { unsetenv(m_name); }
    Env(const Env &) = delete;

private:
    const char *m_name;
};

/* Numbers of the open descriptors of this process. */
std::set<int> open_fds();

/* Kilobytes of memory that this process has locked. */
long locked_kb();

/* Byte @a index of a pattern that differs for each @a seed. */
uint8_t pattern_byte(uint64_t seed, size_t index);
void pattern_fill(void *buffer, size_t length, uint64_t seed);
testing::AssertionResult pattern_holds(const void *buffer, size_t length,
                                       uint64_t seed);

/* --- objects -------------------------------------------------------------- */

/* The opened device and a protection domain; without them the program ends. */
class Device {
public:
    Device();
    ~Device();
    Device(const Device &) = delete;

    ibv_context *context = nullptr;
    ibv_pd      *pd      = nullptr;
};

/* Memory as its peer sees it. */
struct Remote {
    uint64_t addr;
    uint32_t rkey;
};

/* Page-aligned memory of its own, registered. Access -1: not registered. */
class Buffer {
public:
    Buffer(Device &device, size_t length, int access = ACCESS_ALL,
           ibv_pd *pd = nullptr);
    ~Buffer();
    Buffer(const Buffer &) = delete;

    ibv_sge sge(size_t offset, size_t size) const;
    ibv_sge sge() const { return sge(0, length); }
    uint64_t at(size_t offset) const { return (uintptr_t)data + offset; }
    Remote remote(size_t offset = 0) const { return {at(offset), mr->rkey}; }
    void fill(uint64_t seed) { pattern_fill(data, length, seed); }
    void fill_byte(uint8_t value) { memset(data, value, length); }
    void dereg();

    /* While there is one, buffers that are registered are in the arena. */
    struct InArena {
        InArena() { is_used = true; }
        ~InArena() { is_used = false; }
        static bool is_used;
    };

    uint8_t *data = nullptr;
    size_t   length;
    ibv_mr  *mr = nullptr;

private:
    ibv_buf *m_buf = nullptr;
};

class Channel {
public:
    explicit Channel(Device &device);
    ~Channel();
    Channel(const Channel &) = delete;

    /* Whether an event is there within @a ms. */
    bool readable(int ms = 0) const { return is_readable(channel->fd, ms); }

    /* Takes one event, which must be there within WAIT_MS, and acks it. */
    ibv_cq *take();

    ibv_comp_channel *channel;
};

class Cq {
public:
    explicit Cq(Device &device, int cqe = 256, Channel *channel = nullptr,
                void *cq_context = nullptr);
    ~Cq();
    Cq(const Cq &) = delete;

    /* The next completion; NO_COMPLETION and a failure if none comes. */
    ibv_wc wait();

    /*
     * Expects @a count completions with @a status, in order of @a wr_id. False
     * if they were not what was expected, or did not come.
     */
    bool expect(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS,
                int count = 1);

    /* Expects that there is none at this moment. */
    void expect_empty();

    operator ibv_cq *() const { return cq; }

    ibv_cq *cq;
};

class Srq {
public:
    Srq(Device &device, uint32_t max_wr, ibv_pd *pd = nullptr);
    ~Srq();
    Srq(const Srq &) = delete;

    int post(uint64_t wr_id, std::vector<ibv_sge> list);
    operator ibv_srq *() const { return srq; }

    ibv_srq *srq;
};

/* What a QP needs to know of its peer; goes through pipes. */
struct Address {
    uint32_t qpn;
    uint32_t psn;
    uint16_t lid;
};

struct QpOptions {
    ibv_qp_type type     = IBV_QPT_RC;
    uint32_t    send_wr  = 64;
    uint32_t    recv_wr  = 64;
    uint32_t    sge      = 4;
    uint32_t    inl      = 64;
    ibv_srq    *srq      = nullptr;
    /* connection */
    int      access        = ACCESS_ALL;
    uint8_t  timeout       = 14; /* 67 ms, as most programs have it */
    uint8_t  retry_cnt     = 7;
    uint8_t  rnr_retry     = 7;
    uint8_t  min_rnr_timer = 1; /* 10 us */
    uint8_t  sl            = 0;

    static QpOptions ud()
    {
        QpOptions options;
        options.type = IBV_QPT_UD;
        return options;
    }

    /* With the receives of an SRQ. */
    QpOptions &on(ibv_srq *queue)
    {
        srq     = queue;
        recv_wr = 0;
        return *this;
    }
};

constexpr uint32_t QKEY = 0x11111111;

class Qp {
public:
    Qp(Device &device, ibv_cq *send_cq, ibv_cq *recv_cq,
       const QpOptions &options = QpOptions());
    ~Qp();
    Qp(const Qp &) = delete;

    Address address() const;
    int to_init();
    int to_rtr(const Address &peer);
    int to_rts();
    int to_state(ibv_qp_state state);

    /* From RESET to RTS; @a peer is ignored for UD. */
    void connect(const Address &peer = {});
    ibv_qp_state state() const;

    int post_recv(uint64_t wr_id, std::vector<ibv_sge> list);
    int post(ibv_send_wr &wr);

    /* What must be accepted. */
    void recv(uint64_t wr_id, const std::vector<ibv_sge> &list);
    void send(uint64_t wr_id, const std::vector<ibv_sge> &list);
    void write(uint64_t wr_id, const std::vector<ibv_sge> &list,
               const Remote &remote);
    void read(uint64_t wr_id, const std::vector<ibv_sge> &list,
              const Remote &remote);

    operator ibv_qp *() const { return qp; }

    ibv_qp   *qp = nullptr;
    QpOptions options;
    uint32_t  psn;
};

/* Both from RESET to RTS, each the other's peer. */
void connect(Qp &one, Qp &other);

/* Two connected QPs of one process. */
class Pair {
public:
    explicit Pair(Device &device, const QpOptions &a_options = QpOptions(),
                  const QpOptions &b_options = QpOptions(), int cqe = 256) :
        cq_a(device, cqe), cq_b(device, cqe),
        a(device, cq_a, cq_a, a_options), b(device, cq_b, cq_b, b_options)
    {
        connect(a, b);
    }

    Cq cq_a, cq_b; /* both directions */
    Qp a, b;
};

/* An address handle for this device's only port. */
class Ah {
public:
    explicit Ah(Device &device, const ibv_ah_attr &attr = {});
    ~Ah();
    Ah(const Ah &) = delete;

    operator ibv_ah *() const { return ah; }

    ibv_ah *ah;
};

/* A send work request with its SG list. */
struct Wr : public ibv_send_wr {
    Wr(uint64_t id, ibv_wr_opcode op, std::vector<ibv_sge> sges = {},
       unsigned flags = IBV_SEND_SIGNALED);
    Wr(const Wr &other) = delete;

    Wr &rdma(const Remote &remote);
    Wr &atomic(const Remote &remote, uint64_t compare_add, uint64_t swap = 0);
    Wr &ud(ibv_ah *ah, uint32_t qpn, uint32_t qkey = QKEY);
    Wr &imm(uint32_t value);
    Wr &then(Wr &following);

    std::vector<ibv_sge> list;
};

/* The async event that must come within WAIT_MS; acks it. */
struct AsyncEvent {
    int   type; /* -1: none came */
    void *element;
};
AsyncEvent take_async(Device &device);
bool has_async(Device &device, int ms = 0);

/* --- processes ------------------------------------------------------------ */

/* One end of a two-way pipe; all calls give up after WAIT_MS. */
class Pipe {
public:
    explicit Pipe(int fd) : m_fd(fd) {}
    ~Pipe();

    /* False if the other end has gone (a failure of the test only if the
     * caller says so) or nothing came. */
    bool send_bytes(const void *data, size_t length);
    bool recv_bytes(void *data, size_t length);

    template<typename T> bool send(const T &value)
    {
        return send_bytes(&value, sizeof(value));
    }

    template<typename T> T recv()
    {
        T value = {};
        EXPECT_TRUE(recv_bytes(&value, sizeof(value))) << "no answer";
        return value;
    }

    /* One byte: "I have come this far". */
    bool signal() { return send('.'); }
    bool await();

private:
    int m_fd;
};

/*
 * A forked child that runs @a body and exits: 0 if no expectation failed. To be
 * created before the device is opened in the parent.
 */
class Child {
public:
    using Body = std::function<void(Pipe &)>;

    explicit Child(const Body &body);

    /* Kills the child unless it has been waited for. */
    ~Child();
    Child(const Child &) = delete;

    Pipe &pipe() { return *m_pipe; }
    pid_t pid() const { return m_pid; }

    /* Expects a clean exit within WAIT_MS. */
    void join();

    /* The child waits for this before it ends. */
    void release();

    /* It has stopped itself; or SIGSTOP stops it. */
    void expect_stopped();
    void stop();
    void resume();

    /* SIGKILL, and reaps it. */
    void kill();

private:
    pid_t                 m_pid;
    std::unique_ptr<Pipe> m_pipe;
};

/*
 * Runs @a body in a forked child, and fails where it fails. For tests whose
 * process must not be the test program, because it changes its user or limits.
 */
void in_child(const std::function<void()> &body);

/* Root becomes another user for good, whom peers may trace as any program. */
bool become_user(unsigned uid);

/* Root becomes the user nobody for good; other users stay as they are. */
bool become_nobody();

/* Exchanges addresses over @a pipe and connects. */
void connect_over(Pipe &pipe, Qp &qp);

/* One side of a connection, or of datagrams, between two processes. */
struct Side {
    explicit Side(const QpOptions &options = QpOptions(),
                  size_t size = 64 << 10) :
        channel(device), cq(device, 256, &channel),
        qp(device, cq, cq, options), buffer(device, size)
    {
    }

    Remote remote(size_t offset = 0) const { return buffer.remote(offset); }

    /* A request with data from the beginning of the buffer. */
    void send(uint64_t wr_id, uint32_t length = 8)
    {
        qp.send(wr_id, {buffer.sge(0, length)});
    }
    void write(uint64_t wr_id, const Remote &remote, uint32_t length = 8)
    {
        qp.write(wr_id, {buffer.sge(0, length)}, remote);
    }

    Device  device;
    Channel channel;
    Cq      cq;
    Qp      qp;
    Buffer  buffer;
};

/* A peer that connects, sends a Remote of its buffer, and then waits for the
 * end of the test. */
void be_idle(Pipe &pipe);

/* A child that keeps the device open until it gets a signal. */
void hold_device(Pipe &pipe);

/* As text what @a body writes to stderr. */
std::string stderr_of(const std::function<void()> &body);

/* That this text is in the only line of stderr. */
void expect_line(const std::string &text, const std::function<void()> &body);

/* --- the kernel's table of shared memory ---------------------------------- */

struct Segment {
    int      id;
    shmid_ds ds;
};

/* All that this process may read. */
std::vector<Segment> segments();

/* Whether the tests run in an IPC namespace of their own; see main(). */
bool has_own_fabric();

} // namespace npt

/* Sanitizers make mlock() do nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NPT_MLOCK_WORKS false
#else
#define NPT_MLOCK_WORKS true
#endif

/* TSan lets no child of a process with threads start threads. */
#ifdef __SANITIZE_THREAD__
#define NPT_FORK_WITH_THREADS false
#else
#define NPT_FORK_WITH_THREADS true
#endif

#define SKIP_UNLESS(_condition, _why) \
    do { \
        if (!(_condition)) { \
            GTEST_SKIP() << _why; \
        } \
    } while (0)

#endif
