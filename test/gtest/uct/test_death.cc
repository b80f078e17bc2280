/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "internals.h"
#include "operations.h"
#include "serve.h"

#include <algorithm>

#include <poll.h>

/*
 * Peers are stopped, or die, while operations wait for them, and the program
 * never probes them. Other peers are served meanwhile. When a peer has died,
 * all outstanding operations end with an error, soon.
 */

namespace {

constexpr size_t large      = 300000;
constexpr size_t place      = 512 * 1024;
constexpr size_t num_places = 64;

/* A kind of operation, and what it meets at the target */
struct death_case {
    const char *name;
    bool       software;  /* The target's software has to act */
    bool       untouched; /* The pages have never been touched */
    bool       copy;      /* In copy mode */
    decltype(operation::start) start;
    const char *reason = nullptr; /* Why it waits, as the log says */
};

const death_case cases[] = {
    {"am", false, false, false, op_am.start},
    {"put_short", true, false, false, op_put_short.start,
     "a reply of the peer's service"},
    {"put_bcopy", true, false, false, start_put_bcopy<8000>},
    {"put_zcopy", false, false, false, start_put_zcopy<large>},
    {"get_bcopy", false, false, false, start_get_bcopy<4000>},
    {"get_zcopy", false, false, false, start_get_zcopy<large>},
    {"atomic_post", true, false, false, op_atomic_post.start},
    {"atomic_fetch", true, false, false, op_atomic_fetch.start},
    {"assist_fetch", true, true, false, start_get_zcopy<4096>},
    {"assist_populate_get", true, true, false, start_get_zcopy<large>,
     "a reply of the peer's service"},
    {"assist_populate_put", true, true, false, start_put_zcopy<large>},
    {"assist_large_get", true, true, true, start_get_zcopy<large>,
     "a reply of the peer's service"},
    {"assist_large_put", true, true, true, start_put_zcopy<large>},
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

class test_death : public ::testing::TestWithParam<death_case> {
protected:
    struct target {
        std::unique_ptr<peer> process;
        uct_ep_h              ep          = nullptr;
        uct_rkey_t            rkey        = 0;
        uint64_t              base        = 0;
        unsigned              num_started = 0;
    };

    void connect(target &t)
    {
        t.process.reset(new peer("death_target"));
        t.process->put((int)GetParam().copy);
        t.process->put((int)GetParam().untouched);
        t.ep   = m_entity->connect(t.process->get_bytes());
        t.rkey = m_entity->unpack(t.process->get_bytes());
        t.base = t.process->get<uint64_t>();
        /* Wire-up has a time limit of its own, so it ends before the test
         * begins */
        ASSERT_NO_FATAL_FAILURE(m_entity->wire_up(t.ep, m_local->ptr(), t.base,
                                                  t.rkey));
    }

    void start()
    {
        config_t config = {{"TIMEOUT", is_fast() ? "20ms" : "250ms"},
                           {"RETRY_COUNT", is_fast() ? "3" : "6"}};
        if (GetParam().copy) {
            config["MONITOR"] = "copy";
        }
        m_entity.reset(new entity(config));
        m_local.reset(new buffer(m_entity->md(), large));
        m_local->fill(2);
        connect(m_victim);
        m_peer = m_victim.process.get();
        m_ep   = m_victim.ep;
    }

    /* Start one more operation, at a place of its own while there are free
     * ones */
    ucs_status_t start_one(target &t, const death_case &op)
    {
        auto comp           = std::make_unique<completion>();
        uint64_t address    = t.base + (t.num_started % num_places) * place;
        ucs_status_t status = op.start(t.ep, address, t.rkey, *m_local,
                                       comp.get());
        if (status == UCS_INPROGRESS) {
            m_comps.push_back(std::move(comp));
        }
        t.num_started += !UCS_STATUS_IS_ERR(status);
        return status;
    }

    ucs_status_t start_one() { return start_one(m_victim, GetParam()); }

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

        while ((refused < 1000) && (m_victim.num_started < 1000)) {
            ucs_status_t status = start_one();
            ASSERT_TRUE(!UCS_STATUS_IS_ERR(status) ||
                        (status == UCS_ERR_NO_RESOURCE));
            refused = (status == UCS_ERR_NO_RESOURCE) ? refused + 1 : 0;
            m_entity->progress();
        }
        m_entity->progress_often(10000);
    }

    /* As if each wait had begun a minute ago, a line says what for */
    void expect_reason(const std::string &reason)
    {
        complaints log(UCS_LOG_LEVEL_DIAG);

        m_entity->wait([&]() {
            for (const auto &next : log.all()) {
                if ((next.text.find("has waited 6") != std::string::npos) &&
                    (next.text.find(", now for " + reason) !=
                     std::string::npos)) {
                    EXPECT_EQ(UCS_LOG_LEVEL_WARN, next.level);
                    return true;
                }
            }
            waits_since(m_ep, 60);
            return false;
        });
        EXPECT_GE(m_entity->counter("longest_us"), 60000000u);
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

    std::vector<std::unique_ptr<completion>> m_comps;
    std::unique_ptr<entity> m_entity;
    std::unique_ptr<buffer> m_local;
    target                  m_victim, m_other;
    peer                    *m_peer = nullptr; /* Of the victim */
    uct_ep_h                m_ep    = nullptr;
};

/* The NIC of a stopped process still acknowledges, so requests have arrived and
 * the requester has nothing outstanding at its NIC */
TEST_P(test_death, stopped_then_killed)
{
    start();
    m_peer->stop();
    start_all();
    if (GetParam().reason != nullptr) {
        expect_reason(GetParam().reason);
    }
    m_peer->kill();
    expect_end([&]() { sleep(); });

    /* After the loss of a peer, the initiator can work with another one */
    connect(m_other);
    m_entity->flush(m_other.ep);
    EXPECT_EQ(0u, m_entity->failed.count(m_other.ep));
}

/* One of two targets is stopped, and gets as many operations of one kind as the
 * requester accepts, which are bounded. The other target is served with all
 * kinds, and nothing is lost. */
TEST_P(test_death, others_are_served_meanwhile)
{
    struct request : uct_pending_req_t {
        std::function<ucs_status_t()> send;
        bool                          done = false;
    } first, second;
    auto add_pending = [&](request &req, target &t) {
        req.send = [&]() { return start_one(t, GetParam()); };
        req.func = [](uct_pending_req_t *self) {
            auto *mine          = static_cast<request*>(self);
            ucs_status_t status = mine->send();
            mine->done          = status != UCS_ERR_NO_RESOURCE;
            return mine->done ? UCS_OK : status;
        };
        ASSERT_EQ(UCS_OK, uct_ep_pending_add(t.ep, &req, 0));
    };

    start();
    connect(m_other);
    m_peer->stop();
    start_all();
    EXPECT_TRUE(!GetParam().software || (m_victim.num_started < 1000));
    for (const death_case &op : cases) {
        for (int i = 0; (op.copy == GetParam().copy) && (i < 20); ++i) {
            EXPECT_FALSE(UCS_STATUS_IS_ERR(m_entity->retry([&]() {
                return start_one(m_other, op);
            })));
        }
    }
    m_entity->flush(m_other.ep);
    EXPECT_LE(m_entity->counter("pinned_bytes"), 4u << 20);

    /* Also behind a request for the stopped one that waits in the queue */
    if (start_one() == UCS_ERR_NO_RESOURCE) {
        add_pending(first, m_victim);
        add_pending(second, m_other);
        m_entity->wait([&]() { return second.done; });
        EXPECT_FALSE(first.done);
        m_peer->go_on();
        while (!first.done && !HasFatalFailure()) {
            sleep();
        }
    }
    m_peer->go_on();
    m_entity->wait([&]() { return num_outstanding() == 0; });
    for (auto &comp : m_comps) {
        EXPECT_EQ(UCS_OK, comp->status);
    }
    EXPECT_TRUE(m_entity->failed.empty());
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
    m_entity->progress_often(10000);
    m_peer->kill();

    double begin = now();
    while (m_entity->failed.empty()) {
        ASSERT_EQ(UCS_OK, uct_ep_check(m_ep, 0, nullptr));
        m_entity->progress();
        ASSERT_LT(now(), begin + limit);
    }
}

INSTANTIATE_TEST_SUITE_P(kinds, test_death, ::testing::ValuesIn(cases),
                         [](const auto &info) { return info.param.name; });
