/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Device, port, GID, pkey, protection domain, and what is not offered. */

#include "npemu_test.h"

#include <cerrno>
#include <fcntl.h>
#include <thread>

using namespace npt;

TEST(test_device, open_outlives_list_and_repeats)
{
    for (int i = 0; i < 20; ++i) {
        Device device;
        ASSERT_TRUE(device.ok());
        EXPECT_STREQ("npemu0", npemu_get_device_name(device.context->device));
    }
}

TEST(test_device, query_gid_returns_its_address)
{
    Device device;
    union ibv_gid gid = {}, zero = {};
    ibv_gid_entry entry;
    unsigned type = 99;

    ASSERT_TRUE(device.ok());
    ASSERT_EQ(0, npemu_query_gid(device.context, 1, 0, &gid));
    EXPECT_NE(0, memcmp(&gid, &zero, sizeof(gid)));
    EXPECT_NE(0u, gid.global.interface_id);
    EXPECT_EQ(-1, npemu_query_gid(device.context, 1, 1, &gid));
    EXPECT_EQ(-1, npemu_query_gid(device.context, 1, -1, &gid));
    EXPECT_EQ(-1, npemu_query_gid(device.context, 2, 0, &gid));

    memset(&entry, 0xff, sizeof(entry));
    ASSERT_EQ(0, npemu_query_gid_ex(device.context, 1, 0, &entry, 0,
                                    sizeof(entry)));
    EXPECT_EQ(0, memcmp(&gid, &entry.gid, sizeof(gid)));
    EXPECT_EQ(0u, entry.gid_index);
    EXPECT_EQ(1u, entry.port_num);
    EXPECT_EQ((uint32_t)IBV_GID_TYPE_IB, entry.gid_type);
    EXPECT_NE(0, npemu_query_gid_ex(device.context, 1, 1, &entry, 0,
                                    sizeof(entry)));
    EXPECT_NE(0, npemu_query_gid_ex(device.context, 2, 0, &entry, 0,
                                    sizeof(entry)));

    ibv_gid_entry table[2];
    ASSERT_EQ(1, npemu_query_gid_table(device.context, table, 2, 0,
                                       sizeof(table[0])));
    EXPECT_EQ(0, memcmp(&gid, &table[0].gid, sizeof(gid)));
    EXPECT_GT(0, npemu_query_gid_table(device.context, table, 0, 0,
                                       sizeof(table[0])));

    EXPECT_EQ(0, npemu_query_gid_type(device.context, 1, 0, &type));
    EXPECT_EQ(0u, type);
    EXPECT_EQ(-1, npemu_query_gid_type(device.context, 1, 1, &type));
}

TEST(test_device, gid_prefix_names_the_fabric)
{
    union Ids {
        ibv_gid gid;
    };
    auto body = [](Pipe &pipe) {
        Device device;
        Ids ids = {};
        ASSERT_TRUE(device.ok());
        EXPECT_EQ(0, npemu_query_gid(device.context, 1, 0, &ids.gid));
        pipe.send(ids);
        pipe.await();
    };
    Child a(body), b(body);
    Ids of_a = a.pipe().recv<Ids>(), of_b = b.pipe().recv<Ids>();

    EXPECT_EQ(of_a.gid.global.subnet_prefix, of_b.gid.global.subnet_prefix);
    a.pipe().signal();
    b.pipe().signal();
    a.join();
    b.join();
}

