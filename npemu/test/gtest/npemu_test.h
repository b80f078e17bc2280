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

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace npt {

/* Everything a remote side may do. */
constexpr int ACCESS_ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

constexpr uint32_t QKEY = 0x11111111;

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
    Device()
    {
        int count                = 0;
        struct ibv_device **list = npemu_get_device_list(&count);

        EXPECT_EQ(1, count);
        context = (list == nullptr) ? nullptr : npemu_open_device(list[0]);
        pd      = (context == nullptr) ? nullptr : npemu_alloc_pd(context);
        if (pd == nullptr) {
            perror("npemu_open_device");
            abort();
        }
        npemu_free_device_list(list);
    }

    ~Device()
    {
        EXPECT_EQ(0, npemu_dealloc_pd(pd));
        EXPECT_EQ(0, npemu_close_device(context));
    }

    Device(const Device &) = delete;

    ibv_context *context = nullptr;
    ibv_pd      *pd      = nullptr;
};

/* An object of the device, which must exist. */
template<typename T, int (*destroy)(T *)> class Owned {
public:
    Owned() = default;
    Owned(T *object) { *this = object; }
    ~Owned() { reset(); }
    Owned(const Owned &) = delete;

    void operator=(T *object)
    {
        EXPECT_NE(nullptr, object) << strerror(errno);
        m_object = object;
    }

    void reset()
    {
        if (m_object != nullptr) {
            EXPECT_EQ(0, destroy(m_object));
            m_object = nullptr;
        }
    }

    operator T *() const { return m_object; }
    T *operator->() const { return m_object; }

private:
    T *m_object = nullptr;
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
           ibv_pd *pd = nullptr) :
        length(length)
    {
        void *memory = nullptr;

        pd = (pd == nullptr) ? device.pd : pd;
        if ((access >= 0) && InArena::is_used) {
            memory = npemu_alloc_buf(pd, length, &m_buf);
        } else {
            memory = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
        if ((memory == nullptr) || (memory == MAP_FAILED)) {
            ADD_FAILURE() << "memory of " << length << ": " << strerror(errno);
            return;
        }
        data = (uint8_t*)memory;
        if (access >= 0) {
            mr = npemu_reg_mr(pd, data, length, access);
            EXPECT_NE(nullptr, mr) << strerror(errno);
        }
    }

    ~Buffer()
    {
        dereg();
        if (m_buf != nullptr) {
            npemu_free_buf(m_buf);
        } else if (data != nullptr) {
            munmap(data, length);
        }
    }

    Buffer(const Buffer &) = delete;

    ibv_sge sge(size_t offset, size_t size) const
    {
        ibv_sge result;

        result.addr   = at(offset);
        result.length = (uint32_t)size;
        result.lkey   = (mr == nullptr) ? 0 : mr->lkey;
        return result;
    }

    ibv_sge sge() const { return sge(0, length); }
    uint64_t at(size_t offset) const { return (uintptr_t)data + offset; }
    Remote remote(size_t offset = 0) const { return {at(offset), mr->rkey}; }
    void fill(uint64_t seed) { pattern_fill(data, length, seed); }
    void fill_byte(uint8_t value) { memset(data, value, length); }

    void dereg()
    {
        if (mr != nullptr) {
            EXPECT_EQ(0, npemu_dereg_mr(mr));
            mr = nullptr;
        }
    }

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
    explicit Channel(Device &device) :
        channel(npemu_create_comp_channel(device.context))
    {
    }

    /* Whether an event is there within @a ms. */
    bool readable(int ms = 0) const { return is_readable(channel->fd, ms); }

    /* Takes one event, which must be there within WAIT_MS, and acks it. */
    ibv_cq *take()
    {
        ibv_cq *cq       = nullptr;
        void *cq_context = nullptr;

        if (!readable(WAIT_MS)) {
            ADD_FAILURE() << "no event on the channel";
            return nullptr;
        }
        EXPECT_EQ(0, npemu_get_cq_event(channel, &cq, &cq_context));
        if (cq != nullptr) {
            EXPECT_EQ(cq->cq_context, cq_context);
            npemu_ack_cq_events(cq, 1);
        }
        return cq;
    }

    Owned<ibv_comp_channel, npemu_destroy_comp_channel> channel;
};

class Cq {
public:
    explicit Cq(Device &device, int cqe = 256, Channel *channel = nullptr,
                void *cq_context = nullptr) :
        cq(npemu_create_cq(device.context, cqe, cq_context,
                           (channel == nullptr) ?
                                   nullptr : &*channel->channel,
                           0))
    {
    }

