/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

extern "C" {
#include "uct/ib/nprdma/wire/nprdma_dump.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"
}

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
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
static std::string dump(const uct_nprdma_dump_format_t *format,
                        const bytes &data)
{
    std::unique_ptr<uint8_t[]> copy(new uint8_t[data.size() + 1]);
    char text[UCT_NPRDMA_DUMP_MAX];

    std::copy(data.begin(), data.end(), copy.get() + 1);
    EXPECT_EQ(text, uct_nprdma_dump(format, text, sizeof(text), copy.get() + 1,
                                    data.size()));
    return text;
}

TEST(test_dump, active_message)
{
    uct_nprdma_am_hdr_t hdr = {UCT_NPRDMA_AM_DATA, 9, 2, 3};

    EXPECT_EQ("am DATA(0x41) am_id 0x9 follows 0x2 length 0x3 data 0102ff",
              dump(uct_nprdma_am_dump, packet(hdr, {1, 2, 255})));
    EXPECT_EQ("am DATA(0x41) am_id 0x9 follows 0x2 length 0x3 data "
              "00000000000000000000000000000000... of 17 bytes",
              dump(uct_nprdma_am_dump, packet(hdr, bytes(17))));
    hdr = {UCT_NPRDMA_AM_FIN, 0, 0, 0};
    EXPECT_EQ("am FIN(0x42) am_id 0x0 follows 0x0 length 0x0",
              dump(uct_nprdma_am_dump, packet(hdr)));
    hdr.type = 0x99;
    EXPECT_EQ("am ?(0x99) am_id 0x0 follows 0x0 length 0x0",
              dump(uct_nprdma_am_dump, packet(hdr)));
    EXPECT_EQ("am truncated: 2 of 8 bytes data 4107",
              dump(uct_nprdma_am_dump, {0x41, 7}));
    EXPECT_EQ("am truncated: 0 of 8 bytes", dump(uct_nprdma_am_dump, {}));
}

/* Each format, with a different value in each byte */
TEST(test_dump, fields)
{
    bytes data(UCT_NPRDMA_DUMP_MAX);

    for (size_t i = 0; i < data.size(); ++i) {
        data[i] = 1 + i;
    }
    auto of = [&](const uct_nprdma_dump_format_t *format, size_t length) {
        return dump(format, bytes(data.begin(), data.begin() + length));
    };
    EXPECT_EQ("dev version 0x1 flags 0x2 lid 0x403 mtu 0x5 gid "
              "090a0b0c0d0e0f101112131415161718",
              of(uct_nprdma_dev_addr_dump, sizeof(uct_nprdma_dev_addr_t)));
    EXPECT_EQ("iface version 0x1 ud_qpn 0x8070605 nonce 0x100f0e0d0c0b0a09 "
              "data 11",
              of(uct_nprdma_iface_addr_dump,
                 sizeof(uct_nprdma_iface_addr_t) + 1));
    EXPECT_EQ("cm ?(0x6) magic 0x4030201 version 0x5 kind ?(0x7) reason ?(0x8) "
              "src_nonce 0x100f0e0d0c0b0a09 dst_nonce 0x1817161514131211 "
              "conn_id 0x1c1b1a19 am_id 0x24232221 ud_qpn 0x201f1e1d qp.qpn "
              "0x28272625 qp.psn 0x2c2b2a29 qp.dev "
              "2d2e2f303132333435363738393a3b3c3d3e3f4041424344",
              of(uct_nprdma_cm_dump, sizeof(uct_nprdma_cm_packet_t)));
    EXPECT_EQ("key version 0x1 flags 0x2 key 0x1817161514131211 address "
              "0x201f1e1d1c1b1a19 length 0x2827262524232221 r_rkey 0x8070605 "
              "w_rkey 0xc0b0a09 s_rkey 0x100f0e0d region_address "
              "0x302f2e2d2c2b2a29 region_id 0x3837363534333231 signature "
              "0x403f3e3d3c3b3a39",
              of(uct_nprdma_key_dump, sizeof(uct_nprdma_packed_rkey_t)));
    EXPECT_EQ("svc ?(0x1) sn 0x8070605 flags 0x2 op 0x3 key 0x100f0e0d0c0b0a09 "
              "address 0x1817161514131211 length 0x1c1b1a19 prefetch "
              "0x201f1e1d data 2122",
              of(uct_nprdma_svc_request_dump,
                 sizeof(uct_nprdma_svc_request_t) + 2));
    EXPECT_EQ("svc ?(0x1) sn 0x8070605 status bad_range(0x2) length 0x100f0e0d "
              "failed_sn 0xc0b0a09 status no_access(0x3) data 11",
              of(uct_nprdma_svc_reply_dump,
                 sizeof(uct_nprdma_svc_reply_t) + 1));
    EXPECT_EQ("populated length 0x4030201 data 05060708",
              of(uct_nprdma_svc_populated_dump, 8));
}

/* All values of the byte at this place, from the first one on */
static void expect_names(const uct_nprdma_dump_format_t *format, size_t offset,
                         size_t length, unsigned value, const char *before,
                         const std::vector<std::string> &names)
{
    for (const std::string &name : names) {
        char number[16];
        bytes data(length);

        snprintf(number, sizeof(number), "(0x%x)", value);
        data[offset] = value++;
        const std::string text = before + name + number;
        EXPECT_NE(std::string::npos, dump(format, data).find(text)) << text;
    }
}

TEST(test_dump, names)
{
    const size_t cm = sizeof(uct_nprdma_cm_packet_t);

    expect_names(uct_nprdma_cm_dump, offsetof(uct_nprdma_cm_packet_t, type), cm,
                 0, "cm ", {"?", "REQ", "REP", "RTU", "REJ", "RST", "?"});
    expect_names(uct_nprdma_cm_dump, offsetof(uct_nprdma_cm_packet_t, kind), cm,
                 0, "kind ", {"am", "svc", "bulk", "?"});
    expect_names(uct_nprdma_cm_dump, offsetof(uct_nprdma_cm_packet_t, reason),
                 cm, 0, "reason ", {"none", "stale", "no_resource", "?"});
    expect_names(uct_nprdma_svc_request_dump, 0,
                 sizeof(uct_nprdma_svc_request_t), UCT_NPRDMA_SVC_STORE - 1,
                 "svc ", {"?", "STORE", "FETCH", "ATOMIC", "NOP", "FIN",
                          "REPLY", "POPULATE", "?"});
    expect_names(uct_nprdma_svc_reply_dump,
                 offsetof(uct_nprdma_svc_reply_t, status),
                 sizeof(uct_nprdma_svc_reply_t), 0, "sn 0x0 status ",
                 {"ok", "bad_key", "bad_range", "no_access", "fault",
                  "unaligned", "no_window", "?"});
}
