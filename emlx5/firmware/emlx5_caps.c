/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "firmware/emlx5_caps.h"
#include "base/emlx5_field.h"
#include "base/emlx5_limits.h"
#include "base/emlx5_time.h"

/* Field of the general capabilities */
#define EMLX5_CAP(_field, _value) {EMLX5_FIELD(cmd_hca_cap, _field), _value}

/* What is not named is 0: the function does not have it. So a new feature of a
 * driver needs nothing here. */
static const struct {
    uint32_t field, value;
} emlx5_caps[] = {
    /* InfiniBand: no network device, no table of GIDs; the port by commands
     * rather than by management datagrams */
    EMLX5_CAP(port_type, 0),
    EMLX5_CAP(num_ports, 1),
    EMLX5_CAP(ib_virt, 1),
    EMLX5_CAP(vport_counters, 1),

    EMLX5_CAP(log_max_qp, EMLX5_LOG_MAX_QP),
    EMLX5_CAP(log_max_qp_sz, EMLX5_LOG_MAX_QP_SIZE),
    EMLX5_CAP(log_max_srq, EMLX5_LOG_MAX_SRQ),
    EMLX5_CAP(log_max_srq_sz, EMLX5_LOG_MAX_SRQ_SIZE),
    EMLX5_CAP(log_max_cq, EMLX5_LOG_MAX_CQ),
    EMLX5_CAP(log_max_cq_sz, EMLX5_LOG_MAX_CQ_SIZE),
    EMLX5_CAP(log_max_eq, EMLX5_LOG_MAX_EQ),
    EMLX5_CAP(max_num_eqs, 1 << EMLX5_LOG_MAX_EQ),
    EMLX5_CAP(log_max_eq_sz, EMLX5_LOG_MAX_EQ_SIZE),
    EMLX5_CAP(log_max_mkey, EMLX5_LOG_MAX_MKEY),
    EMLX5_CAP(log_max_pd, EMLX5_LOG_MAX_PD),
    EMLX5_CAP(log_max_xrcd, EMLX5_LOG_MAX_XRCD),
    EMLX5_CAP(log_max_transport_domain, EMLX5_LOG_MAX_TD),
    EMLX5_CAP(log_max_msg, EMLX5_LOG_MAX_MSG),
    EMLX5_CAP(log_max_ra_req_qp, 4),
    EMLX5_CAP(log_max_ra_res_qp, 4),
    EMLX5_CAP(log_max_klm_list_size, 16),
    EMLX5_CAP(max_wqe_sz_sq, 512),
    EMLX5_CAP(max_wqe_sz_rq, 512),
    EMLX5_CAP(log_pg_sz, 12),
    EMLX5_CAP(local_ca_ack_delay, 15),
    EMLX5_CAP(device_frequency_khz, EMLX5_CLOCK_KHZ),
    EMLX5_CAP(cq_moderation, 1),
    EMLX5_CAP(cq_resize, 1),
    EMLX5_CAP(xrc, 1),

    /* Doorbells of 8 bytes: without "bf" no request comes by the register */
    EMLX5_CAP(log_bf_reg_size, 9),
    /* Completions have the QP's number rather than the program's own */
    EMLX5_CAP(cqe_version, 0),
    /* UCX's RC transport asks for remote atomics */
    EMLX5_CAP(atomic, 1),
    /* From 7.x on, the driver takes dma-bufs only if there are page faults; no
     * transport offers them, because that page of capabilities is empty */
    EMLX5_CAP(pg, 1),
    EMLX5_CAP(umr_indirect_mkey_disabled, 1),
};

void emlx5_caps_general(uint8_t *caps)
{
    unsigned i;

    for (i = 0; i < sizeof(emlx5_caps) / sizeof(emlx5_caps[0]); ++i) {
        emlx5_field_set(caps, emlx5_caps[i].field, emlx5_caps[i].value);
    }
}

void emlx5_caps_atomic(uint8_t *caps)
{
    enum { EMLX5_CAS_AND_ADD = 3, EMLX5_8_BYTES = 8 };

    /* 8 bytes, in the host's order */
    EMLX5_SET(caps, atomic_caps, supported_atomic_req_8B_endianness_mode_1, 1);
    EMLX5_SET(caps, atomic_caps, atomic_req_8B_endianness_mode, 1);
    EMLX5_SET(caps, atomic_caps, atomic_operations, EMLX5_CAS_AND_ADD);
    EMLX5_SET(caps, atomic_caps, atomic_size_qp, EMLX5_8_BYTES);
}