    /* The next completion; NO_COMPLETION and a failure if none comes. */
    ibv_wc wait()
    {
        ibv_wc wc;
        int count = 0;

        memset(&wc, 0xcc, sizeof(wc));
        wait_until([&] { return (count = ibv_poll_cq(cq, 1, &wc)) != 0; });
        if (count != 1) {
            ADD_FAILURE() << "no completion, ibv_poll_cq gives " << count;
            memset(&wc, 0, sizeof(wc));
            wc.status = NO_COMPLETION;
        }
        return wc;
    }

    /*
     * Expects @a count completions with @a status, in order of @a wr_id. False
     * if they were not what was expected, or did not come.
     */
    bool expect(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS,
                int count = 1)
    {
        bool good = true;

        for (int i = 0; i < count; ++i) {
            ibv_wc wc = wait();

            if (wc.status == NO_COMPLETION) {
                return false;
            }
            EXPECT_EQ(wr_id + i, wc.wr_id);
            EXPECT_EQ(status, wc.status) << "of wr_id " << wc.wr_id;
            good = good && (wc.wr_id == wr_id + i) && (wc.status == status);
        }
        return good;
    }

    /* Expects that there is none at this moment. */
    void expect_empty()
    {
        ibv_wc wc;

        EXPECT_EQ(0, ibv_poll_cq(cq, 1, &wc))
                << "wr_id " << wc.wr_id << " status " << wc.status;
    }

    operator ibv_cq *() const { return cq; }

    Owned<ibv_cq, npemu_destroy_cq> cq;
};

class Srq {
public:
    Srq(Device &device, uint32_t max_wr, ibv_pd *pd = nullptr)
    {
        ibv_srq_init_attr attr = {};

        attr.attr.max_wr  = max_wr;
        attr.attr.max_sge = 2;
        srq = npemu_create_srq((pd == nullptr) ? device.pd : pd, &attr);
    }

    int post(uint64_t wr_id, std::vector<ibv_sge> list)
    {
        ibv_recv_wr wr = {wr_id, nullptr, list.data(), (int)list.size()};
        ibv_recv_wr *bad = nullptr;
        int ret          = ibv_post_srq_recv(srq, &wr, &bad);

        EXPECT_EQ((ret == 0) ? nullptr : &wr, bad);
        return ret;
    }

    operator ibv_srq *() const { return srq; }

    Owned<ibv_srq, npemu_destroy_srq> srq;
};

/* A send work request with its SG list. */
struct Wr : public ibv_send_wr {
    Wr(uint64_t id, ibv_wr_opcode op, std::vector<ibv_sge> sges = {},
       unsigned flags = IBV_SEND_SIGNALED) :
        ibv_send_wr(), list(std::move(sges))
    {
        wr_id      = id;
        opcode     = op;
        send_flags = flags;
        sg_list    = list.data();
        num_sge    = (int)list.size();
    }

    Wr(const Wr &other) = delete;

    Wr &rdma(const Remote &remote)
    {
        wr.rdma.remote_addr = remote.addr;
        wr.rdma.rkey        = remote.rkey;
        return *this;
    }

    Wr &atomic(const Remote &remote, uint64_t compare_add, uint64_t swap = 0)
    {
        wr.atomic.remote_addr = remote.addr;
        wr.atomic.rkey        = remote.rkey;
        wr.atomic.compare_add = compare_add;
        wr.atomic.swap        = swap;
        return *this;
    }

    Wr &ud(ibv_ah *ah, uint32_t qpn, uint32_t qkey = QKEY)
    {
        wr.ud.ah          = ah;
        wr.ud.remote_qpn  = qpn;
        wr.ud.remote_qkey = qkey;
        return *this;
    }

    Wr &imm(uint32_t value)
    {
        imm_data = htobe32(value);
        return *this;
    }

    Wr &then(Wr &following)
    {
        next = &following;
        return *this;
    }

    std::vector<ibv_sge> list;
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

class Qp {
public:
    Qp(Device &device, ibv_cq *send_cq, ibv_cq *recv_cq,
       const QpOptions &options = QpOptions()) :
        options(options)
    {
        static std::atomic<uint32_t> next_psn{0x1000};
        struct ibv_qp_init_attr attr = {};

        psn                      = (next_psn += 0x111);
        attr.qp_context          = this;
        attr.send_cq             = send_cq;
        attr.recv_cq             = recv_cq;
        attr.srq                 = options.srq;
        attr.qp_type             = options.type;
        attr.cap.max_send_wr     = options.send_wr;
        attr.cap.max_recv_wr     = options.recv_wr;
        attr.cap.max_send_sge    = options.sge;
        attr.cap.max_recv_sge    = options.sge;
        attr.cap.max_inline_data = options.inl;
        qp = npemu_create_qp(device.pd, &attr);
    }

