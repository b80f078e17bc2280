/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "npemu_test.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace npt {

double ms_since(Clock::time_point start)
{
    return std::chrono::duration<double, std::milli>(Clock::now() - start)
            .count();
}

bool wait_until(const std::function<bool()> &condition, int ms)
{
    auto start = Clock::now();

    while (!condition()) {
        if (ms_since(start) > ms) {
            return false;
        }
        sched_yield();
    }
    return true;
}

bool is_readable(int fd, int ms)
{
    struct pollfd pfd = {fd, POLLIN, 0};

    return poll(&pfd, 1, ms) == 1;
}

std::set<int> open_fds()
{
    std::set<int> fds;
    DIR *dir = opendir("/proc/self/fd");

    while (struct dirent *entry = readdir(dir)) {
        int fd = atoi(entry->d_name);
        if ((entry->d_name[0] != '.') && (fd != dirfd(dir))) {
            fds.insert(fd);
        }
    }
    closedir(dir);
    return fds;
}

long locked_kb()
{
    std::ifstream file("/proc/self/status");
    std::string word;

    while ((file >> word) && (word != "VmLck:")) {
    }
    file >> word;
    return atol(word.c_str());
}

uint8_t pattern_byte(uint64_t seed, size_t index)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + (index >> 3);

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint8_t)(x >> (8 * (index & 7)));
}

void pattern_fill(void *buffer, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        ((uint8_t*)buffer)[i] = pattern_byte(seed, i);
    }
}

testing::AssertionResult pattern_holds(const void *buffer, size_t length,
                                       uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        if (((const uint8_t*)buffer)[i] != pattern_byte(seed, i)) {
            return testing::AssertionFailure()
                   << "byte " << i << " of " << length << " is "
                   << (int)((const uint8_t*)buffer)[i] << ", should be "
                   << (int)pattern_byte(seed, i);
        }
    }
    return testing::AssertionSuccess();
}

/* --- objects -------------------------------------------------------------- */

Device::Device()
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

Device::~Device()
{
    EXPECT_EQ(0, npemu_dealloc_pd(pd));
    EXPECT_EQ(0, npemu_close_device(context));
}

bool Buffer::InArena::is_used;

Buffer::Buffer(Device &device, size_t length, int access, ibv_pd *pd) :
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

Buffer::~Buffer()
{
    dereg();
    if (m_buf != nullptr) {
        npemu_free_buf(m_buf);
    } else if (data != nullptr) {
        munmap(data, length);
    }
}

void Buffer::dereg()
{
    if (mr != nullptr) {
        EXPECT_EQ(0, npemu_dereg_mr(mr));
        mr = nullptr;
    }
}

ibv_sge Buffer::sge(size_t offset, size_t size) const
{
    ibv_sge result;

    result.addr   = at(offset);
    result.length = (uint32_t)size;
    result.lkey   = (mr == nullptr) ? 0 : mr->lkey;
    return result;
}

Channel::Channel(Device &device) :
    channel(npemu_create_comp_channel(device.context))
{
    EXPECT_NE(nullptr, channel) << strerror(errno);
}

Channel::~Channel()
{
    if (channel != nullptr) {
        EXPECT_EQ(0, npemu_destroy_comp_channel(channel));
    }
}

ibv_cq *Channel::take()
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

Cq::Cq(Device &device, int cqe, Channel *channel, void *cq_context) :
    cq(npemu_create_cq(device.context, cqe, cq_context,
                       (channel == nullptr) ? nullptr : channel->channel, 0))
{
    EXPECT_NE(nullptr, cq) << strerror(errno);
}

Cq::~Cq()
{
    if (cq != nullptr) {
        EXPECT_EQ(0, npemu_destroy_cq(cq));
    }
}

ibv_wc Cq::wait()
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

bool Cq::expect(uint64_t wr_id, ibv_wc_status status, int count)
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

void Cq::expect_empty()
{
    ibv_wc wc;

    EXPECT_EQ(0, ibv_poll_cq(cq, 1, &wc))
            << "wr_id " << wc.wr_id << " status " << wc.status;
}

Srq::Srq(Device &device, uint32_t max_wr, ibv_pd *pd)
{
    ibv_srq_init_attr attr = {};

    attr.attr.max_wr  = max_wr;
    attr.attr.max_sge = 2;
    srq = npemu_create_srq((pd == nullptr) ? device.pd : pd, &attr);
    EXPECT_NE(nullptr, srq) << strerror(errno);
}

Srq::~Srq()
{
    if (srq != nullptr) {
        EXPECT_EQ(0, npemu_destroy_srq(srq));
    }
}

int Srq::post(uint64_t wr_id, std::vector<ibv_sge> list)
{
    ibv_recv_wr wr = {wr_id, nullptr, list.data(), (int)list.size()};
    ibv_recv_wr *bad = nullptr;
    int ret          = ibv_post_srq_recv(srq, &wr, &bad);

    EXPECT_EQ((ret == 0) ? nullptr : &wr, bad);
    return ret;
}

