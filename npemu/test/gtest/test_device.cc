/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Device, port, GID, pkey, protection domain, and what is not offered. */

#include "npemu_test.h"

#include <cerrno>
#include <fcntl.h>
#include <set>
#include <thread>

using namespace npt;

TEST(test_device, is_listed_once)
{
    int count                = -1;
    struct ibv_device **list = npemu_get_device_list(&count);

    ASSERT_NE(nullptr, list);
    ASSERT_EQ(1, count);
    EXPECT_EQ(nullptr, list[1]);
    EXPECT_STREQ("npemu0", npemu_get_device_name(list[0]));
    EXPECT_STREQ("npemu0", list[0]->name);
    EXPECT_EQ(IBV_NODE_CA, list[0]->node_type);
    EXPECT_EQ(IBV_TRANSPORT_IB, list[0]->transport_type);
    EXPECT_EQ(1, npemu_is_device(list[0]));
    npemu_free_device_list(list);

    list = npemu_get_device_list(nullptr);
    ASSERT_NE(nullptr, list);
    npemu_free_device_list(list);

    struct ibv_device other = {};
    EXPECT_EQ(0, npemu_is_device(&other));
}

TEST(test_device, guid_and_index)
{
    struct ibv_device **list = npemu_get_device_list(nullptr);

    ASSERT_NE(nullptr, list);
    EXPECT_NE(0u, npemu_get_device_guid(list[0]));
    EXPECT_EQ(npemu_get_device_guid(list[0]), npemu_get_device_guid(list[0]));
    EXPECT_LE(-1, npemu_get_device_index(list[0]));
    npemu_free_device_list(list);
}

TEST(test_device, open_outlives_list_and_repeats)
{
    for (int i = 0; i < 20; ++i) {
        Device device;
        ASSERT_TRUE(device.ok());
        EXPECT_STREQ("npemu0", npemu_get_device_name(device.context->device));
    }
}

TEST(test_device, several_contexts)
{
    Device a, b;

    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_NE(a.context, b.context);
    {
        /* Each works, also after the other is gone. */
        Device c;
        Cq cq(c);
        cq.expect_empty();
    }
    Cq cq(b);
    cq.expect_empty();
}

TEST(test_device, attributes)
{
    Device device;
    ibv_device_attr attr;

    ASSERT_TRUE(device.ok());
    memset(&attr, 0xff, sizeof(attr));
    ASSERT_EQ(0, npemu_query_device(device.context, &attr));
    EXPECT_NE(0u, strnlen(attr.fw_ver, sizeof(attr.fw_ver)));
    EXPECT_GT(sizeof(attr.fw_ver), strnlen(attr.fw_ver, sizeof(attr.fw_ver)));
    EXPECT_NE(0u, attr.node_guid);
    EXPECT_EQ(1, attr.phys_port_cnt);
    EXPECT_NE(IBV_ATOMIC_NONE, attr.atomic_cap);
    EXPECT_LE(4096, attr.max_qp);
    EXPECT_LE(1024, attr.max_qp_wr);
    EXPECT_LE(4, attr.max_sge);
    EXPECT_LE(4096, attr.max_cqe);
    EXPECT_LE(1024, attr.max_mr);
    EXPECT_LE(1, attr.max_qp_rd_atom);
    EXPECT_LE(1024, attr.max_srq_wr);
    EXPECT_EQ(1, attr.max_pkeys);
    EXPECT_NE(0u, attr.page_size_cap & 4096);
    /* Nothing is claimed that is refused. */
    EXPECT_EQ(0, attr.max_mw);
    EXPECT_EQ(0, attr.max_mcast_grp);
}

TEST(test_device, extended_attributes)
{
    Device device;
    ibv_device_attr attr = {};
    ibv_device_attr_ex ex;

    ASSERT_TRUE(device.ok());
    ASSERT_EQ(0, npemu_query_device(device.context, &attr));

    memset(&ex, 0xff, sizeof(ex));
    ASSERT_EQ(0, ibv_query_device_ex(device.context, nullptr, &ex));
    EXPECT_EQ(0, memcmp(&attr, &ex.orig_attr, sizeof(attr)));
    EXPECT_EQ(0u, ex.odp_caps.general_caps);
    EXPECT_EQ(0u, ex.tso_caps.max_tso);

    memset(&ex, 0xff, sizeof(ex));
    ASSERT_EQ(0, npemu_query_device_ex(device.context, nullptr, &ex));
    EXPECT_EQ(0, memcmp(&attr, &ex.orig_attr, sizeof(attr)));
}

