/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "svc_requester.h"

extern "C" {
#include "npemu.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"
}

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <unistd.h>

namespace {

/* What the interfaces of the transport use */
constexpr uint32_t qkey        = 0x4e505244;
constexpr uint32_t psn         = 77;
constexpr int      num_replies = UCT_NPRDMA_SVC_MAX_REPLIES;
constexpr size_t   slot_size   = UCT_NPRDMA_SVC_SLOT(UCT_NPRDMA_SVC_MAX_PIECE);

enum command : int { SEND, RECEIVE, DATAGRAM, LEAVE, AGAIN };

void check(bool condition, const char *what)
{
    if (!condition) {
        throw std::runtime_error(what);
    }
}

struct target_address {
    uct_nprdma_dev_addr_t   dev;
    uct_nprdma_iface_addr_t iface;
    uct_nprdma_conn_kind    kind;
    bool                    confirms;
};

/* The requester's objects of the emulated RNIC: device, queue pairs, memory */
class connection {
public:
    /* With the nonce, and so the name, of an earlier one, or with a new one */
    explicit connection(const target_address &target, uint64_t nonce = 0) :
        m_target(target), m_nonce(nonce)
    {
        open();
        if (m_nonce == 0) {
            m_nonce = ((uint64_t)getpid() << 32) | m_rc->qp_num;
        }
        connect();
    }

    uint64_t nonce() const { return m_nonce; }

    bool send(const std::vector<char> &message)
    {
        return send_by(m_rc, {}, message);
    }

    std::vector<char> receive()
    {
        ibv_wc wc = wait(m_recv_cq);

        check(wc.status == IBV_WC_SUCCESS, "a reply failed");
        std::vector<char> reply(slot(wc.wr_id), slot(wc.wr_id) + wc.byte_len);
        post(m_rc, wc.wr_id);
        return reply;
    }

    void leave()
    {
        check(npemu_destroy_qp(m_rc) == 0, "cannot destroy a QP");
    }

    void send_datagram(const std::vector<char> &packet)
    {
        ibv_send_wr wr      = {};
        ibv_ah_attr ah_attr = {};

        ah_attr.dlid      = m_target.dev.lid;
        ah_attr.port_num  = 1;
        ah_attr.is_global = 1;
        memcpy(ah_attr.grh.dgid.raw, m_target.dev.gid, 16);
        if (m_ah == nullptr) {
            m_ah = npemu_create_ah(m_pd, &ah_attr);
            check(m_ah != nullptr, "cannot create an address handle");
        }

        wr.send_flags        = IBV_SEND_SOLICITED;
        wr.wr.ud.ah          = m_ah;
        wr.wr.ud.remote_qpn  = m_target.iface.ud_qpn;
        wr.wr.ud.remote_qkey = qkey;
        check(send_by(m_ud, wr, packet), "cannot send a datagram");
    }

private:
    /* Slot 0 is the source of sends, the other slots are receives */
    char *slot(size_t index) { return &m_memory[index * slot_size]; }

    bool
    send_by(ibv_qp *qp, ibv_send_wr wr, const std::vector<char> &message)
    {
        ibv_sge sge = {(uintptr_t)slot(0), (uint32_t)message.size(),
                       m_mr->lkey};
        ibv_send_wr *bad;

        std::copy(message.begin(), message.end(), slot(0));
        wr.sg_list     = &sge;
        wr.num_sge     = !message.empty();
        wr.opcode      = IBV_WR_SEND;
        wr.send_flags |= IBV_SEND_SIGNALED;
        return (ibv_post_send(qp, &wr, &bad) == 0) &&
               (wait(m_send_cq).status == IBV_WC_SUCCESS);
    }

    void open()
    {
        ibv_device **list = npemu_get_device_list(nullptr);
        check(list != nullptr, "no device");
        m_context = npemu_open_device(list[0]);
        npemu_free_device_list(list);
        check(m_context != nullptr, "cannot open the device");

        m_memory.resize((num_replies + 2) * slot_size);
        m_pd      = npemu_alloc_pd(m_context);
        m_mr      = npemu_reg_mr(m_pd, m_memory.data(), m_memory.size(),
                                 IBV_ACCESS_LOCAL_WRITE);
        m_send_cq = npemu_create_cq(m_context, 2, nullptr, nullptr, 0);
        m_recv_cq = npemu_create_cq(m_context, num_replies + 4, nullptr,
                                    nullptr, 0);
        check(m_mr && m_send_cq && m_recv_cq, "cannot set up the device");
        m_ud = create_qp(IBV_QPT_UD);
        m_rc = create_qp(IBV_QPT_RC);
    }