/* --- queue pairs ---------------------------------------------------------- */

Qp::Qp(Device &device, ibv_cq *send_cq, ibv_cq *recv_cq,
       const QpOptions &options) :
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
    EXPECT_NE(nullptr, qp) << strerror(errno);
}

Qp::~Qp()
{
    if (qp != nullptr) {
        EXPECT_EQ(0, npemu_destroy_qp(qp));
    }
}

Address Qp::address() const
{
    Address result = {};
    ibv_port_attr port;

    EXPECT_EQ(0, npemu_query_port(qp->context, 1, &port));
    result.qpn = qp->qp_num;
    result.psn = psn;
    result.lid = port.lid;
    return result;
}

int Qp::to_init()
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

int Qp::to_rtr(const Address &peer)
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

int Qp::to_rts()
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

int Qp::to_state(ibv_qp_state state)
{
    ibv_qp_attr attr = {};

    attr.qp_state = state;
    return npemu_modify_qp(qp, &attr, IBV_QP_STATE);
}

void Qp::connect(const Address &peer)
{
    EXPECT_EQ(0, to_init());
    EXPECT_EQ(0, to_rtr(peer));
    EXPECT_EQ(0, to_rts());
}

ibv_qp_state Qp::state() const
{
    ibv_qp_attr attr           = {};
    ibv_qp_init_attr init_attr = {};

    EXPECT_EQ(0, npemu_query_qp(qp, &attr, IBV_QP_STATE, &init_attr));
    return attr.qp_state;
}

int Qp::post_recv(uint64_t wr_id, std::vector<ibv_sge> list)
{
    ibv_recv_wr wr = {wr_id, nullptr, list.data(), (int)list.size()};
    ibv_recv_wr *bad = nullptr;
    int ret          = ibv_post_recv(qp, &wr, &bad);

    EXPECT_EQ((ret == 0) ? nullptr : &wr, bad);
    return ret;
}

int Qp::post(ibv_send_wr &wr)
{
    ibv_send_wr *bad = nullptr;
    int ret          = ibv_post_send(qp, &wr, &bad);

    if ((ret != 0) && (wr.next == nullptr)) {
        EXPECT_EQ(&wr, bad);
    }
    return ret;
}

void Qp::recv(uint64_t wr_id, const std::vector<ibv_sge> &list)
{
    EXPECT_EQ(0, post_recv(wr_id, list));
}

void Qp::send(uint64_t wr_id, const std::vector<ibv_sge> &list)
{
    Wr wr(wr_id, IBV_WR_SEND, list);

    EXPECT_EQ(0, post(wr));
}

void Qp::write(uint64_t wr_id, const std::vector<ibv_sge> &list,
               const Remote &remote)
{
    Wr wr(wr_id, IBV_WR_RDMA_WRITE, list);

    EXPECT_EQ(0, post(wr.rdma(remote)));
}

void Qp::read(uint64_t wr_id, const std::vector<ibv_sge> &list,
              const Remote &remote)
{
    Wr wr(wr_id, IBV_WR_RDMA_READ, list);

    EXPECT_EQ(0, post(wr.rdma(remote)));
}

void connect(Qp &one, Qp &other)
{
    EXPECT_EQ(0, one.to_init());
    EXPECT_EQ(0, other.to_init());
    /* Both ends must listen before one of them talks. */
    EXPECT_EQ(0, one.to_rtr(other.address()));
    EXPECT_EQ(0, other.to_rtr(one.address()));
    EXPECT_EQ(0, one.to_rts());
    EXPECT_EQ(0, other.to_rts());
}

Ah::Ah(Device &device, const ibv_ah_attr &attr)
{
    ibv_ah_attr own = attr;
    ibv_port_attr port;

    EXPECT_EQ(0, npemu_query_port(device.context, 1, &port));
    own.dlid     = port.lid;
    own.port_num = 1;
    ah           = npemu_create_ah(device.pd, &own);
    EXPECT_NE(nullptr, ah) << strerror(errno);
}

Ah::~Ah()
{
    if (ah != nullptr) {
        EXPECT_EQ(0, npemu_destroy_ah(ah));
    }
}

Wr::Wr(uint64_t id, ibv_wr_opcode op, std::vector<ibv_sge> sges,
       unsigned flags) :
    ibv_send_wr(), list(std::move(sges))
{
    wr_id      = id;
    opcode     = op;
    send_flags = flags;
    sg_list    = list.data();
    num_sge    = (int)list.size();
}

Wr &Wr::rdma(const Remote &remote)
{
    wr.rdma.remote_addr = remote.addr;
    wr.rdma.rkey        = remote.rkey;
    return *this;
}

Wr &Wr::atomic(const Remote &remote, uint64_t compare_add, uint64_t swap)
{
    wr.atomic.remote_addr = remote.addr;
    wr.atomic.rkey        = remote.rkey;
    wr.atomic.compare_add = compare_add;
    wr.atomic.swap        = swap;
    return *this;
}

