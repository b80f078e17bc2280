/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

extern "C" {
#include "uct/ib/nprdma/rma/nprdma_sched.h"
}

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

/*
 * The scheduler of large operations against a reference that keeps no lists: it
 * scans everything, and asks the rules of nprdma_sched.h one by one.
 */

namespace {

constexpr size_t slice      = 8192;
constexpr size_t busy_slice = 1024;
constexpr size_t head       = 511; /* The caller adds up to this */
constexpr size_t longest    = slice + head;

struct operation {
    uct_nprdma_sched_op_t op;
    size_t                left;
    size_t                length;
    unsigned              ep;
};

struct flight {
    unsigned ep;
    size_t   length;
};

/* What the reference knows of an endpoint */
struct model_ep {
    std::deque<operation*> ops;
    size_t                 in_flight = 0;
    int64_t                deficit   = 0;
    unsigned               skips     = 0;
    bool                   blocked = false, full = false;
    uint64_t               place = 0; /* In the order of turns; 0: none */
};

class reference {
public:
    reference(size_t quota, unsigned num_eps) : m_quota(quota), m_eps(num_eps)
    {
        m_budget = quota_now();
    }

    size_t slice_now() const { return (m_busy > 0) ? busy_slice : slice; }

    size_t quota_now() const
    {
        return (m_quota == UCT_NPRDMA_SCHED_AUTO) ?
               3 * slice_now() : m_quota;
    }

    void begin(uct_nprdma_sched_urgent_t urgent)
    {
        bool is_operation = urgent.others != m_urgent.others;
        bool is_message   = false;

        for (; m_urgent.ends != urgent.ends; ++m_urgent.ends) {
            is_operation    |= (m_expected_ends == 0);
            m_expected_ends -= (m_expected_ends > 0);
        }
        for (; m_urgent.messages != urgent.messages; ++m_urgent.messages) {
            is_message |= (m_expected == 0);
            m_expected -= (m_expected > 0);
        }
        if (is_operation) {
            if (m_long_slices >= 32) {
                m_num_busy = 16;
            } else if (m_busy == 0) {
                m_num_busy = std::min(256u, 2 * m_num_busy);
            }
        }
        if (is_operation || is_message) {
            m_busy        = std::max(m_busy, is_operation ? m_num_busy : 16);
            m_long_slices = 0;
            m_expected    = 0;
        }
        m_urgent = urgent;
        m_budget = quota_now();
    }

    void add(operation *op, uct_nprdma_sched_urgent_t urgent, unsigned own)
    {
        bool is_idle = (m_in_flight == 0) &&
                       std::none_of(m_eps.begin(), m_eps.end(),
                                    [](const model_ep &ep) {
                                        return ep.place != 0;
                                    });
        if (is_idle) {
            m_urgent        = urgent;
            m_expected      = 0;
            m_expected_ends = 0;
        }
        m_expected_ends = std::min(64u, m_expected_ends + (own > 0));
        for (; (own > 0) && (m_expected < 64); --own) {
            ++m_expected;
        }
        m_eps[op->ep].ops.push_back(op);
        settle(m_eps[op->ep]);
    }

    void remove(operation *op)
    {
        auto &ops = m_eps[op->ep].ops;
        ops.erase(std::find(ops.begin(), ops.end(), op));
        settle(m_eps[op->ep]);
    }

    operation *next()
    {
        for (;;) {
            model_ep *first = nullptr;
            for (model_ep &ep : m_eps) {
                if ((ep.place != 0) &&
                    ((first == nullptr) || (ep.place < first->place))) {
                    first = &ep;
                }
            }
            if ((first == nullptr) || (m_budget == 0) ||
                (m_in_flight >= quota_now())) {
                return nullptr;
            }
            if ((quota_now() != UCT_NPRDMA_SCHED_NO_QUOTA) &&
                (first->in_flight / 2 >= quota_now() - m_in_flight)) {
                first->full = true;
                settle(*first);
                continue;
            }
            if (first->deficit <= 0) {
                first->deficit += int64_t(longest);
            }
            if (first->skips < UCT_NPRDMA_SCHED_MAX_SKIPS) {
                for (operation *op : first->ops) {
                    if (op->length <= slice) {
                        return op;
                    }
                }
            }
            return first->ops.front();
        }
    }

    void posted(operation *op, size_t length)
    {
        model_ep &ep = m_eps[op->ep];

        ep.skips   = (op == ep.ops.front()) ? 0 : ep.skips + 1;
        m_budget  -= std::min(m_budget, length);
        m_long_slices += (m_busy == 0);
        m_busy    -= (m_busy > 0);
        again(op->ep, length);
        ep.deficit -= length;
        if (op->left == 0) {
            remove(op);
        }
        if ((ep.place != 0) && (ep.deficit <= 0)) {
            ep.place = ++m_places;
        }
    }

