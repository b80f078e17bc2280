/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

extern "C" {
#include "uct/ib/nprdma/wire/nprdma_dump.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"
#include "ucm/access/nprdma_access.h"
}

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

/* The text of each format, and of packets that no sender makes */

using bytes = std::vector<uint8_t>;

template<typename T>
static bytes packet(const T &header, const bytes &payload = {})
{
    bytes all(sizeof(T) + payload.size());

    memcpy(all.data(), &header, sizeof(T));
    if (!payload.empty()) {
        memcpy(all.data() + sizeof(T), payload.data(), payload.size());
    }
    return all;
}

/* The packet lies at an odd address, at the end of memory that ASan watches */
static std::string dump(uct_nprdma_dump_func_t func, const bytes &data)
{
    std::unique_ptr<uint8_t[]> copy(new uint8_t[data.size() + 1]);
    char text[UCT_NPRDMA_DUMP_MAX];

    std::copy(data.begin(), data.end(), copy.get() + 1);
    EXPECT_EQ(text, func(text, sizeof(text), copy.get() + 1, data.size()));
    return text;
}

static const uct_nprdma_dump_func_t all_dumps[] = {
    uct_nprdma_am_dump, uct_nprdma_cm_dump, uct_nprdma_dev_addr_dump,
    uct_nprdma_iface_addr_dump, uct_nprdma_key_dump,
    uct_nprdma_svc_request_dump, uct_nprdma_svc_reply_dump,
    uct_nprdma_svc_populated_dump
};

static uct_nprdma_dev_addr_t device()
{
    uct_nprdma_dev_addr_t addr = {};

    addr.version = 1;
    addr.flags   = UCT_NPRDMA_DEV_ADDR_ETH;
    addr.lid     = 7;
    addr.mtu     = 5;
    for (unsigned i = 0; i < sizeof(addr.gid); ++i) {
        addr.gid[i] = 16 * i;
    }
    return addr;
}

TEST(test_dump, active_message)
{
    uct_nprdma_am_hdr_t hdr = {UCT_NPRDMA_AM_DATA, 9, 0, 3};

    EXPECT_EQ("am DATA id 9 length 3 data 01 02 ff",
              dump(uct_nprdma_am_dump, packet(hdr, {1, 2, 255})));
    EXPECT_EQ("am DATA id 9 length 3 data 00 00 00 00 00 00 00 00 ...",
              dump(uct_nprdma_am_dump, packet(hdr, bytes(9))));
    hdr = {UCT_NPRDMA_AM_FIN, 0, 0, 0};
    EXPECT_EQ("am FIN id 0 length 0", dump(uct_nprdma_am_dump, packet(hdr)));
    hdr.type = 0x99;
    EXPECT_EQ("am ?(0x99) id 0 length 0",
              dump(uct_nprdma_am_dump, packet(hdr)));
    EXPECT_EQ("am truncated: 2 of 8 bytes data 41 07",
              dump(uct_nprdma_am_dump, {0x41, 7}));
    EXPECT_EQ("am truncated: 0 of 8 bytes", dump(uct_nprdma_am_dump, {}));
}

TEST(test_dump, addresses)
{
    uct_nprdma_iface_addr_t iface = {1, {}, 0x123, 0xabcdef0123456789};

    EXPECT_EQ("dev version 1 flags 0x1 lid 7 mtu 5 gid "
              "00102030405060708090a0b0c0d0e0f0",
              dump(uct_nprdma_dev_addr_dump, packet(device())));
    EXPECT_EQ("iface version 1 ud_qpn 0x123 nonce 0xabcdef0123456789",
              dump(uct_nprdma_iface_addr_dump, packet(iface)));
    EXPECT_EQ("iface version 1 ud_qpn 0x123 nonce 0xabcdef0123456789 and 1 "
              "bytes more",
              dump(uct_nprdma_iface_addr_dump, packet(iface, {0})));
}