Wr &Wr::ud(ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
    wr.ud.ah          = ah;
    wr.ud.remote_qpn  = qpn;
    wr.ud.remote_qkey = qkey;
    return *this;
}

Wr &Wr::imm(uint32_t value)
{
    imm_data = htobe32(value);
    return *this;
}

Wr &Wr::then(Wr &following)
{
    next = &following;
    return *this;
}

bool has_async(Device &device, int ms)
{
    return is_readable(device.context->async_fd, ms);
}

AsyncEvent take_async(Device &device)
{
    ibv_async_event event;

    if (!has_async(device, WAIT_MS)) {
        ADD_FAILURE() << "no async event";
        return {-1, nullptr};
    }
    EXPECT_EQ(0, npemu_get_async_event(device.context, &event));
    npemu_ack_async_event(&event);
    return {event.event_type, event.element.qp};
}

/* --- processes ------------------------------------------------------------ */

Pipe::~Pipe()
{
    close(m_fd);
}

bool Pipe::send_bytes(const void *data, size_t length)
{
    return ::send(m_fd, data, length, MSG_NOSIGNAL) == (ssize_t)length;
}

bool Pipe::recv_bytes(void *data, size_t length)
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

bool Pipe::await()
{
    char c;

    return recv_bytes(&c, 1);
}

Child::Child(const Body &body)
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

Child::~Child()
{
    if (m_pid > 0) {
        kill();
    }
}

void Child::join()
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
    EXPECT_TRUE(WIFEXITED(status)) << "child killed by " << WTERMSIG(status);
    EXPECT_EQ(0, WIFEXITED(status) ? WEXITSTATUS(status) : -1)
            << "failures in the child, see above";
}

void Child::release()
{
    m_pipe->signal();
    join();
}

void Child::expect_stopped()
{
    siginfo_t info;

    ASSERT_EQ(0, waitid(P_PID, m_pid, &info, WSTOPPED | WEXITED | WNOWAIT));
    EXPECT_EQ(CLD_STOPPED, info.si_code);
}

void Child::stop()
{
    ASSERT_EQ(0, ::kill(m_pid, SIGSTOP));
    expect_stopped();
}

void Child::resume()
{
    ASSERT_EQ(0, ::kill(m_pid, SIGCONT));
}

void Child::kill()
{
    int status;

    /* -1 would be all processes */
    ASSERT_GT(m_pid, 0) << "the child has gone already";
    ::kill(m_pid, SIGKILL);
    EXPECT_EQ(m_pid, waitpid(m_pid, &status, 0));
    m_pid = -1;
}

void in_child(const std::function<void()> &body)
{
    Child child([&](Pipe &) { body(); });

    child.join();
}

bool become_user(unsigned uid)
{
    /* A change of user clears what a normal program has set. */
    return (setgroups(0, nullptr) == 0) && (setresgid(uid, uid, uid) == 0) &&
           (setresuid(uid, uid, uid) == 0) &&
           (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}

bool become_nobody()
{
    return (geteuid() != 0) || become_user(65534);
}

void connect_over(Pipe &pipe, Qp &qp)
{
    EXPECT_EQ(0, qp.to_init());
    EXPECT_TRUE(pipe.send(qp.address()));
    EXPECT_EQ(0, qp.to_rtr(pipe.recv<Address>()));
    EXPECT_EQ(0, qp.to_rts());
    /* The peer answers only from RTR on. */
    EXPECT_TRUE(pipe.signal());
    EXPECT_TRUE(pipe.await());
}

void be_idle(Pipe &pipe)
{
    Side side(QpOptions(), 1 << 20);

    connect_over(pipe, side.qp);
    EXPECT_TRUE(pipe.send(side.remote()));
    EXPECT_TRUE(pipe.await());
}

void hold_device(Pipe &pipe)
{
    Device device;

    pipe.signal();
    pipe.await();
}

std::string stderr_of(const std::function<void()> &body)
{
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
}

void expect_line(const std::string &text, const std::function<void()> &body)
{
    std::string said = stderr_of(body);

    EXPECT_NE(std::string::npos, said.find(text)) << said;
    EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;
}

/* --- the kernel's table of shared memory ---------------------------------- */

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

static bool own_fabric;

bool has_own_fabric()
{
    return own_fabric;
}

} // namespace npt

/* Tests that damage the fabric, or count what is left of it, must be alone in
 * it: a new IPC namespace has a fabric of its own. */
int main(int argc, char **argv)
{
    /* A listing is no run, and is made at build time. */
    bool listing = false;
    for (int i = 1; i < argc; ++i) {
        listing = listing || (strstr(argv[i], "list_tests") != nullptr);
    }
    if (!listing) {
        npt::own_fabric = unshare(CLONE_NEWIPC) == 0;
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