    void again(unsigned ep, size_t length)
    {
        m_in_flight         += length;
        m_eps[ep].in_flight += length;
    }

    void done(const flight &f)
    {
        m_in_flight           -= f.length;
        m_eps[f.ep].in_flight -= f.length;
        m_eps[f.ep].full       = false;
        settle(m_eps[f.ep]);
    }

    void block(unsigned ep, bool is_blocked)
    {
        m_eps[ep].blocked = is_blocked;
        settle(m_eps[ep]);
    }

    const model_ep &ep(unsigned i) const { return m_eps[i]; }
    size_t in_flight() const { return m_in_flight; }
    size_t budget() const { return m_budget; }
    unsigned num_busy() const { return m_num_busy; }

private:
    void settle(model_ep &ep)
    {
        bool is_ready = !ep.ops.empty() && !ep.blocked && !ep.full;

        if (is_ready != (ep.place != 0)) {
            ep.place = is_ready ? ++m_places : 0;
            if (ep.ops.empty()) {
                ep.deficit = std::min<int64_t>(ep.deficit, 0);
                ep.skips   = 0;
            }
        }
    }

    size_t                m_quota;
    std::vector<model_ep> m_eps;
    size_t                m_in_flight = 0, m_budget = 0;
    uct_nprdma_sched_urgent_t m_urgent = {};
    unsigned              m_expected_ends = 0, m_num_busy = 16;
    uint64_t              m_long_slices = 32; /* Since the last short one */
    uint64_t              m_places = 0;
    unsigned              m_busy = 0, m_expected = 0;
};

/* The scheduler and the reference do the same, step by step */
class both {
public:
    both(size_t quota, unsigned num_eps) :
        m_model(quota, num_eps), m_eps(num_eps), m_quota(quota)
    {
        uct_nprdma_sched_init(&m_sched, slice, busy_slice, longest, quota);
        for (auto &ep : m_eps) {
            uct_nprdma_sched_ep_init(&ep);
        }
        sent.resize(num_eps);
    }

    void begin(unsigned num_messages, unsigned num_others = 0,
               unsigned num_ends = 0)
    {
        m_urgent.ends     += num_ends;
        m_urgent.messages += num_messages;
        m_urgent.others   += num_others;
        m_model.begin(m_urgent);
        uct_nprdma_sched_begin(&m_sched, m_urgent);
    }

    void add(unsigned ep, size_t length, unsigned own = 0)
    {
        ops.emplace_back(new operation{{}, length, length, ep});
        operation *op = ops.back().get();
        m_model.add(op, m_urgent, own);
        uct_nprdma_sched_add(&m_sched, &m_eps[ep], &op->op, length, m_urgent,
                             own);
    }

    void remove(size_t index)
    {
        operation *op = ops[index].get();
        m_model.remove(op);
        uct_nprdma_sched_remove(&m_sched, &m_eps[op->ep], &op->op);
        ops.erase(ops.begin() + index);
    }

    /* @return The operation that has posted, or null */
    bool post(size_t extra)
    {
        uct_nprdma_sched_ep_t *ep   = nullptr;
        operation *wanted           = m_model.next();
        uct_nprdma_sched_op_t *next = uct_nprdma_sched_next(&m_sched, &ep);

        EXPECT_EQ((wanted == nullptr) ? nullptr : &wanted->op, next);
        if ((next == nullptr) || (wanted == nullptr)) {
            return false;
        }
        EXPECT_EQ(&m_eps[wanted->ep], ep);
        EXPECT_EQ(m_model.slice_now(), uct_nprdma_sched_slice(&m_sched));
        if (m_quota != UCT_NPRDMA_SCHED_NO_QUOTA) {
            EXPECT_LT(m_sched.in_flight, uct_nprdma_sched_quota(&m_sched));
        }

        size_t length = std::min(wanted->left,
                                 uct_nprdma_sched_slice(&m_sched) + extra);
        wanted->left -= length;
        bool is_last  = wanted->left == 0;
        sent[wanted->ep] += length;
        flights.push_back({wanted->ep, length});
        m_model.posted(wanted, length);
        uct_nprdma_sched_posted(&m_sched, ep, next, length, is_last);
        if (is_last) {
            ops.erase(std::find_if(ops.begin(), ops.end(),
                                   [&](const std::unique_ptr<operation> &op) {
                                       return op.get() == wanted;
                                   }));
        }
        return true;
    }