    Address address() const
    {
        Address result = {};
        ibv_port_attr port;

        EXPECT_EQ(0, npemu_query_port(qp->context, 1, &port));
        result.qpn = qp->qp_num;
        result.psn = psn;
        result.lid = port.lid;
        return result;
    }

    int to_init()
    {
        ibv_qp_attr attr = {};
        int mask         = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        if (options.type == IBV_QPT_UD) {
            attr.qkey = QKEY;
            mask     |= IBV_QP_QKEY;
        } else {
            attr.qp_access_flags = options.access;
            mask                |= IBV_QP_ACCESS_FLAGS;
        }
        return npemu_modify_qp(qp, &attr, mask);
    }

    int to_rtr(const Address &peer)
    {
        ibv_qp_attr attr = {};
        int mask         = IBV_QP_STATE;

        attr.qp_state = IBV_QPS_RTR;
        if (options.type == IBV_QPT_RC) {
            attr.path_mtu           = IBV_MTU_4096;
            attr.dest_qp_num        = peer.qpn;
            attr.rq_psn             = peer.psn;
            attr.max_dest_rd_atomic = 4;
            attr.min_rnr_timer      = options.min_rnr_timer;
            attr.ah_attr.dlid       = peer.lid;
            attr.ah_attr.port_num   = 1;
            attr.ah_attr.sl         = options.sl;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                    IBV_QP_MIN_RNR_TIMER;
        }
        return npemu_modify_qp(qp, &attr, mask);
    }

    int to_rts()
    {
        ibv_qp_attr attr = {};
        int mask         = IBV_QP_STATE | IBV_QP_SQ_PSN;

        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn   = psn;
        if (options.type == IBV_QPT_RC) {
            attr.timeout       = options.timeout;
            attr.retry_cnt     = options.retry_cnt;
            attr.rnr_retry     = options.rnr_retry;
            attr.max_rd_atomic = 4;
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_MAX_QP_RD_ATOMIC;
        }
        return npemu_modify_qp(qp, &attr, mask);
    }

    int to_state(ibv_qp_state state)
    {
        ibv_qp_attr attr = {};

        attr.qp_state = state;
        return npemu_modify_qp(qp, &attr, IBV_QP_STATE);
    }

    /* From RESET to RTS; @a peer is ignored for UD. */
    void connect(const Address &peer = {})
    {
        EXPECT_EQ(0, to_init());
        EXPECT_EQ(0, to_rtr(peer));
        EXPECT_EQ(0, to_rts());
    }

    ibv_qp_state state() const
    {
        ibv_qp_attr attr           = {};
        ibv_qp_init_attr init_attr = {};

        EXPECT_EQ(0, npemu_query_qp(qp, &attr, IBV_QP_STATE, &init_attr));
        return attr.qp_state;
    }

    int post_recv(uint64_t wr_id, std::vector<ibv_sge> list)
    {
        ibv_recv_wr wr = {wr_id, nullptr, list.data(), (int)list.size()};
        ibv_recv_wr *bad = nullptr;
        int ret          = ibv_post_recv(qp, &wr, &bad);

        EXPECT_EQ((ret == 0) ? nullptr : &wr, bad);
        return ret;
    }

    int post(ibv_send_wr &wr)
    {
        ibv_send_wr *bad = nullptr;
        int ret          = ibv_post_send(qp, &wr, &bad);

        if ((ret != 0) && (wr.next == nullptr)) {
            EXPECT_EQ(&wr, bad);
        }
        return ret;
    }

    /* What must be accepted. */
    void recv(uint64_t wr_id, const std::vector<ibv_sge> &list)
    {
        EXPECT_EQ(0, post_recv(wr_id, list));
    }

    void send(uint64_t wr_id, const std::vector<ibv_sge> &list)
    {
        Wr wr(wr_id, IBV_WR_SEND, list);

        EXPECT_EQ(0, post(wr));
    }

    void write(uint64_t wr_id, const std::vector<ibv_sge> &list,
               const Remote &remote)
    {
        Wr wr(wr_id, IBV_WR_RDMA_WRITE, list);

        EXPECT_EQ(0, post(wr.rdma(remote)));
    }

