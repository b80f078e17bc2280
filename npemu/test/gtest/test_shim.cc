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

/* Functions that the headers we compile with may not know. */
template<typename Function> static Function function(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);

    EXPECT_NE(nullptr, address) << name;
    return reinterpret_cast<Function>(address);
}

/* What the stand-in says. */
template<typename T> static T *stub(const char *name)
{
    return (T*)dlsym(dlopen("libibverbs.so.1", RTLD_LAZY), name);
}

static const char *&stub_called()
{
    return *stub<const char*>("shim_stub_called");
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

/* A program with the shim that has the device built in as well: the two are
 * members of one fabric. */
TEST_F(test_shim_emulated, copy_of_the_device_is_a_peer)
{
    ibv_device **own    = npemu_get_device_list(nullptr);
    ibv_context *second = npemu_open_device(own[0]);
    ASSERT_NE(nullptr, second) << strerror(errno);
    ibv_cq *cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
    ibv_qp *qp = create_qp(cq);
    ASSERT_NE(nullptr, qp);
    uint32_t qpn = qp->qp_num;
    ibv_gid gids[2];

    EXPECT_EQ(0, ibv_query_gid(context, 1, 0, &gids[0]));
    EXPECT_EQ(0, npemu_query_gid(second, 1, 0, &gids[1]));
    EXPECT_EQ(0, memcmp(&gids[0], &gids[1], sizeof(gids[0])));
    EXPECT_EQ(1, npemu_has_qp(second, qpn));
    EXPECT_EQ(0, ibv_destroy_qp(qp));
    EXPECT_EQ(0, npemu_has_qp(second, qpn));
    EXPECT_EQ(0, ibv_destroy_cq(cq));
    EXPECT_EQ(0, npemu_close_device(second));
    npemu_free_device_list(own);
}

/* --- objects of other devices --------------------------------------------- */

class test_shim_foreign : public testing::Test {
protected:
    void SetUp() override
    {
        if (getenv("SHIM_STUB") == nullptr) {
            GTEST_SKIP() << "runs with the stand-in below the shim only";
        }
        ASSERT_NE(nullptr, stub<int>("shim_stub_lists"));
    }
};

TEST_F(test_shim_foreign, devices_are_listed_before_ours)
{
    int *lists = stub<int>("shim_stub_lists");
    int count  = 0;

    ibv_device **list = ibv_get_device_list(&count);
    ASSERT_NE(nullptr, list);
    ASSERT_EQ(2, count);
    EXPECT_STREQ("stub0", ibv_get_device_name(list[0]));
    EXPECT_STREQ("npemu0", ibv_get_device_name(list[1]));
    EXPECT_EQ(nullptr, list[2]);
    EXPECT_EQ(7, ibv_get_device_index(list[0]));
    EXPECT_EQ(0u, ibv_get_device_guid(list[0]));
    stub_called() = "";
    EXPECT_EQ(nullptr, ibv_open_device(list[0]));
    EXPECT_STREQ("ibv_open_device", stub_called());
    EXPECT_EQ(1, *lists);
    ibv_free_device_list(list);
    EXPECT_EQ(0, *lists) << "the real list is given back";

    EXPECT_EQ(0, ibv_fork_init());
    EXPECT_STREQ("ibv_fork_init", stub_called());
}

/* The real library takes all devices of a list for its own. */
TEST_F(test_shim_foreign, import_does_not_see_ours)
{
    int count = 0;

    EXPECT_EQ(nullptr, ibv_import_device(-1));
    EXPECT_STREQ("ibv_import_device", stub_called());
    EXPECT_EQ(1, *stub<int>("shim_stub_found"));
    EXPECT_EQ(0, *stub<int>("shim_stub_lists"))
            << "the real list is given back";

    ibv_device **list = ibv_get_device_list(&count);
    EXPECT_EQ(2, count);
    ibv_free_device_list(list);
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
        stub_called() = "nothing";
        call(!strcmp(owner, "context") ? &context : &object, 0, 0, 0, 0, 0);
        EXPECT_STREQ(name, stub_called());
        ++passed;
    };
#define CHECK(_result, _name, _failure, _owner, _params, _args) \
    check("ibv_" #_name, #_owner);
#define CHECK_HIDDEN(_result, _name, _failure, _owner, _params, _args) \
    check("_ibv_" #_name, #_owner);
    NPEMU_SHIM_SERVED(CHECK)
    NPEMU_SHIM_UNSUPPORTED(CHECK)
    NPEMU_SHIM_HIDDEN(CHECK_HIDDEN)
    check("ibv_free_buf", "object");
    check("ibv_export_buf_dmabuf_fd", "object");
    check("ibv_query_port", "context");
    EXPECT_LT(50, passed);

    ibv_async_event event = {};
    event.event_type      = IBV_EVENT_QP_FATAL;
    event.element.qp      = (ibv_qp*)&object;
    stub_called()        = "nothing";
    ibv_ack_async_event(&event);
    EXPECT_STREQ("ibv_ack_async_event", stub_called());
    event.event_type = IBV_EVENT_PORT_ACTIVE;
    event.element.qp = nullptr;
    stub_called()   = "nothing";
    ibv_ack_async_event(&event);
    EXPECT_STREQ("ibv_ack_async_event", stub_called());
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
