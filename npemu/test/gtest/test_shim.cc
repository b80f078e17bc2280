/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The shim for unmodified verbs programs. These tests are such a program: they
 * call libibverbs and run with the shim in LD_PRELOAD. With SHIM_STUB in the
 * environment a stand-in for the real library is below the shim, and reports
 * the calls that it gets.
 */

#include <infiniband/verbs.h>

extern "C" {
#include "shim/npemu_shim.h"
int ibv_query_gid_type(struct ibv_context *context, uint8_t port,
                       unsigned index, unsigned *type);
}

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Functions that the headers we compile with may not know. */
template<typename Function> static Function function(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);

    EXPECT_NE(nullptr, address) << name;
    return reinterpret_cast<Function>(address);
}

static const char **stub_called()
{
    static const char **called = (const char**)dlsym(
            dlopen("libibverbs.so.1", RTLD_LAZY), "shim_stub_called");
    return called;
}

/* --- objects of npemu0 ---------------------------------------------------- */

class test_shim_emulated : public testing::Test {
protected:
    void SetUp() override
    {
        int count;

        list = ibv_get_device_list(&count);
        ASSERT_NE(nullptr, list);
        ASSERT_LE(1, count);
        EXPECT_EQ(nullptr, list[count]);
        /* After the real ones. */
        ASSERT_STREQ("npemu0", ibv_get_device_name(list[count - 1]));
        context = ibv_open_device(list[count - 1]);
        ASSERT_NE(nullptr, context) << strerror(errno);
        pd = ibv_alloc_pd(context);
        ASSERT_NE(nullptr, pd);
    }

    void TearDown() override
    {
        if (pd != nullptr) {
            EXPECT_EQ(0, ibv_dealloc_pd(pd));
        }
        if (context != nullptr) {
            EXPECT_EQ(0, ibv_close_device(context));
        }
        if (list != nullptr) {
            ibv_free_device_list(list);
        }
    }

    ibv_qp *create_qp(ibv_cq *cq)
    {
        ibv_qp_init_attr attr = {};

        attr.qp_type          = IBV_QPT_RC;
        attr.send_cq          = cq;
        attr.recv_cq          = cq;
        attr.cap.max_send_wr  = 4;
        attr.cap.max_recv_wr  = 4;
        attr.cap.max_send_sge = 1;
        attr.cap.max_recv_sge = 1;
        return ibv_create_qp(pd, &attr);
    }

    /* What brings a queue pair to a state, on the way to another one */
    struct step {
        ibv_qp_attr attr = {};
        int         mask = IBV_QP_STATE;

        step(ibv_qp_state state, uint32_t dest_qpn)
        {
            attr.qp_state           = state;
            attr.port_num           = 1;
            attr.qp_access_flags    = IBV_ACCESS_REMOTE_READ |
                                      IBV_ACCESS_REMOTE_WRITE;
            attr.path_mtu           = IBV_MTU_1024;
            attr.dest_qp_num        = dest_qpn;
            attr.ah_attr.dlid       = 1;
            attr.ah_attr.port_num   = 1;
            attr.max_dest_rd_atomic = 1;
            attr.timeout            = 14;
            attr.max_rd_atomic      = 1;
            attr.rnr_retry          = 7;
            if (state == IBV_QPS_INIT) {
                mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            } else if (state == IBV_QPS_RTR) {
                mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                        IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                        IBV_QP_MIN_RNR_TIMER;
            } else {
                mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
            }
        }
    };

    static constexpr ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR,
                                              IBV_QPS_RTS};

    ibv_device **list    = nullptr;
    ibv_context *context = nullptr;
    ibv_pd      *pd      = nullptr;
};

/*
 * Whatever npemu0 does not have answers EOPNOTSUPP, also by functions that came
 * with later versions of libibverbs than the one installed.
 */