    void read(uint64_t wr_id, const std::vector<ibv_sge> &list,
              const Remote &remote)
    {
        Wr wr(wr_id, IBV_WR_RDMA_READ, list);

        EXPECT_EQ(0, post(wr.rdma(remote)));
    }

    operator ibv_qp *() const { return qp; }

    Owned<ibv_qp, npemu_destroy_qp> qp;
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
    explicit Ah(Device &device, const ibv_ah_attr &attr = {})
    {
        ibv_ah_attr own = attr;
        ibv_port_attr port;

        EXPECT_EQ(0, npemu_query_port(device.context, 1, &port));
        own.dlid     = port.lid;
        own.port_num = 1;
        ah           = npemu_create_ah(device.pd, &own);
    }

    operator ibv_ah *() const { return ah; }

    Owned<ibv_ah, npemu_destroy_ah> ah;
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
    ~Pipe()
    {
        close(m_fd);
    }

    /* False if the other end has gone (a failure of the test only if the
     * caller says so) or nothing came. */
    bool send_bytes(const void *data, size_t length)
    {
        return ::send(m_fd, data, length, MSG_NOSIGNAL) == (ssize_t)length;
    }

    bool recv_bytes(void *data, size_t length)
    {
        for (size_t done = 0; done < length;) {
            ssize_t n = is_readable(m_fd, WAIT_MS) ?
                                read(m_fd, (char*)data + done, length - done) :
                                -1;
            if (n <= 0) {
                return false;
            }
            done += n;
        }
        return true;
    }

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

    bool await()
    {
        char c;

        return recv_bytes(&c, 1);
    }

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

    explicit Child(const Body &body)
    {
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
            abort();
        }

        fflush(nullptr);
        m_pid = fork();
        if (m_pid == 0) {
            close(fds[0]);
            {
                Pipe pipe(fds[1]);
                body(pipe);
            }
            fflush(nullptr);
            /* No destructors of the parent's objects, no second test run. */
            _exit(testing::Test::HasFailure() ? 1 : 0);
        }

        close(fds[1]);
        if (m_pid < 0) {
            abort();
        }
        m_pipe = std::make_unique<Pipe>(fds[0]);
    }

    /* Kills the child unless it has been waited for. */
    ~Child()
    {
        if (m_pid > 0) {
            kill();
        }
    }

    Child(const Child &) = delete;

    Pipe &pipe() { return *m_pipe; }
    pid_t pid() const { return m_pid; }

    /* Expects a clean exit within WAIT_MS. */
    void join()
    {
        int status = 0;
        pid_t pid  = 0;

        wait_until([&] {
            pid = waitpid(m_pid, &status, WNOHANG);
            return pid != 0;
        });
        if (pid != m_pid) {
            ADD_FAILURE() << "child " << m_pid << " does not end";
            kill();
            return;
        }
        m_pid = -1;
        EXPECT_TRUE(WIFEXITED(status))
                << "child killed by " << WTERMSIG(status);
        EXPECT_EQ(0, WIFEXITED(status) ? WEXITSTATUS(status) : -1)
                << "failures in the child, see above";
    }

    /* The child waits for this before it ends. */
    void release()
    {
        m_pipe->signal();
        join();
    }

    /* It has stopped itself; or SIGSTOP stops it. */
    void expect_stopped()
    {
        siginfo_t info;

        ASSERT_EQ(0, waitid(P_PID, m_pid, &info, WSTOPPED | WEXITED | WNOWAIT));
        EXPECT_EQ(CLD_STOPPED, info.si_code);
    }

    void stop()
    {
        ASSERT_EQ(0, ::kill(m_pid, SIGSTOP));
        expect_stopped();
    }

    void resume()
    {
        ASSERT_EQ(0, ::kill(m_pid, SIGCONT));
    }

    /* SIGKILL, and reaps it. */
    void kill()
    {
        int status;

        /* -1 would be all processes */
        ASSERT_GT(m_pid, 0) << "the child has gone already";
        ::kill(m_pid, SIGKILL);
        EXPECT_EQ(m_pid, waitpid(m_pid, &status, 0));
        m_pid = -1;
    }

private:
    pid_t                 m_pid;
    std::unique_ptr<Pipe> m_pipe;
};

/*
 * Runs @a body in a forked child, and fails where it fails. For tests whose
 * process must not be the test program, because it changes its user or limits.
 */
void in_child(const std::function<void()> &body);

/* The process, of root, becomes one of another user for good. Peers of that
 * user may trace it, as they may trace any program. */
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