TEST(test_dump, wire_up_packet)
{
    uct_nprdma_cm_packet_t cm = {};

    cm.magic     = UCT_NPRDMA_CM_MAGIC;
    cm.version   = UCT_NPRDMA_WIRE_VERSION;
    cm.type      = UCT_NPRDMA_CM_REQ;
    cm.kind      = UCT_NPRDMA_CONN_SVC;
    cm.src_nonce = 0x11;
    cm.dst_nonce = 0x22;
    cm.conn_id   = 0x33;
    cm.am_id     = 0x77;
    cm.ud_qpn    = 0x44;
    cm.qp.qpn    = 0x55;
    cm.qp.psn    = 0x66;
    cm.qp.dev    = device();
    EXPECT_EQ("cm REQ(1) version 3 kind svc(1) reason none(0) from 0x11 to "
              "0x22 conn 0x33 am 0x77 ud_qpn 0x44 qpn 0x55 psn 0x66 dev "
              "version 1 flags 0x1 lid 7 mtu 5 gid "
              "00102030405060708090a0b0c0d0e0f0",
              dump(uct_nprdma_cm_dump, packet(cm)));

    cm       = {};
    cm.magic = 0xbad;
    cm.type  = 200;
    cm.kind  = 201;
    cm.reason = 202;
    EXPECT_EQ("cm magic 0xbad ?(200) version 0 kind ?(201) reason ?(202) from "
              "0x0 to 0x0 conn 0x0 am 0x0 ud_qpn 0x0 qpn 0x0 psn 0x0 dev "
              "version 0 flags 0x0 lid 0 mtu 0 gid "
              "00000000000000000000000000000000 and 3 bytes more",
              dump(uct_nprdma_cm_dump, packet(cm, bytes(3))));
}

/* All names of the enumerations */
TEST(test_dump, wire_up_names)
{
    const char *types[]   = {"?(0)", "REQ(1)", "REP(2)", "RTU(3)", "REJ(4)",
                             "RST(5)", "?(6)"};
    const char *kinds[]   = {"am(0)", "svc(1)", "bulk(2)", "?(3)"};
    const char *reasons[] = {"none(0)", "stale(1)", "no_resource(2)", "?(3)"};
    uct_nprdma_cm_packet_t cm = {};

    cm.magic = UCT_NPRDMA_CM_MAGIC;
    for (const char *type : types) {
        EXPECT_NE(std::string::npos,
                  dump(uct_nprdma_cm_dump, packet(cm)).find(type)) << type;
        ++cm.type;
    }
    for (const char *kind : kinds) {
        EXPECT_NE(std::string::npos,
                  dump(uct_nprdma_cm_dump, packet(cm))
                          .find(std::string("kind ") + kind)) << kind;
        ++cm.kind;
    }
    for (const char *reason : reasons) {
        EXPECT_NE(std::string::npos,
                  dump(uct_nprdma_cm_dump, packet(cm))
                          .find(std::string("reason ") + reason)) << reason;
        ++cm.reason;
    }
}

TEST(test_dump, key)
{
    uct_nprdma_packed_rkey_t key = {};

    key.version        = UCT_NPRDMA_KEY_VERSION;
    key.flags          = UCT_NPRDMA_KEY_FLAG_REGION;
    key.r_rkey         = 0xa;
    key.w_rkey         = 0xb;
    key.s_rkey         = 0xc;
    key.key            = 0xd;
    key.address        = 0x1000;
    key.length         = 4096;
    key.region_address = 0x2000;
    key.region_id      = 3;
    key.signature      = 0xfeed;
    EXPECT_EQ("key version 3 flags 0x1 key 0xd address 0x1000 length 4096 "
              "rkeys r 0xa w 0xb s 0xc region 0x2000 id 3 signature 0xfeed",
              dump(uct_nprdma_key_dump, packet(key)));
}

static uct_nprdma_svc_request_t request(uint8_t type, uint8_t op = 0)
{
    uct_nprdma_svc_request_t request = {};

    request.type     = type;
    request.flags    = UCT_NPRDMA_SVC_FLAG_REPLY;
    request.op       = op;
    request.sn       = 4;
    request.key      = 0x5;
    request.address  = 0x6000;
    request.length   = 8;
    request.prefetch = 77;
    return request;
}

TEST(test_dump, requests)
{
    const std::string tail = " sn 4 flags 0x1 key 0x5 address 0x6000 length 8";
    auto of = [](uint8_t type, uint8_t op, const bytes &payload = {}) {
        return dump(uct_nprdma_svc_request_dump,
                    packet(request(type, op), payload));
    };

    EXPECT_EQ("svc STORE(0x51)" + tail + " op 0x0 data aa bb",
              of(UCT_NPRDMA_SVC_STORE, 0, {0xaa, 0xbb}));
    EXPECT_EQ("svc FETCH(0x52)" + tail + " op 0x1",
              of(UCT_NPRDMA_SVC_FETCH, 1));
    EXPECT_EQ("svc NOP(0x54)" + tail + " op 0x0", of(UCT_NPRDMA_SVC_NOP, 0));
    EXPECT_EQ("svc FIN(0x55)" + tail + " op 0x0", of(UCT_NPRDMA_SVC_FIN, 0));
    EXPECT_EQ("svc POPULATE(0x57)" + tail + " for writing(0x1) prefetch 77",
              of(UCT_NPRDMA_SVC_POPULATE, UCT_NPRDMA_SVC_POPULATE_WRITE));
    EXPECT_EQ("svc POPULATE(0x57)" + tail + " for reading(0x0) prefetch 77",
              of(UCT_NPRDMA_SVC_POPULATE, 0));
    EXPECT_EQ("svc ?(0xee)" + tail + " op 0x0", of(0xee, 0));
}

