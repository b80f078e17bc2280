/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Messages between processes travel from bounce slot to bounce slot. The slots
 * are memory that both processes have mapped, so no message makes a system call
 * to copy it.
 */

#include "calls.h"
#include "serve.h"
#include "uct_test.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr size_t   size  = 65536;
constexpr unsigned count = 500;

uint8_t byte_of(unsigned message, size_t at)
{
    return message * 7 + at * 13 + (at >> 8);
}

struct received {
    unsigned count = 0;
    unsigned wrong = 0;
};

ucs_status_t check(void *arg, void *data, size_t length, unsigned)
{
    auto *self  = (received*)arg;
    auto *bytes = (uint8_t*)data;

    for (size_t i = 0; i < length; ++i) {
        if (bytes[i] != byte_of(self->count, i)) {
            ++self->wrong;
            break;
        }
    }
    ++self->count;
    return UCS_OK;
}

PEER_FUNCTION(copies_target)
{
    entity e;
    buffer memory(e.md(), size);
    received got;

    uct_iface_set_am_handler(e.iface(), 2, check, &got, 0);
    publish(parent, e, memory);
    while (!parent.ready()) {
        e.progress();
    }
    parent.get<char>();
    e.wait([&]() { return got.count == count; });
    parent.put(got.wrong);
    return 0;
}

} // namespace

class test_copies : public testing::TestWithParam<size_t> {
};

TEST_P(test_copies, message_makes_no_system_call)
{
    peer target("copies_target");
    entity self;
    size_t length = std::min(GetParam(), self.attr().cap.am.max_bcopy);
    unsigned sent = 0;
    std::vector<char> address = target.get_bytes(), key = target.get_bytes();
    uint64_t remote           = target.get<uint64_t>();
    uct_ep_h ep               = self.connect(address);

    struct arg_t {
        unsigned message;
        size_t   length;
    } arg;
    auto pack = [](void *dest, void *arg_p) {
        auto *a = (arg_t*)arg_p;
        for (size_t i = 0; i < a->length; ++i) {
            ((uint8_t*)dest)[i] = byte_of(a->message, i);
        }
        return a->length;
    };
    auto send = [&]() {
        arg = {sent++, length};
        ASSERT_EQ(UCS_OK, self.retry([&]() {
            ssize_t ret = uct_ep_am_bcopy(ep, 2, pack, &arg, 0);
            return (ret < 0) ? (ucs_status_t)ret : UCS_OK;
        }));
    };

    /* Wire-up has nothing to do with it */
    send();
    self.flush(ep);
    uint64_t before = calls_count(self.md());
    while (sent < count) {
        ASSERT_NO_FATAL_FAILURE(send());
    }
    self.flush(ep);
    EXPECT_EQ(before, calls_count(self.md()));

    /* Memory of applications needs them: they are counted */
    {
        buffer local(self.md(), size);
        uct_rkey_t rkey = self.unpack(key);
        uct_iov_t iov   = {local.ptr(), size, local.memh(), 0, 1};
        completion comp;
        ASSERT_FALSE(UCS_STATUS_IS_ERR(self.retry([&]() {
            return uct_ep_get_zcopy(ep, &iov, 1, remote, rkey, &comp);
        })));
        self.flush(ep);
        EXPECT_LT(before, calls_count(self.md()));
    }
    target.put('.');
    EXPECT_EQ(0u, target.get<unsigned>());
    self.disconnect(ep);
    EXPECT_EQ(0, target.join());
}

INSTANTIATE_TEST_SUITE_P(size, test_copies,
                         testing::Values(8, 1000, 4096, 8192, SIZE_MAX),
                         [](const auto &info) {
                             return (info.param == SIZE_MAX) ?
                                    std::string("longest") :
                                    std::to_string(info.param);
                         });