TEST(test_device, query_port_returns_its_attributes)
{
    Device device;
    ibv_port_attr attr, inl;

    ASSERT_TRUE(device.ok());
    memset(&attr, 0xff, sizeof(attr));
    ASSERT_EQ(0, npemu_query_port(device.context, 1, &attr));
    EXPECT_EQ(IBV_PORT_ACTIVE, attr.state);
    EXPECT_EQ(IBV_LINK_LAYER_INFINIBAND, attr.link_layer);
    EXPECT_NE(0, attr.lid);
    EXPECT_GE(IBV_MTU_4096, attr.active_mtu);
    EXPECT_LE(attr.active_mtu, attr.max_mtu);
    EXPECT_EQ(1, attr.gid_tbl_len);
    EXPECT_EQ(1, attr.pkey_tbl_len);
    EXPECT_LE(1u << 20, attr.max_msg_sz);

    memset(&inl, 0, sizeof(inl));
    ASSERT_EQ(0, ibv_query_port(device.context, 1, &inl));
    EXPECT_EQ(attr.lid, inl.lid);
    EXPECT_EQ(attr.max_msg_sz, inl.max_msg_sz);

    for (uint8_t port : {0, 2, 255}) {
        EXPECT_EQ(EINVAL, npemu_query_port(device.context, port, &attr));
        EXPECT_EQ(EINVAL, ibv_query_port(device.context, port, &inl));
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

TEST(test_device, query_pkey_returns_the_default)
{
    Device device;
    __be16 pkey = 0;

    ASSERT_TRUE(device.ok());
    ASSERT_EQ(0, npemu_query_pkey(device.context, 1, 0, &pkey));
    EXPECT_EQ(0xffff, pkey);
    EXPECT_EQ(-1, npemu_query_pkey(device.context, 1, 1, &pkey));
    EXPECT_EQ(-1, npemu_query_pkey(device.context, 2, 0, &pkey));
    EXPECT_EQ(0, npemu_get_pkey_index(device.context, 1, htobe16(0xffff)));
    EXPECT_EQ(-1, npemu_get_pkey_index(device.context, 1, htobe16(0x1234)));
    EXPECT_EQ(-1, npemu_get_pkey_index(device.context, 3, htobe16(0xffff)));
}

TEST(test_device, async_fd_can_be_nonblocking)
{
    Device device;
    ibv_async_event event;

    ASSERT_TRUE(device.ok());
    int fd    = device.context->async_fd;
    int flags = fcntl(fd, F_GETFL);
    ASSERT_LE(0, flags);
    ASSERT_EQ(0, fcntl(fd, F_SETFL, flags | O_NONBLOCK));
    EXPECT_FALSE(has_async(device));
    EXPECT_EQ(-1, npemu_get_async_event(device.context, &event));
    EXPECT_EQ(EAGAIN, errno);
    EXPECT_NE(0, fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

TEST(test_device, fork_init)
{
    EXPECT_EQ(0, npemu_fork_init());
    EXPECT_EQ(IBV_FORK_UNNEEDED, npemu_is_fork_initialized());
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

/* The inline functions of the header find no operation and say so. */
TEST(test_device_unsupported, inline_verbs)
{
    Device device;
    ASSERT_TRUE(device.ok());
    ibv_cq_init_attr_ex cq_attr        = {};
    ibv_alloc_dm_attr dm_attr          = {};
    ibv_td_init_attr td_attr           = {};
    ibv_parent_domain_init_attr parent = {};
    ibv_xrcd_init_attr xrcd            = {};
    ibv_wq_init_attr wq                = {};
    ibv_counters_init_attr counters    = {};
    ibv_values_ex values               = {};
    ibv_flow_attr flow                 = {};
    ibv_srq_init_attr_ex srq           = {};
    ibv_rwq_ind_table_init_attr table  = {};
    Cq cq(device);
    Qp qp(device, cq, cq);

    cq_attr.cqe = 16;
    EXPECT_UNSUPPORTED(nullptr, ibv_create_cq_ex(device.context, &cq_attr));
    EXPECT_UNSUPPORTED(nullptr, ibv_alloc_mw(device.pd, IBV_MW_TYPE_1));
    EXPECT_UNSUPPORTED(nullptr, ibv_alloc_dm(device.context, &dm_attr));
    EXPECT_UNSUPPORTED(nullptr, ibv_alloc_td(device.context, &td_attr));
    EXPECT_UNSUPPORTED(nullptr,
                       ibv_alloc_parent_domain(device.context, &parent));
    EXPECT_UNSUPPORTED(nullptr, ibv_open_xrcd(device.context, &xrcd));
    EXPECT_UNSUPPORTED(nullptr, ibv_create_wq(device.context, &wq));
    EXPECT_UNSUPPORTED(nullptr,
                       ibv_create_counters(device.context, &counters));
    EXPECT_UNSUPPORTED(nullptr, ibv_create_flow(qp, &flow));
    EXPECT_UNSUPPORTED(nullptr, ibv_create_srq_ex(device.context, &srq));
    EXPECT_UNSUPPORTED(nullptr,
                       ibv_create_rwq_ind_table(device.context, &table));
    EXPECT_EQ(EOPNOTSUPP, ibv_query_rt_values_ex(device.context, &values));
    EXPECT_EQ(EOPNOTSUPP, ibv_advise_mr(device.pd,
                                        IBV_ADVISE_MR_ADVICE_PREFETCH, 0,
                                        nullptr, 0));
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
