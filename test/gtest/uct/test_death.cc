/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "serve.h"
#include "uct_test.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <poll.h>
#include <sys/mman.h>

/*
 * Peers die while operations wait for them, and the program never probes them.
 * All outstanding operations end with an error, soon.
 */

namespace {

constexpr size_t large      = 300000;
constexpr size_t place      = 512 * 1024;
constexpr size_t num_places = 64;

/* One kind of operation. It starts at a place in the target's memory. */
struct operation {
    const char *name;
    bool       software;  /* The target's software has to act */
    bool       untouched; /* The pages have never been touched */
    bool       copy;      /* In copy mode */
    ucs_status_t (*start)(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                          const buffer &local, uct_completion_t *comp);
};

size_t pack_8000(void *dest, void *arg)
{
    memcpy(dest, arg, 8000);
    return 8000;
}

void unpack(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

/* Operations that only a flush reports end when the flush does */
ucs_status_t flush(uct_ep_h ep, ucs_status_t status, uct_completion_t *comp)
{
    if (status < 0) {
        return status;
    }
    status = uct_ep_flush(ep, 0, comp);
    /* An operation that was started is not started again */
    return (status == UCS_ERR_NO_RESOURCE) ? UCS_OK : status;
}

ucs_status_t am(uct_ep_h ep, uint64_t, uct_rkey_t, const buffer &local,
                uct_completion_t *comp)
{
    return flush(ep, uct_ep_am_short(ep, 1, 0, local.ptr(), 100), comp);
}

ucs_status_t put_short(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                       const buffer &local, uct_completion_t *comp)
{
    return flush(ep, uct_ep_put_short(ep, local.ptr(), 8, address, rkey), comp);
}

ucs_status_t put_bcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                       const buffer &local, uct_completion_t *comp)
{
    return flush(ep, (ucs_status_t)std::min<ssize_t>(
                             0, uct_ep_put_bcopy(ep, pack_8000, local.ptr(),
                                                 address, rkey)), comp);
}

ucs_status_t atomic_post(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                         const buffer &, uct_completion_t *comp)
{
    return flush(ep, uct_ep_atomic64_post(ep, UCT_ATOMIC_OP_ADD, 1, address,
                                          rkey), comp);
}

ucs_status_t atomic_fetch(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                          const buffer &local, uct_completion_t *comp)
{
    return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, 1,
                                 local.ptr<uint64_t>(), address, rkey, comp);
}

ucs_status_t get_bcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                       const buffer &local, uct_completion_t *comp)
{
    return uct_ep_get_bcopy(ep, unpack, local.ptr(), 4000, address, rkey, comp);
}

template<size_t length>
ucs_status_t put_zcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                       const buffer &local, uct_completion_t *comp)
{
    uct_iov_t iov = {local.ptr(), length, local.memh(), 0, 1};
    return uct_ep_put_zcopy(ep, &iov, 1, address, rkey, comp);
}

template<size_t length>
ucs_status_t get_zcopy(uct_ep_h ep, uint64_t address, uct_rkey_t rkey,
                       const buffer &local, uct_completion_t *comp)
{
    uct_iov_t iov = {local.ptr(), length, local.memh(), 0, 1};
    return uct_ep_get_zcopy(ep, &iov, 1, address, rkey, comp);
}

const operation operations[] = {
    {"am", false, false, false, am},
    {"put_short", true, false, false, put_short},
    {"put_bcopy", true, false, false, put_bcopy},
    {"put_zcopy", false, false, false, put_zcopy<large>},
    {"get_bcopy", false, false, false, get_bcopy},
    {"get_zcopy", false, false, false, get_zcopy<large>},
    {"atomic_post", true, false, false, atomic_post},
    {"atomic_fetch", true, false, false, atomic_fetch},
    {"assist_fetch", true, true, false, get_zcopy<4096>},
    {"assist_populate_get", true, true, false, get_zcopy<large>},
    {"assist_populate_put", true, true, false, put_zcopy<large>},
    {"assist_large_get", true, true, true, get_zcopy<large>},
    {"assist_large_put", true, true, true, put_zcopy<large>},
};

PEER_FUNCTION(death_target)
{
    entity e(parent.get<int>() ? config_t{{"MONITOR", "copy"}} : config_t{});
    buffer memory(e.md(), num_places * place);

    if (!parent.get<int>()) {
        memory.fill(1);
    }
    return serve(parent, e, memory);
}

} // namespace

class test_death : public ::testing::TestWithParam<operation> {
protected:
    void start()
    {
        config_t config = {{"TIMEOUT", is_fast() ? "20ms" : "250ms"},
                           {"RETRY_COUNT", is_fast() ? "3" : "6"}};
        if (GetParam().copy) {
            config["MONITOR"] = "copy";
        }
        m_peer.reset(new peer("death_target"));
        m_peer->put((int)GetParam().copy);
        m_peer->put((int)GetParam().untouched);
        m_entity.reset(new entity(config));
        m_local.reset(new buffer(m_entity->md(), large));
        m_local->fill(2);
        m_ep   = m_entity->connect(m_peer->get_bytes());
        m_rkey = m_entity->unpack(m_peer->get_bytes());
        m_base = m_peer->get<uint64_t>();
        /* Wire-up has a time limit of its own, so it ends before the test
         * begins */
        ASSERT_NO_FATAL_FAILURE(m_entity->wire_up(m_ep, m_local->ptr(), m_base,
                                                  m_rkey));
    }