TEST_F(test_shim_emulated, unsupported)
{
    ibv_cq *cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
    ibv_qp *qp = create_qp(cq);
    ASSERT_NE(nullptr, qp);
    union ibv_gid gid = {};
    ibv_ece ece       = {};

    EXPECT_EQ(EOPNOTSUPP, ibv_attach_mcast(qp, &gid, 1));
    EXPECT_EQ(EOPNOTSUPP, ibv_query_ece(qp, &ece));
    EXPECT_EQ(EOPNOTSUPP, ibv_set_ece(qp, &ece));

    /* Their first argument decides; they must not look at the others. */
    void *first[] = {context, pd, qp};
    const struct {
        const char *name;
        int first;
    } later[] = {{"ibv_alloc_dmah", 0},        {"ibv_reg_mr_ex", 1},
                 {"ibv_query_port_speed", 0},  {"ibv_create_comp_cntr", 0},
                 {"ibv_qp_attach_comp_cntr", 2},
                 {"_ibv_query_comp_cntr_caps", 0}};
    for (auto &it : later) {
        using Call = uintptr_t (*)(void *, uintptr_t, uintptr_t, uintptr_t,
                                   uintptr_t);
        auto call  = function<Call>(it.name);
        errno      = 0;
        ASSERT_NE(nullptr, (void*)call);
        int result = (int)call(first[it.first], 0, 0, 0, 0);
        EXPECT_EQ(EOPNOTSUPP, errno) << it.name;
        EXPECT_TRUE((result == 0) || (result == EOPNOTSUPP)) << it.name;
    }
    EXPECT_EQ(0, ibv_destroy_qp(qp));
    EXPECT_EQ(0, ibv_destroy_cq(cq));
}