    ibv_qp *create_qp(ibv_qp_type type)
    {
        ibv_qp_init_attr init = {};
        ibv_qp_attr attr      = {};

        init.send_cq          = m_send_cq;
        init.recv_cq          = m_recv_cq;
        init.qp_type          = type;
        init.cap.max_send_wr  = 2;
        init.cap.max_recv_wr  = num_replies + 1;
        init.cap.max_send_sge = init.cap.max_recv_sge = 1;
        ibv_qp *qp = npemu_create_qp(m_pd, &init);
        check(qp != nullptr, "cannot create a queue pair");

        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey     = qkey;
        /* The target probes its peers with empty WRITEs */
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        modify(qp, attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                         ((type == IBV_QPT_UD) ? IBV_QP_QKEY :
                                                 IBV_QP_ACCESS_FLAGS));
        if (type == IBV_QPT_UD) {
            attr.qp_state = IBV_QPS_RTR;
            modify(qp, attr, IBV_QP_STATE);
            attr.qp_state = IBV_QPS_RTS;
            modify(qp, attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
        }
        return qp;
    }

    static void modify(ibv_qp *qp, ibv_qp_attr attr, int mask)
    {
        check(npemu_modify_qp(qp, &attr, mask) == 0, "cannot modify a QP");
    }

    void post(ibv_qp *qp, size_t index)
    {
        ibv_sge sge    = {(uintptr_t)slot(index), slot_size, m_mr->lkey};
        ibv_recv_wr wr = {};
        ibv_recv_wr *bad;

        wr.wr_id   = index;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        check(ibv_post_recv(qp, &wr, &bad) == 0, "cannot post a receive");
    }

    bool poll(ibv_cq *cq, ibv_wc *wc, std::chrono::milliseconds limit)
    {
        time_limit left(limit);

        while (ibv_poll_cq(cq, 1, wc) == 0) {
            if (left.is_over()) {
                return false;
            }
            std::this_thread::yield();
        }
        return true;
    }

    ibv_wc wait(ibv_cq *cq)
    {
        ibv_wc wc;
        check(poll(cq, &wc, patience), "no completion");
        return wc;
    }

    void send_packet(uint8_t type)
    {
        uct_nprdma_cm_packet_t packet = {};

        /* Both sides are on the one port of this machine */
        packet.magic     = UCT_NPRDMA_CM_MAGIC;
        packet.version   = UCT_NPRDMA_WIRE_VERSION;
        packet.type      = type;
        packet.kind      = m_target.kind;
        packet.src_nonce = m_nonce;
        packet.dst_nonce = m_target.iface.nonce;
        packet.conn_id   = 1 << 20;
        packet.ud_qpn    = m_ud->qp_num;
        packet.qp.qpn    = m_rc->qp_num;
        packet.qp.psn    = psn;
        packet.qp.dev    = m_target.dev;
        send_datagram({(char*)&packet, (char*)(&packet + 1)});
    }

    void connect()
    {
        uct_nprdma_cm_packet_t reply;
        ibv_wc wc;

        /* Datagrams get lost */
        post(m_ud, num_replies + 1);
        do {
            send_packet(UCT_NPRDMA_CM_REQ);
        } while (!poll(m_recv_cq, &wc, std::chrono::milliseconds(1000)));
        memcpy(&reply, slot(num_replies + 1) + UCT_NPRDMA_GRH_LEN,
               sizeof(reply));
        check(reply.type == UCT_NPRDMA_CM_REP, "not accepted");

        ibv_qp_attr attr        = {};
        attr.qp_state           = IBV_QPS_RTR;
        attr.path_mtu           = (ibv_mtu)m_target.dev.mtu;
        attr.dest_qp_num        = reply.qp.qpn;
        attr.rq_psn             = reply.qp.psn;
        attr.min_rnr_timer      = 1;
        attr.ah_attr.dlid       = m_target.dev.lid;
        attr.ah_attr.port_num   = 1;
        attr.ah_attr.is_global  = 1;
        memcpy(attr.ah_attr.grh.dgid.raw, m_target.dev.gid, 16);
        modify(m_rc, attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                           IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        attr                    = {};
        attr.qp_state           = IBV_QPS_RTS;
        attr.timeout            = 9; /* 2 ms */
        attr.retry_cnt          = 7;
        attr.rnr_retry          = 7;
        attr.sq_psn             = psn;
        modify(m_rc, attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                           IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC);
        for (int i = 1; i <= num_replies; ++i) {
            post(m_rc, i);
        }
        if (m_target.confirms) {
            send_packet(UCT_NPRDMA_CM_RTU);
        }
    }

    target_address    m_target;
    uint64_t          m_nonce;
    std::vector<char> m_memory;
    ibv_context       *m_context = nullptr;
    ibv_pd            *m_pd      = nullptr;
    ibv_mr            *m_mr      = nullptr;
    ibv_cq            *m_send_cq = nullptr;
    ibv_cq            *m_recv_cq = nullptr;
    ibv_qp            *m_ud      = nullptr;
    ibv_qp            *m_rc      = nullptr;
    ibv_ah            *m_ah      = nullptr;
};

/* Executes the parent's commands until the socket is closed */
PEER_FUNCTION(requester)
{
    target_address target = parent.get<target_address>();
    std::unique_ptr<connection> conn(new connection(target));

    parent.put(0);
    for (;;) {
        switch (parent.get<command>()) {
        case SEND:
            parent.put((int)conn->send(parent.get_bytes()));
            break;
        case RECEIVE:
            parent.put_bytes(conn->receive());
            break;
        case DATAGRAM:
            conn->send_datagram(parent.get_bytes());
            parent.put(0);
            break;
        case LEAVE:
            conn->leave();
            parent.put(0);
            break;
        case AGAIN:
            conn.reset(new connection(target, conn->nonce()));
            parent.put(0);
            break;
        }
    }
}

} // namespace

svc_requester::svc_requester(const entity &target, uct_nprdma_conn_kind kind,
                             bool confirms) :
    m_peer("requester")
{
    target_address address;

    address.kind     = kind;
    address.confirms = confirms;
    uct_iface_get_device_address(target.iface(),
                                 (uct_device_addr_t*)&address.dev);
    uct_iface_get_address(target.iface(), (uct_iface_addr_t*)&address.iface);
    m_peer.put(address);
    m_peer.get<int>();
}

bool svc_requester::send(const bytes &message)
{
    ++m_sn;
    m_peer.put(SEND);
    m_peer.put_bytes(message);
    return m_peer.get<int>();
}

svc_requester::bytes svc_requester::receive()
{
    m_peer.put(RECEIVE);
    return m_peer.get_bytes();
}

void svc_requester::datagram(const bytes &packet)
{
    m_peer.put(DATAGRAM);
    m_peer.put_bytes(packet);
    m_peer.get<int>();
}

void svc_requester::leave()
{
    m_peer.put(LEAVE);
    m_peer.get<int>();
}

void svc_requester::again()
{
    m_sn = 0;
    m_peer.put(AGAIN);
    m_peer.get<int>();
}

void
svc_requester::post(uct_nprdma_svc_request_t request, const bytes &payload)
{
    request.sn = next_sn();
    EXPECT_TRUE(send(svc_message(request, payload)));
}

svc_requester::bytes
svc_requester::call(uct_nprdma_svc_request_t request, const bytes &payload)
{
    request.flags |= UCT_NPRDMA_SVC_FLAG_REPLY;
    post(request, payload);
    return receive();
}

int svc_requester::status(const uct_nprdma_svc_request_t &request,
                          const bytes &payload)
{
    bytes reply = call(request, payload);
    return ((uct_nprdma_svc_reply_t*)reply.data())->status;
}

svc_requester::bytes svc_message(const uct_nprdma_svc_request_t &request,
                                 const svc_requester::bytes &payload)
{
    svc_requester::bytes message((const char*)&request,
                                 (const char*)(&request + 1));

    message.insert(message.end(), payload.begin(), payload.end());
    return message;
}

uct_nprdma_svc_request_t
svc_request(uint8_t type, uint64_t key, uint64_t address, uint32_t length)
{
    uct_nprdma_svc_request_t request = {};
    request.type    = type;
    request.key     = key;
    request.address = address;
    request.length  = length;
    return request;
}

uct_nprdma_svc_request_t svc_request(uint8_t type, const buffer &memory,
                                     size_t offset, uint32_t length)
{
    uct_nprdma_rkey_t key;

    memcpy(&key, memory.packed_key().data(), sizeof(key));
    return svc_request(type, key.key, memory.address(offset), length);
}