    void TearDown() override
    {
        m_peer.reset();
        m_local.reset();
        m_entity.reset();
    }

    /* Start one more operation, at a place of its own while there are free
     * ones */
    ucs_status_t start_one()
    {
        auto comp           = std::make_unique<completion>();
        uint64_t address    = m_base + (m_num_started % num_places) * place;
        ucs_status_t status = GetParam().start(m_ep, address, m_rkey, *m_local,
                                               comp.get());
        if (status == UCS_INPROGRESS) {
            m_comps.push_back(std::move(comp));
        }
        m_num_started += !UCS_STATUS_IS_ERR(status);
        return status;
    }

    size_t num_outstanding() const
    {
        return std::count_if(m_comps.begin(), m_comps.end(),
                             [](const std::unique_ptr<completion> &comp) {
                                 return !comp->done;
                             });
    }

    /* Start operations until the endpoint refuses, while the target's software
     * does nothing. Give the NICs time for what they do alone. */
    void start_all()
    {
        int refused = 0;

        while ((refused < 1000) && (m_num_started < 1000)) {
            ucs_status_t status = start_one();
            ASSERT_TRUE(!UCS_STATUS_IS_ERR(status) ||
                        (status == UCS_ERR_NO_RESOURCE));
            refused = (status == UCS_ERR_NO_RESOURCE) ? refused + 1 : 0;
            m_entity->progress();
        }
        for (int i = 0; i < 10000; ++i) {
            m_entity->progress();
        }
    }

    /* The peer is dead: outstanding operations end, with an error */
    void expect_end(const std::function<void()> &progress)
    {
        std::vector<completion*> comps;
        double begin = now();

        for (auto &comp : m_comps) {
            if (!comp->done) {
                comps.push_back(comp.get());
            }
        }
        RecordProperty("outstanding", std::to_string(comps.size()));
        EXPECT_TRUE(!GetParam().software || !comps.empty());
        while (((num_outstanding() > 0) ||
                (!comps.empty() && m_entity->failed.empty())) &&
               (now() < (begin + limit))) {
            progress();
        }
        RecordProperty("end_ms", std::to_string((now() - begin) * 1e3));

        EXPECT_EQ(0u, num_outstanding());
        for (auto comp : comps) {
            EXPECT_TRUE(comp->done && (comp->status != UCS_OK));
        }
        EXPECT_EQ(comps.empty() ? 0u : 1u, m_entity->failed.count(m_ep));
    }

    /* After the loss of a peer, the initiator can work with another one */
    void expect_new_peer()
    {
        m_peer.reset(new peer("death_target"));
        m_peer->put((int)GetParam().copy);
        m_peer->put(0);
        uct_ep_h ep     = m_entity->connect(m_peer->get_bytes());
        uct_rkey_t rkey = m_entity->unpack(m_peer->get_bytes());
        uint64_t base   = m_peer->get<uint64_t>();
        ASSERT_EQ(UCS_OK, m_entity->retry([&]() {
            return uct_ep_put_short(ep, m_local->ptr(), 8, base, rkey);
        }));
        m_entity->flush(ep);
        EXPECT_EQ(0u, m_entity->failed.count(ep));
    }

    /* As a program that has nothing else to do */
    void sleep()
    {
        if ((m_entity->progress() > 0) || (num_outstanding() == 0)) {
            return;
        }
        ucs_status_t status = uct_iface_event_arm(m_entity->iface(),
                                                  UCT_EVENT_SEND_COMP |
                                                  UCT_EVENT_RECV);
        if (status == UCS_OK) {
            struct pollfd pfd = {-1, POLLIN, 0};
            ASSERT_EQ(UCS_OK, uct_iface_event_fd_get(m_entity->iface(),
                                                     &pfd.fd));
            EXPECT_EQ(1, poll(&pfd, 1, limit * 1e3)) << "no event woke it";
        } else {
            ASSERT_EQ(UCS_ERR_BUSY, status);
        }
    }

    /* Retries take 0.2 s, ten times that on slow machines, and the machine may
     * be busy */
    const double limit = patience.count();

    std::unique_ptr<entity> m_entity;
    std::unique_ptr<buffer> m_local;
    std::unique_ptr<peer>   m_peer;
    uct_ep_h                m_ep          = nullptr;
    uct_rkey_t              m_rkey        = 0;
    uint64_t                m_base        = 0;
    unsigned                m_num_started = 0;
    std::vector<std::unique_ptr<completion>> m_comps;
};

/* The NIC of a stopped process still acknowledges, so requests have arrived and
 * the requester has nothing outstanding at its NIC */