    void done(size_t index)
    {
        flight f = flights[index];
        flights.erase(flights.begin() + index);
        m_model.done(f);
        uct_nprdma_sched_done(&m_sched, &m_eps[f.ep], f.length);
    }

    /* It has left the NIC and comes back */
    void again(size_t index)
    {
        flight f = flights[index];
        done(index);
        m_model.again(f.ep, f.length);
        uct_nprdma_sched_again(&m_sched, &m_eps[f.ep], f.length);
        flights.push_back(f);
    }

    void block(unsigned ep, bool is_blocked)
    {
        m_model.block(ep, is_blocked);
        is_blocked ? uct_nprdma_sched_block(&m_sched, &m_eps[ep]) :
                     uct_nprdma_sched_unblock(&m_sched, &m_eps[ep]);
    }

    void compare()
    {
        size_t in_flight = 0;

        for (const flight &f : flights) {
            in_flight += f.length;
        }
        ASSERT_EQ(in_flight, m_sched.in_flight);
        ASSERT_EQ(m_model.in_flight(), m_sched.in_flight);
        ASSERT_EQ(m_model.budget(), m_sched.budget);
        ASSERT_EQ(m_model.num_busy(), m_sched.num_busy);
        for (size_t i = 0; i < m_eps.size(); ++i) {
            ASSERT_EQ(m_model.ep(i).place != 0, m_eps[i].is_ready != 0) << i;
            ASSERT_EQ(m_model.ep(i).deficit, m_eps[i].deficit) << i;
            ASSERT_LE(m_eps[i].num_skips, UCT_NPRDMA_SCHED_MAX_SKIPS);
        }
    }

    uct_nprdma_sched_t &sched() { return m_sched; }

    std::vector<std::unique_ptr<operation>> ops;
    std::vector<flight>                     flights;
    std::vector<uint64_t>                   sent; /* By endpoint */

private:
    reference                          m_model;
    uct_nprdma_sched_t                 m_sched;
    std::vector<uct_nprdma_sched_ep_t> m_eps;
    size_t                             m_quota;
    uct_nprdma_sched_urgent_t          m_urgent = {};
};

class test_sched : public ::testing::Test {
protected:
    size_t below(size_t limit) { return m_random() % limit; }

    void random_step(both &b, size_t num_eps)
    {
        switch (below(10)) {
        case 0:
            b.begin((below(3) == 0) ? 1 + below(3) : 0, below(20) == 0,
                    (below(4) == 0) ? 1 + below(2) : 0);
            break;
        case 1:
        case 2:
            b.add(below(num_eps),
                  1 + below((below(2) == 0) ? slice : 8 * slice),
                  below(3) * below(20));
            break;
        case 3:
            if (!b.ops.empty() && (below(4) == 0)) {
                b.remove(below(b.ops.size()));
            }
            break;
        case 4:
            b.block(below(num_eps), below(3) == 0);
            break;
        case 5:
        case 6:
            if (!b.flights.empty()) {
                (below(8) == 0) ? b.again(below(b.flights.size())) :
                                  b.done(below(b.flights.size()));
            }
            break;
        default:
            b.post(below(head + 1));
        }
    }

    std::mt19937_64 m_random;
};

} // namespace

/* Ten thousand sequences, each of its own seed, number of endpoints and
 * quota */
TEST_F(test_sched, random_sequences)
{
    uint64_t posted = 0, skips = 0, full = 0;

    for (uint64_t seed = 1; seed <= 10000; ++seed) {
        m_random.seed(seed);
        unsigned num_eps      = 1 + below(6);
        const size_t quotas[] = {UCT_NPRDMA_SCHED_AUTO,
                                 UCT_NPRDMA_SCHED_NO_QUOTA, 1, 3 * slice,
                                 1 + below(20 * slice)};
        both b(quotas[below(5)], num_eps);

        b.begin(false);
        for (int i = 0; i < 100; ++i) {
            random_step(b, num_eps);
            ASSERT_NO_FATAL_FAILURE(b.compare()) << "seed " << seed;
            ASSERT_FALSE(HasFailure()) << "seed " << seed << " step " << i;
        }
        for (uint64_t bytes : b.sent) {
            posted += bytes > 0;
        }
        skips += b.sched().num_skips;
        full  += b.sched().num_full;
    }

    /* The sequences reach what they are for */
    EXPECT_LT(10000u, posted);
    EXPECT_LT(1000u, skips);
    EXPECT_LT(1000u, full);
}
