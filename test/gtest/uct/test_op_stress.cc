/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>

/*
 * Random operations of many endpoints, in both directions, with few resources
 * that all of them share: what one operation keeps must never be what an
 * earlier one needs. Pages vanish, endpoints end with operations in flight, and
 * refused operations are tried again by the test or by the interface. Each
 * endpoint has an area of its own at the target, so the result must be that of
 * its operations one after the other.
 *
 * NPRDMA_STRESS_SECONDS: duration, otherwise a few seconds in all.
 * NPRDMA_STRESS_SEED: seed, otherwise random.
 */
class test_op_stress : public test_op,
                       public ::testing::WithParamInterface<config_t> {
protected:
    static constexpr size_t area_size  = 98304;
    static constexpr size_t word_at    = 80000; /* Of the tickets */
    static constexpr size_t place_size = 65536;
    static constexpr size_t num_eps    = 6;     /* In each direction */
    static constexpr size_t num_areas  = num_eps + 12;
    static constexpr size_t num_places = 40;
    static constexpr double limit      = 45;    /* Seconds without progress */

    enum kind_t {
        SHORT,
        BCOPY,
        ZCOPY,
        GET_B,
        GET_Z,
        POST,
        FETCH,
        CSWAP,
        FENCE,
        FLUSH,
        MESSAGE,
        NUM_KINDS
    };

    struct endpoint;

    struct operation : uct_pending_req_t {
        endpoint    *ep;
        kind_t      kind;
        size_t      offset = 0, bytes = 0, place = 0;
        char        *buffer = nullptr;
        uint64_t    value = 0, compare = 0, old = 0, expected_old = 0;
        bool        has_comp = false;
        std::string expected; /* Data of a get */
        completion  comp;
        unsigned    before = 0; /* Operations that a flush waits for */
    };

    using operation_p = std::unique_ptr<operation>;

    struct side {
        entity                        *self;
        side                          *peer;
        std::unique_ptr<paged_buffer> places; /* Data of own operations */
        std::unique_ptr<paged_buffer> areas;  /* Targets of the peer's */
        uct_rkey_t                    rkey;   /* Of the peer's areas */
        std::deque<size_t>            free_places;
        std::deque<size_t>            free_areas;
        std::vector<std::unique_ptr<endpoint>> eps;
        std::map<uint32_t, uint64_t>  seen;   /* Tickets by endpoint */
    };

    /* An endpoint and its area at the target */
    struct endpoint {
        test_op_stress          *test;
        side                    *from;
        uct_ep_h                ep;
        uint32_t                id;
        size_t                  area;
        std::string             model;
        std::deque<operation_p> queue;  /* Refused */
        std::deque<operation_p> open;   /* Accepted, with a completion */
        bool                    is_pending = false; /* queue is the
                                                     * interface's */
        uint64_t                ticket = 0;
    };

    void SetUp() override
    {
        const char *seed = getenv("NPRDMA_STRESS_SEED");

        test_op::SetUp();
        m_random_seed = (seed == nullptr) ? std::random_device()() :
                                            strtoul(seed, nullptr, 0);
        m_random.seed(m_random_seed);
        set_up(m_sides[0], *m_a, m_sides[1]);
        set_up(m_sides[1], *m_b, m_sides[0]);
        for (side &s : m_sides) {
            s.rkey = s.self->unpack(s.peer->areas->packed_key());
            for (size_t i = 0; i < num_eps; ++i) {
                s.eps.emplace_back(new endpoint);
                s.eps.back()->test = this;
                s.eps.back()->from = &s;
                connect(*s.eps.back());
            }
        }
        m_last = now();
    }

    void TearDown() override
    {
        for (side &s : m_sides) {
            for (auto &ep : s.eps) {
                destroy(*ep);
            }
            s.eps.clear();
            s.places.reset();
            s.areas.reset();
        }
        test_op::TearDown();
    }

    config_t config() override
    {
        config_t config = test_op::config();
        for (auto &item : GetParam()) {
            config[item.first] = item.second;
        }
        return config;
    }

    void set_up(side &s, entity &self, side &peer)
    {
        s.self = &self;
        s.peer = &peer;
        s.places.reset(new paged_buffer(self, num_places * place_size));
        s.areas.reset(new paged_buffer(self, num_areas * area_size));
        s.places->fill(m_seed++);
        s.areas->fill(m_seed++);
        for (size_t i = 0; i < num_places; ++i) {
            s.free_places.push_back(i * place_size);
        }
        for (size_t i = 0; i < num_areas; ++i) {
            s.free_areas.push_back(i * area_size);
        }
        uct_iface_set_am_handler(self.iface(), 1, on_message, &s, 0);
    }

    void connect(endpoint &ep)
    {
        side &s = *ep.from;

        ep.ep     = s.self->connect(s.peer->self->address());
        ep.id     = ++m_num_connected;
        ep.area   = s.peer->areas ? s.peer->free_areas.front() : 0;
        ep.ticket = 0;
        s.peer->free_areas.pop_front();
        memset(s.peer->areas->ptr(ep.area + word_at), 0, 8);
        ep.model.assign(s.peer->areas->ptr(ep.area), area_size);
    }

    size_t random(size_t count) { return m_random() % count; }

    /* A message says that what its sender did before a fence is done */
    static ucs_status_t
    on_message(void *arg, void *data, size_t length, unsigned)
    {
        side *self = static_cast<side*>(arg);
        uint64_t message[3];
        uint64_t found;

        EXPECT_EQ(sizeof(message), length);
        memcpy(message, data, sizeof(message));
        memcpy(&found, self->areas->ptr(message[2] + word_at), sizeof(found));
        EXPECT_GE(found, message[1]) << "endpoint " << message[0];
        EXPECT_GE(message[1], self->seen[message[0]]);
        self->seen[message[0]] = message[1];
        return UCS_OK;
    }

    /* ---- operations ---- */

    ucs_status_t try_put(operation &op)
    {
        uct_ep_h ep      = op.ep->ep;
        uint64_t address = remote(op);
        uct_rkey_t rkey  = op.ep->from->rkey;
        uct_iov_t iov    = {op.buffer, op.bytes, nullptr, 0, 1};
        auto pack        = [](void *dest, void *arg) -> size_t {
            auto self = static_cast<operation*>(arg);
            memcpy(dest, self->buffer, self->bytes);
            return self->bytes;
        };
        ssize_t length;

        iov.memh = op.ep->from->places->memh();
        switch (op.kind) {
        case SHORT:
            return uct_ep_put_short(ep, op.buffer, op.bytes, address, rkey);
        case BCOPY:
            length = uct_ep_put_bcopy(ep, pack, &op, address, rkey);
            return (length < 0) ? (ucs_status_t)length : UCS_OK;
        default:
            return uct_ep_put_zcopy(ep, &iov, 1, address, rkey, &op.comp);
        }
    }

    ucs_status_t try_get(operation &op)
    {
        uct_iov_t iov = {op.buffer, op.bytes, nullptr, 0, 1};

        iov.memh = op.ep->from->places->memh();
        if (op.kind == GET_Z) {
            return uct_ep_get_zcopy(op.ep->ep, &iov, 1, remote(op),
                                    op.ep->from->rkey, &op.comp);
        }
        return uct_ep_get_bcopy(
                op.ep->ep,
                [](void *arg, const void *data, size_t length) {
                    memcpy(arg, data, length);
                },
                op.buffer, op.bytes, remote(op), op.ep->from->rkey, &op.comp);
    }

    ucs_status_t try_atomic(operation &op)
    {
        uct_ep_h ep     = op.ep->ep;
        uct_rkey_t rkey = op.ep->from->rkey;

        switch (op.kind) {
        case POST:
            return uct_ep_atomic64_post(ep, UCT_ATOMIC_OP_ADD, op.value,
                                        remote(op), rkey);
        case FETCH:
            return uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_ADD, op.value,
                                         &op.old, remote(op), rkey, &op.comp);
        default:
            return uct_ep_atomic_cswap64(ep, op.compare, op.value, remote(op),
                                         rkey, &op.old, &op.comp);
        }
    }

    ucs_status_t try_message(operation &op)
    {
        uint64_t payload[2] = {op.value, op.ep->area};

        return uct_ep_am_short(op.ep->ep, 1, op.ep->id, payload,
                               sizeof(payload));
    }

    /* @return UCS_ERR_NO_RESOURCE if it has to be tried again */
    ucs_status_t attempt(operation &op)
    {
        switch (op.kind) {
        case SHORT:
        case BCOPY:
        case ZCOPY:
            return try_put(op);
        case GET_B:
        case GET_Z:
            return try_get(op);
        case FENCE:
            return uct_ep_fence(op.ep->ep, 0);
        case FLUSH:
            return uct_ep_flush(op.ep->ep, 0, &op.comp);
        case MESSAGE:
            return try_message(op);
        default:
            return try_atomic(op);
        }
    }

    uint64_t remote(const operation &op) const
    {
        return op.ep->from->peer->areas->address(op.ep->area + op.offset);
    }

    /* Try the first operation of a queue */
    ucs_status_t attempt_first(endpoint &ep)
    {
        operation &op       = *ep.queue.front();
        ucs_status_t status = attempt(op);

        if (status == UCS_ERR_NO_RESOURCE) {
            return status;
        }

        EXPECT_FALSE(UCS_STATUS_IS_ERR(status))
                << op.kind << ": " << ucs_status_string(status);
        op.has_comp = (status == UCS_INPROGRESS);
        ep.open.push_back(std::move(ep.queue.front()));
        ep.queue.pop_front();
        m_last = now();
        return UCS_OK;
    }

    static ucs_status_t on_pending(uct_pending_req_t *req)
    {
        operation *op = static_cast<operation*>(req);
        endpoint &ep  = *op->ep;
        ucs_status_t status;

        EXPECT_EQ(op, ep.queue.front().get());
        status = ep.test->attempt_first(ep);
        if (ep.queue.empty()) {
            ep.is_pending = false;
        }
        return status;
    }

    void add_pending(operation &op)
    {
        op.func = on_pending;
        ASSERT_EQ(UCS_OK, uct_ep_pending_add(op.ep->ep, &op, 0));
    }

    /* Start an operation behind those of its endpoint that were refused */
    void submit(operation_p op)
    {
        endpoint &ep = *op->ep;

        ep.queue.push_back(std::move(op));
        if (ep.is_pending) {
            add_pending(*ep.queue.back());
        } else if ((ep.queue.size() == 1) &&
                   (attempt_first(ep) != UCS_OK) && random(2)) {
            ep.is_pending = true;
            add_pending(*ep.queue.front());
        }
    }

    /* Remove the operations that are complete */
    void reap(endpoint &ep)
    {
        for (auto &op : ep.open) {
            if ((op->kind == FLUSH) && op->has_comp && op->comp.done) {
                /* All before it are complete */
                for (auto &other : ep.open) {
                    if (other == op) {
                        break;
                    }
                    EXPECT_TRUE(!other->has_comp || other->comp.done)
                            << other->kind << " is not flushed";
                }
            }
        }
        for (size_t i = 0; i < ep.open.size();) {
            operation &op = *ep.open[i];
            if (op.has_comp && !op.comp.done) {
                ++i;
                continue;
            }
            check(op);
            if (op.buffer != nullptr) {
                ep.from->free_places.push_back(op.place);
            }
            ep.open.erase(ep.open.begin() + i);
            m_last = now();
        }
    }

    void check(const operation &op)
    {
        if (op.has_comp) {
            EXPECT_EQ(UCS_OK, op.comp.status);
        }
        if (!op.expected.empty()) {
            EXPECT_EQ(0, memcmp(op.expected.data(), op.buffer,
                                op.expected.size()))
                    << "a get of " << op.expected.size();
        }
        if ((op.kind == FETCH) || (op.kind == CSWAP)) {
            EXPECT_EQ(op.expected_old, op.old);
        }
    }

    /* ---- choice ---- */

    /* Mostly in one part of the area, so that many overlap */
    size_t random_offset(size_t bytes)
    {
        size_t offset = random(4) ? random(9000) : random(word_at);
        return std::min(offset, word_at - bytes);
    }

    size_t random_bytes(size_t max)
    {
        return 1 + (random(3) ? random(200) :
                    random(2) ? random(std::min<size_t>(max, 8000)) :
                                random(max));
    }

    void choose_put(operation &op, std::string &model)
    {
        size_t max = (op.kind == SHORT) ? short_max() :
                     (op.kind == BCOPY) ? 8000 : 60000;

        op.bytes  = std::min(random_bytes(max), max);
        op.offset = random_offset(op.bytes);
        for (size_t i = 0; i < op.bytes; i += 1 + i / 8) {
            op.buffer[i] = (char)m_random();
        }
        model.replace(op.offset, op.bytes, op.buffer, op.bytes);
    }

    size_t short_max() const
    {
        return m_a->attr().cap.put.max_short;
    }

    void choose_atomic(operation &op, std::string &model)
    {
        op.bytes  = 8;
        op.offset = random_offset(8) & ~size_t(7);
        op.value  = m_random();
        memcpy(&op.expected_old, &model[op.offset], 8);
        op.compare = random(2) ? op.expected_old : op.value;
        uint64_t next = (op.kind != CSWAP) ? op.expected_old + op.value :
                        (op.expected_old == op.compare) ? op.value :
                                                          op.expected_old;
        model.replace(op.offset, 8, (char*)&next, 8);
    }

    operation_p make(endpoint &ep, kind_t kind)
    {
        operation_p op(new operation);

        op->ep   = &ep;
        op->kind = kind;
        if (kind <= GET_Z) {
            op->place = ep.from->free_places.front();
            ep.from->free_places.pop_front();
            op->buffer = ep.from->places->ptr(op->place);
        }
        return op;
    }

    /* Write the ticket by a small or a large put; then a fence, and a message
     * that names it */
    void start_ticket(endpoint &ep)
    {
        bool is_short  = random(2) && (short_max() >= 8);
        operation_p op = make(ep, is_short ? SHORT : ZCOPY);
        size_t more    = is_short ? 0 : random(50000);

        ++ep.ticket;
        op->bytes  = 8 + more;
        op->offset = word_at - more;
        memset(op->buffer, (int)ep.ticket, more);
        memcpy(op->buffer + more, &ep.ticket, 8);
        ep.model.replace(op->offset, op->bytes, op->buffer, op->bytes);
        submit(std::move(op));
        submit(make(ep, FENCE));
        op        = make(ep, MESSAGE);
        op->value = ep.ticket;
        submit(std::move(op));
    }

    void start_random(endpoint &ep)
    {
        kind_t kind = (kind_t)random(NUM_KINDS);

        if (!random(10)) {
            start_ticket(ep);
            return;
        }
        if (((kind >= FENCE) && random(4)) || (kind == MESSAGE) ||
            ((kind == SHORT) && (short_max() == 0))) {
            kind = ZCOPY;
        }

        operation_p op = make(ep, kind);
        switch (kind) {
        case SHORT:
        case BCOPY:
        case ZCOPY:
            choose_put(*op, ep.model);
            break;
        case GET_B:
        case GET_Z:
            op->bytes    = random_bytes((kind == GET_B) ? 8000 : 60000);
            op->bytes    = std::min<size_t>(op->bytes,
                                            (kind == GET_B) ? 8000 : 60000);
            op->offset   = random_offset(op->bytes);
            op->expected = ep.model.substr(op->offset, op->bytes);
            break;
        case POST:
        case FETCH:
        case CSWAP:
            choose_atomic(*op, ep.model);
            break;
        default:
            break;
        }
        submit(std::move(op));
    }

    void lose_page(paged_buffer &buffer)
    {
        if ((GetParam().count("MONITOR") == 0) &&
            (page_table_find_once(buffer) != nullptr)) {
            buffer.evict(random(buffer.length()), 1, 1 + random(3));
        }
    }

    /* The table exists once a page has been populated */
    static page_table_t *page_table_find_once(paged_buffer &buffer)
    {
        try {
            return buffer.table();
        } catch (const std::runtime_error&) {
            return nullptr;
        }
    }

    /* ---- the end of endpoints, and progress ---- */

    void destroy(endpoint &ep)
    {
        uct_ep_pending_purge(ep.ep, [](uct_pending_req_t*, void*) {}, nullptr);
        ep.from->self->disconnect(ep.ep);
        for (auto *ops : {&ep.open, &ep.queue}) {
            for (auto &op : *ops) {
                EXPECT_TRUE(!op->has_comp || op->comp.done) << op->kind;
                if (op->buffer != nullptr) {
                    ep.from->free_places.push_back(op->place);
                }
            }
            ops->clear();
        }
        ep.is_pending = false;
    }

    /* The old area may still be written to by requests that are on their way */
    void replace(endpoint &ep)
    {
        if (!ep.from->peer->free_areas.empty()) {
            destroy(ep);
            connect(ep);
            ++m_num_destroyed;
        }
    }

    void dump()
    {
        fprintf(stderr, "stress: seed %u stands still\n", m_random_seed);
        for (side &s : m_sides) {
            for (auto &ep : s.eps) {
                fprintf(stderr, "side %d endpoint %u: queue",
                        (int)(&s - m_sides), ep->id);
                for (auto &op : ep->queue) {
                    fprintf(stderr, " %d:%zu+%zu", op->kind, op->offset,
                            op->bytes);
                }
                fprintf(stderr, "%s, open", ep->is_pending ? " (pending)" : "");
                for (auto &op : ep->open) {
                    fprintf(stderr, " %d:%zu+%zu%s", op->kind, op->offset,
                            op->bytes, op->comp.done ? "(done)" : "");
                }
                fprintf(stderr, "\n");
            }
            for (auto &item : s.self->counters()) {
                if (item.second != 0) {
                    fprintf(stderr, "  %s %llu\n", item.first.c_str(),
                            (unsigned long long)item.second);
                }
            }
        }
    }

    void step()
    {
        for (side &s : m_sides) {
            for (size_t i = random(3); i > 0; --i) {
                s.self->progress();
            }
            for (auto &ep : s.eps) {
                reap(*ep);
                while (!ep->is_pending && !ep->queue.empty() &&
                       (attempt_first(*ep) == UCS_OK)) {
                }
            }
        }
        if (now() - m_last > limit) {
            dump();
            throw std::runtime_error("operations stand still");
        }
    }

    /* Wait until all operations of an endpoint are done */
    void drain(endpoint &ep)
    {
        submit(make(ep, FLUSH));
        while (!ep.queue.empty() || !ep.open.empty()) {
            step();
        }
        EXPECT_EQ(0, memcmp(ep.model.data(),
                            ep.from->peer->areas->ptr(ep.area), area_size))
                << "endpoint " << ep.id;
    }

    void one()
    {
        side &s      = m_sides[random(2)];
        endpoint &ep = *s.eps[random(num_eps)];

        if (!random(2)) {
            lose_page(random(2) ? *s.peer->areas : *s.places);
        }
        if (!random(1500)) {
            replace(ep);
        } else if (!random(150)) {
            drain(ep);
        } else if (!random(200)) {
            uct_iface_flush(s.self->iface(), 0, nullptr);
        } else if ((ep.queue.size() < 8) && (s.free_places.size() > 1)) {
            /* A burst, so that one endpoint takes all that it may have */
            for (size_t i = random(8) ? 1 : 40;
                 (i > 0) && (s.free_places.size() > 1); --i) {
                start_random(ep);
            }
        }
        if (!random(3)) {
            step();
        }
    }

    std::mt19937_64 m_random;
    unsigned        m_random_seed = 0;
    side            m_sides[2];
    uint32_t        m_num_connected = 0;
    unsigned        m_num_destroyed = 0;
    double          m_last = 0;
};