TEST_P(test_death, stopped_then_killed)
{
    start();
    m_peer->stop();
    start_all();
    m_peer->kill();
    expect_end([&]() { m_entity->progress(); });
    expect_new_peer();
}

TEST_P(test_death, stopped_then_killed_requester_sleeps)
{
    start();
    m_peer->stop();
    start_all();
    m_peer->kill();
    expect_end([&]() { sleep(); });
}

TEST_P(test_death, killed_at_random)
{
    /* Starting a process takes long under TSan */
#ifdef __SANITIZE_THREAD__
    const int num_rounds = 1;
#else
    const int num_rounds = is_fast() ? 5 : 1;
#endif
    unsigned seed = std::random_device()();
    std::mt19937 random(seed);

    SCOPED_TRACE("seed " + std::to_string(seed));
    for (int round = 0; round < num_rounds; ++round) {
        start();
        unsigned window = 1 + random() % 8;
        double kill_at  = now() + (random() % 3000) * 1e-6;
        double last     = 0;
        size_t done     = 0;
        /* Each operation that ends has a successor until the death is detected.
         * Operations in between must continue to end. */
        while (m_entity->failed.empty() || (num_outstanding() > 0)) {
            if ((kill_at > 0) && (now() > kill_at)) {
                m_peer->kill();
                kill_at = 0;
            }
            if (m_entity->failed.empty() && (num_outstanding() < window)) {
                start_one();
            }
            m_entity->progress();
            size_t count = m_comps.size() - num_outstanding();
            if ((last == 0) || (count != done) || (kill_at > 0)) {
                done = count;
                last = now();
            }
            ASSERT_LT(now() - last, limit) << num_outstanding()
                                           << " outstanding";
        }
        EXPECT_EQ(UCS_ERR_ENDPOINT_TIMEOUT, m_entity->failed[m_ep]);
        m_comps.clear();
        m_num_started = 0;
        TearDown();
    }
}

/* An earlier message that was delivered does not make a check unnecessary */
TEST_P(test_death, check_detects_death)
{
    start();
    for (int i = 0; i < 3; ++i) {
        ucs_status_t status = start_one();
        ASSERT_TRUE(!UCS_STATUS_IS_ERR(status));
    }
    ASSERT_EQ(UCS_OK, m_entity->retry([&]() {
        return uct_ep_am_short(m_ep, 1, 0, nullptr, 0);
    }));
    m_entity->wait([&]() { return num_outstanding() == 0; });
    for (int i = 0; i < 10000; ++i) {
        m_entity->progress();
    }
    m_peer->kill();

    double begin = now();
    while (m_entity->failed.empty()) {
        ASSERT_EQ(UCS_OK, uct_ep_check(m_ep, 0, nullptr));
        m_entity->progress();
        ASSERT_LT(now(), begin + limit);
    }
}

INSTANTIATE_TEST_SUITE_P(kinds, test_death, ::testing::ValuesIn(operations),
                         [](const ::testing::TestParamInfo<operation> &info) {
                             return std::string(info.param.name);
                         });

/* A pending request gets the error of its endpoint */
TEST(test_death_pending, pending_request_gets_the_error)
{
    struct request : uct_pending_req_t {
        uct_ep_h     ep;
        unsigned     num_calls;
        ucs_status_t status;
    } request = {};
    entity e(config_t{{"TIMEOUT", "20ms"}, {"RETRY_COUNT", "3"}});
    peer target("death_target");

    target.put(0);
    target.put(1);
    request.ep = e.connect(target.get_bytes());
    target.get_bytes();
    target.get<uint64_t>();
    ASSERT_EQ(UCS_OK, e.retry([&]() {
        return uct_ep_am_short(request.ep, 1, 0, nullptr, 0);
    }));
    e.flush(request.ep);
    target.stop();

    /* All messages that the target's NIC accepts without its software */
    for (int refused = 0; refused < 1000;) {
        ucs_status_t status = uct_ep_am_short(request.ep, 1, 0, nullptr, 0);
        refused = (status == UCS_ERR_NO_RESOURCE) ? refused + 1 : 0;
        e.progress();
    }
    request.status = UCS_ERR_NO_RESOURCE;
    request.func   = [](uct_pending_req_t *self) {
        struct request *req = static_cast<struct request*>(self);
        ++req->num_calls;
        req->status = uct_ep_am_short(req->ep, 1, 0, nullptr, 0);
        return (req->status == UCS_ERR_NO_RESOURCE) ? req->status : UCS_OK;
    };
    ASSERT_EQ(UCS_OK, uct_ep_pending_add(request.ep, &request, 0));
    e.wait([&]() { return request.num_calls > 0; });
    ASSERT_EQ(UCS_ERR_NO_RESOURCE, request.status);

    target.kill();
    e.wait([&]() { return !e.failed.empty(); });
    for (int i = 0; i < 1000; ++i) {
        e.progress();
    }
    EXPECT_EQ(e.failed[request.ep], request.status);
    uct_ep_pending_purge(request.ep, [](uct_pending_req_t*, void*) {}, nullptr);
}