/* Verbs of rdma-core 65, which the installed libibverbs need not have */
TEST_F(test_shim_emulated, buffers)
{
    auto alloc = function<void *(*)(ibv_pd *, size_t, ibv_buf **)>(
            "ibv_alloc_buf");
    auto reg = function<ibv_mr *(*)(ibv_pd *, ibv_buf *, void *, size_t, int)>(
            "ibv_reg_buf_mr");
    auto export_fd = function<int (*)(ibv_buf *)>("ibv_export_buf_dmabuf_fd");
    auto free_buf  = function<void (*)(ibv_buf *)>("ibv_free_buf");
    ibv_buf *buf   = nullptr;
    void *data     = alloc(pd, 8192, &buf);

    ASSERT_NE(nullptr, data);
    ibv_mr *mr = reg(pd, buf, data, 8192, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(nullptr, mr);
    EXPECT_EQ(data, mr->addr);
    EXPECT_EQ(nullptr, reg(pd, buf, data, 8193, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_EQ(EINVAL, errno);
    errno = 0;
    EXPECT_EQ(-1, export_fd(buf));
    EXPECT_EQ(EOPNOTSUPP, errno);
    EXPECT_EQ(0, ibv_dereg_mr(mr));
    free_buf(buf);
}

/* --- beside another copy of the device ------------------------------------ */

/* Calls the verb of the shim, or of the copy of the device in this program */
#define OF(_is_copy, _verb, ...) \
    ((_is_copy) ? npemu_##_verb(__VA_ARGS__) : ibv_##_verb(__VA_ARGS__))

/* A program with the shim that has the device built in: a connection between
 * the two of them */
class test_shim_emulated_twice : public test_shim_emulated {
protected:
    static constexpr uint32_t half = 16384;

    struct end {
        ibv_pd  *pd;
        ibv_cq  *cq;
        ibv_mr  *mr;
        ibv_qp  *qp;
        uint8_t memory[2 * half];
    };

    void open_end(int i, ibv_context *ctx)
    {
        int access            = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        end &it               = ends[i];
        ibv_qp_init_attr init = {};

        it.pd = OF(i, alloc_pd, ctx);
        it.cq = OF(i, create_cq, ctx, 16, nullptr, nullptr, 0);
        it.mr = OF(i, reg_mr_iova2, it.pd, it.memory, sizeof(it.memory),
                   (uintptr_t)it.memory, access);
        ASSERT_NE(nullptr, it.mr) << strerror(errno);
        init.qp_type          = IBV_QPT_RC;
        init.cap.max_send_wr  = 4;
        init.cap.max_recv_wr  = 4;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.send_cq          = it.cq;
        init.recv_cq          = it.cq;
        it.qp                 = OF(i, create_qp, it.pd, &init);
        ASSERT_NE(nullptr, it.qp) << strerror(errno);
    }

    void close_end(int i)
    {
        EXPECT_EQ(0, OF(i, destroy_qp, ends[i].qp));
        EXPECT_EQ(0, OF(i, dereg_mr, ends[i].mr));
        EXPECT_EQ(0, OF(i, destroy_cq, ends[i].cq));
        EXPECT_EQ(0, OF(i, dealloc_pd, ends[i].pd));
    }

    static void complete(const end &it)
    {
        ibv_wc wc;

        while (ibv_poll_cq(it.cq, 1, &wc) == 0) {
        }
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
    }

    static void transfer(end &from, end &to, uint32_t size)
    {
        uint8_t *target  = to.memory + half;
        ibv_sge recv_sge = {(uintptr_t)target, half, to.mr->lkey};
        ibv_sge send_sge = {(uintptr_t)from.memory, size, from.mr->lkey};
        ibv_recv_wr recv = {}, *bad_recv;
        ibv_send_wr send = {}, *bad_send;

        memset(from.memory, size & 0xff, size);
        memset(target, 0, half);
        recv.sg_list    = &recv_sge;
        recv.num_sge    = 1;
        send.opcode     = IBV_WR_SEND;
        send.send_flags = IBV_SEND_SIGNALED;
        send.sg_list    = &send_sge;
        send.num_sge    = 1;
        ASSERT_EQ(0, ibv_post_recv(to.qp, &recv, &bad_recv));
        ASSERT_EQ(0, ibv_post_send(from.qp, &send, &bad_send));
        complete(from);
        complete(to);
        EXPECT_EQ(0, memcmp(from.memory, target, size));
    }

    end ends[2];
};

/* The two are members of one fabric */
TEST_F(test_shim_emulated_twice, send_to_each_other)
{
    ibv_device **own        = npemu_get_device_list(nullptr);
    ibv_context *contexts[] = {context, npemu_open_device(own[0])};
    ASSERT_NE(nullptr, contexts[1]) << strerror(errno);

    for (int i = 0; i < 2; ++i) {
        ASSERT_NO_FATAL_FAILURE(open_end(i, contexts[i]));
    }
    for (auto state : states) {
        for (int i = 0; i < 2; ++i) {
            step to(state, ends[1 - i].qp->qp_num);
            ASSERT_EQ(0, OF(i, modify_qp, ends[i].qp, &to.attr, to.mask));
        }
    }

    for (uint32_t size : {100u, 16000u}) {
        for (int from = 0; from < 2; ++from) {
            ASSERT_NO_FATAL_FAILURE(transfer(ends[from], ends[1 - from], size));
        }
    }

    for (int i = 0; i < 2; ++i) {
        close_end(i);
    }
    EXPECT_EQ(0, npemu_close_device(contexts[1]));
    npemu_free_device_list(own);
}

/* --- the device node ------------------------------------------------------ */

TEST(test_shim_node, is_a_usable_character_device)
{
    struct stat st;

    ASSERT_EQ(0, stat("/dev/infiniband/uverbs_npemu0", &st));
    EXPECT_TRUE(S_ISCHR(st.st_mode));
    EXPECT_EQ(0, access("/dev/infiniband/uverbs_npemu0", R_OK | W_OK));
}

/* --- objects of other devices --------------------------------------------- */

class test_shim_foreign : public testing::Test {
protected:
    void SetUp() override
    {
        if (getenv("SHIM_STUB") == nullptr) {
            GTEST_SKIP() << "runs with the stand-in below the shim only";
        }
        ASSERT_NE(nullptr, stub_called());
    }
};

TEST_F(test_shim_foreign, devices_are_listed_before_ours)
{
    int *lists = (int*)dlsym(dlopen("libibverbs.so.1", RTLD_LAZY),
                             "shim_stub_lists");
    int count  = 0;

    ibv_device **list = ibv_get_device_list(&count);
    ASSERT_NE(nullptr, list);
    ASSERT_EQ(2, count);
    EXPECT_STREQ("stub0", ibv_get_device_name(list[0]));
    EXPECT_STREQ("npemu0", ibv_get_device_name(list[1]));
    EXPECT_EQ(nullptr, list[2]);
    EXPECT_EQ(7, ibv_get_device_index(list[0]));
    EXPECT_EQ(0u, ibv_get_device_guid(list[0]));
    *stub_called() = "";
    EXPECT_EQ(nullptr, ibv_open_device(list[0]));
    EXPECT_STREQ("ibv_open_device", *stub_called());
    EXPECT_EQ(1, *lists);
    ibv_free_device_list(list);
    EXPECT_EQ(0, *lists) << "the real list is given back";

    EXPECT_EQ(0, ibv_fork_init());
    EXPECT_STREQ("ibv_fork_init", *stub_called());
}

/* Every object begins with its context, a context with its device. */
struct ForeignObject {
    void *first;
    char  rest[2048];
};

TEST_F(test_shim_foreign, every_verb_is_passed_on)
{
    static ForeignObject device, context, object;
    int passed    = 0;
    context.first = &device;
    object.first  = &context;

    auto check = [&](const char *name, const char *owner) {
        using Call = void (*)(void *, uintptr_t, uintptr_t, uintptr_t,
                              uintptr_t, uintptr_t);
        auto call  = function<Call>(name);
        ASSERT_NE(nullptr, (void*)call) << name;
        *stub_called() = "nothing";
        call(!strcmp(owner, "context") ? &context : &object, 0, 0, 0, 0, 0);
        EXPECT_STREQ(name, *stub_called());
        ++passed;
    };
#define CHECK(_result, _name, _failure, _owner, _params, _args) \
    check("ibv_" #_name, #_owner);
#define CHECK_HIDDEN(_result, _name, _failure, _owner, _params, _args) \
    check("_ibv_" #_name, #_owner);
    NPEMU_SHIM_SERVED(CHECK)
    NPEMU_SHIM_UNSUPPORTED(CHECK)
    NPEMU_SHIM_HIDDEN(CHECK_HIDDEN)
    NPEMU_SHIM_LATER(CHECK)
    check("ibv_free_buf", "object");
    check("ibv_export_buf_dmabuf_fd", "object");
    check("ibv_query_port", "context");
    EXPECT_LT(50, passed);

    ibv_async_event event = {};
    event.event_type      = IBV_EVENT_QP_FATAL;
    event.element.qp      = (ibv_qp*)&object;
    *stub_called()        = "nothing";
    ibv_ack_async_event(&event);
    EXPECT_STREQ("ibv_ack_async_event", *stub_called());
    event.event_type = IBV_EVENT_PORT_ACTIVE;
    event.element.qp = nullptr;
    *stub_called()   = "nothing";
    ibv_ack_async_event(&event);
    EXPECT_STREQ("ibv_ack_async_event", *stub_called());
}

/* The stand-in lacks this one, as an older libibverbs would. */
TEST_F(test_shim_foreign, verb_missing_in_the_real_library_fails)
{
    static ForeignObject device, context;
    context.first = &device;
    errno         = 0;
    using Call    = int (*)(void *, void *, size_t);
    EXPECT_EQ(EOPNOTSUPP,
              function<Call>("_ibv_query_comp_cntr_caps")(&context, nullptr,
                                                          0));
    EXPECT_EQ(EOPNOTSUPP, errno);
}

int main(int argc, char **argv)
{
    if ((argc > 1) && !strcmp(argv[1], "left_alone")) {
#define PRINT(_name) puts(#_name);
        NPEMU_SHIM_LEFT_ALONE(PRINT)
        return 0;
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