TEST(test_device, opened_by_many_threads)
{
    std::vector<std::thread> threads;

    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([] {
            for (int n = 0; n < 10; ++n) {
                Device device;
                EXPECT_TRUE(device.ok());
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
}

/* --- protection domains --------------------------------------------------- */

TEST(test_device_pd, busy_while_in_use)
{
    Device device;

    ASSERT_TRUE(device.ok());
    ibv_pd *pd = npemu_alloc_pd(device.context);
    ASSERT_NE(nullptr, pd);
    EXPECT_EQ(device.context, pd->context);
    {
        Buffer buffer(device, 4096, ACCESS_ALL, pd);
        EXPECT_EQ(EBUSY, npemu_dealloc_pd(pd));
    }
    {
        Cq cq(device);
        QpOptions options;
        options.pd = pd;
        Qp qp(device, cq, cq, options);
        EXPECT_EQ(EBUSY, npemu_dealloc_pd(pd));
    }
    {
        ibv_ah_attr attr = {};
        attr.dlid        = 1;
        attr.port_num    = 1;
        ibv_ah *ah       = npemu_create_ah(pd, &attr);
        ASSERT_NE(nullptr, ah);
        EXPECT_EQ(EBUSY, npemu_dealloc_pd(pd));
        EXPECT_EQ(0, npemu_destroy_ah(ah));
    }
    {
        ibv_srq_init_attr attr = {};
        attr.attr.max_wr       = 4;
        attr.attr.max_sge      = 1;
        ibv_srq *srq           = npemu_create_srq(pd, &attr);
        ASSERT_NE(nullptr, srq);
        EXPECT_EQ(EBUSY, npemu_dealloc_pd(pd));
        EXPECT_EQ(0, npemu_destroy_srq(srq));
    }
    EXPECT_EQ(0, npemu_dealloc_pd(pd));
}

/* --- not offered ---------------------------------------------------------- */

#define EXPECT_UNSUPPORTED(_result, _call) \
    do { \
        errno = 0; \
        EXPECT_EQ(_result, _call); \
        EXPECT_EQ(EOPNOTSUPP, errno) << #_call; \
    } while (0)

TEST(test_device_unsupported, verbs)
{
    Device device;
    ASSERT_TRUE(device.ok());
    Buffer buffer(device, 4096);
    Cq cq(device);
    Qp qp(device, cq, cq);
    union ibv_gid gid = {};
    ibv_ece ece       = {};
    ibv_ah_attr ah    = {};
    uint8_t mac[ETHERNET_LL_SIZE];
    uint16_t vid;

    EXPECT_EQ(IBV_REREG_MR_ERR_INPUT,
              npemu_rereg_mr(buffer.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr,
                             nullptr, 0, ACCESS_ALL));
    EXPECT_EQ(EOPNOTSUPP, npemu_attach_mcast(qp, &gid, 1));
    EXPECT_EQ(EOPNOTSUPP, npemu_detach_mcast(qp, &gid, 1));
    EXPECT_EQ(EOPNOTSUPP, npemu_query_ece(qp, &ece));
    EXPECT_EQ(EOPNOTSUPP, npemu_set_ece(qp, &ece));
    EXPECT_NE(0, npemu_resolve_eth_l2_from_gid(device.context, &ah, mac,
                                               &vid));
    EXPECT_UNSUPPORTED(nullptr, npemu_import_device(-1));
    EXPECT_UNSUPPORTED(nullptr, npemu_import_pd(device.context, 0));
    EXPECT_UNSUPPORTED(nullptr, npemu_import_mr(device.pd, 0));
    EXPECT_UNSUPPORTED(nullptr, npemu_import_dm(device.context, 0));
    EXPECT_EQ(0, npemu_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) & ~1);
}

TEST(test_device_unsupported, queue_pair_types)
{
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);

    for (auto type : {IBV_QPT_UC, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND,
                      IBV_QPT_DRIVER, (ibv_qp_type)77}) {
        ibv_qp_init_attr attr = {};
        attr.send_cq          = cq;
        attr.recv_cq          = cq;
        attr.qp_type          = type;
        attr.cap.max_send_wr  = 1;
        attr.cap.max_send_sge = 1;
        errno                 = 0;
        EXPECT_EQ(nullptr, npemu_create_qp(device.pd, &attr)) << type;
        EXPECT_TRUE((errno == EOPNOTSUPP) || (errno == EINVAL)) << errno;
    }
}