TEST_P(test_op_stress, shared_resources)
{
    const char *seconds = getenv("NPRDMA_STRESS_SECONDS");
    double end          = now() + ((seconds == nullptr) ? 1 : atof(seconds));
    uint64_t count      = 0;

    printf("seed %u\n", m_random_seed); /* In case the test does not end */
    fflush(stdout);
    SCOPED_TRACE(testing::Message() << "seed " << m_random_seed);
    for (; (count < 300 || now() < end) && !HasFailure(); ++count) {
        one();
    }
    for (side &s : m_sides) {
        for (auto &ep : s.eps) {
            drain(*ep);
        }
    }
    printf("%llu operations, %u endpoints destroyed, %llu held, %llu redone, "
           "%llu refused\n", (unsigned long long)count, m_num_destroyed,
           (unsigned long long)(counter("held_overlaps") +
                                counter("held_atomics")),
           (unsigned long long)counter("redone_slices"),
           (unsigned long long)counter("no_resource"));
    EXPECT_GT(counter("held_overlaps") + counter("held_atomics"), 0u);
}

/* The smallest of everything */
static config_t few(const config_t &more = {})
{
    config_t config = {{"MAX_PINNED", "800k"}, {"TX_QUEUE_LEN", "2"},
                       {"SVC_QUEUE_LEN", "2"}, {"TX_CQ_LEN", "16"},
                       {"SVC_SLOTS", "1"}, {"TX_MAX_BUFS", "1"},
                       {"RX_MAX_BUFS", "2"},
                       {"RX_MAX_BATCH", "1"}, {"MAX_INLINE", "64"}};

    for (auto &item : more) {
        config[item.first] = item.second;
    }
    return config;
}

INSTANTIATE_TEST_SUITE_P(
        all, test_op_stress,
        ::testing::Values(config_t{}, few(), few({{"MONITOR", "copy"}}),
                          few({{"MAX_TRIES", "1"}, {"ORDER", "ucp"}}),
                          few({{"SVC_QUEUE_LEN", "64"},
                               {"TX_QUEUE_LEN", "64"},
                               {"SLICE", "8k"}}),
                          config_t{{"MAX_PINNED", "2m"}, {"MONITOR", "copy"}}));