TEST(test_dump, atomics)
{
    const char *names[] = {"add(0)", "and(1)", "or(2)", "xor(3)", "swap(4)",
                           "cswap(5)", "?(6)"};
    uct_nprdma_svc_operands_t operands = {0x10, 0x20};

    for (unsigned op = 0; op <= NPRDMA_ATOMIC_LAST; ++op) {
        const std::string head =
                "svc ATOMIC(0x53) sn 4 flags 0x1 key 0x5 address 0x6000 "
                "length 8 " + std::string(names[op]);
        EXPECT_EQ(head + " value 0x10 compare 0x20",
                  dump(uct_nprdma_svc_request_dump,
                       packet(request(UCT_NPRDMA_SVC_ATOMIC, op),
                              packet(operands))));
        EXPECT_EQ(head + " data 01",
                  dump(uct_nprdma_svc_request_dump,
                       packet(request(UCT_NPRDMA_SVC_ATOMIC, op), {1})));
    }
}

TEST(test_dump, replies)
{
    const char *names[] = {"ok(0)", "bad_key(1)", "bad_range(2)",
                           "no_access(3)", "fault(4)", "unaligned(5)",
                           "no_window(6)", "?(7)"};
    uct_nprdma_svc_reply_t reply = {};

    reply.type   = UCT_NPRDMA_SVC_REPLY;
    reply.sn     = 12;
    reply.length = 2;
    EXPECT_EQ("svc REPLY(0x56) sn 12 status ok(0) length 2 data 01 02",
              dump(uct_nprdma_svc_reply_dump, packet(reply, {1, 2})));
    reply.failed_sn     = 11;
    reply.failed_status = UCT_NPRDMA_SVC_ERR_KEY;
    EXPECT_EQ("svc REPLY(0x56) sn 12 status ok(0) length 2 failed sn 11 status "
              "bad_key(1)",
              dump(uct_nprdma_svc_reply_dump, packet(reply)));
    for (const char *name : names) {
        EXPECT_NE(std::string::npos,
                  dump(uct_nprdma_svc_reply_dump, packet(reply))
                          .find(std::string("12 status ") + name)) << name;
        ++reply.status;
    }
}

TEST(test_dump, populated)
{
    const uint32_t words[] = {8192, 0x7, 0xb, 1, 2, 3, 4, 5, 6, 7};
    auto of = [&](size_t length) {
        const uint8_t *first = (const uint8_t*)words;
        return dump(uct_nprdma_svc_populated_dump,
                    bytes(first, first + length));
    };

    EXPECT_EQ("populated length 8192 states 2 0x7 0xb", of(12));
    EXPECT_EQ("populated length 8192 states 1 0x7 and 2 bytes more", of(10));
    EXPECT_EQ("populated length 8192 states 9 0x7 0xb 0x1 0x2 0x3 0x4 0x5 0x6 "
              "...", of(40));
    EXPECT_EQ("populated truncated: 3 of 4 bytes data 00 20 00", of(3));
}

/* Text that does not fit is cut off, and never leaves the buffer */
TEST(test_dump, small_buffers)
{
    const bytes data = packet(request(UCT_NPRDMA_SVC_STORE), bytes(20));
    const std::string all = dump(uct_nprdma_svc_request_dump, data);

    for (size_t max = 0; max <= all.size() + 1; ++max) {
        std::unique_ptr<char[]> text(new char[max + 1]);
        text[max] = 0x55;
        if (max == 0) {
            text[0] = 0x55;
        }
        uct_nprdma_svc_request_dump(text.get(), max, data.data(), data.size());
        EXPECT_EQ(0x55, text[max]);
        if (max > 0) {
            EXPECT_EQ(all.substr(0, max - 1), text.get());
        }
    }
}

/* Random bytes of all lengths, also as the longest text of each format */
TEST(test_dump, garbage)
{
    std::mt19937 random(1);

    for (uct_nprdma_dump_func_t func : all_dumps) {
        for (size_t length = 0; length < 200; ++length) {
            bytes data(length);
            for (uint8_t &byte : data) {
                byte = random();
            }
            const std::string text = dump(func, data);
            EXPECT_FALSE(text.empty());
            EXPECT_EQ(std::string::npos, text.find('\n'));

            /* Nothing is cut off */
            EXPECT_LT(dump(func, bytes(length, 0xff)).size(),
                      UCT_NPRDMA_DUMP_MAX - 1u);
        }
    }
}
