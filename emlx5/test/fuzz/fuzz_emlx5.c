/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The emulated adapter as a hostile guest sees it: registers, commands, work
 * requests, and the memory that all of them are in. And as a broken QEMU sees
 * it: messages. */

#include "fuzz.h"

#include "base/emlx5_log.h"
#include "bus/emlx5_loop.h"
#include "engine/emlx5_sq.h"
#include "fake_host.h"
#include "object/emlx5_cq.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_mkey.h"
#include "object/emlx5_reset.h"

enum {
    FUZZ_MEMORY    = 32 << 10, /* of a guest that inputs reach */
    FUZZ_EQ_RING   = FAKE_BASE,
    FUZZ_CQ_RING   = FAKE_BASE + 0x1000,
    FUZZ_QP_RING   = FAKE_BASE + 0x2000,
    FUZZ_QP_DBR    = FAKE_BASE + 0x3000,
    FUZZ_CMDQ      = FAKE_BASE + 0x4000,
    FUZZ_DATA      = FAKE_BASE + 0x5000,
    FUZZ_LOG_QUEUE = 4,
    FUZZ_UAR       = EMLX5_FIRST_UAR,
    FUZZ_WORK      = 200,      /* at once; more is left for the next step */
    FUZZ_STEPS     = 40
};

typedef enum {
    FUZZ_WRITE_MEMORY, FUZZ_COMMAND, FUZZ_REGISTER, FUZZ_POST, FUZZ_RUN,
    FUZZ_MESSAGE, FUZZ_ACTIONS
} fuzz_action_t;

static fake_host_t *fuzz_fake[2];
static emlx5_fabric_t fuzz_fabric;
static uint32_t fuzz_qpn[2];
static emlx5_loop_t fuzz_loop;
static emlx5_vfio_t fuzz_vfio;

/* --- what a good driver has made -------------------------------------------*/

static emlx5_pages_t fuzz_ring(uint64_t bus, uint64_t size)
{
    emlx5_pages_t pages;
    uint8_t list[8];

    emlx5_put_be64(list, bus);
    FUZZ_CHECK(emlx5_pages_init(&pages, list, 8, 0, 0, size) == 0);
    return pages;
}

static emlx5_cq_t *fuzz_make_cq(emlx5_hca_t *hca)
{
    emlx5_pages_t ring = fuzz_ring(FUZZ_EQ_RING, EMLX5_PAGE);
    uint8_t context[EMLX5_CQC_SIZE] = {0};
    emlx5_eq_t *eq = emlx5_eq_create(hca, &ring);
    emlx5_cq_t *cq;

    FUZZ_CHECK(eq != NULL);
    eq->log_size  = 6;
    eq->uar       = FUZZ_UAR;
    eq->events[0] = UINT64_MAX;
    EMLX5_SET(context, cqc, log_cq_size, 6);
    EMLX5_SET(context, cqc, uar_page, FUZZ_UAR);
    EMLX5_SET(context, cqc, c_eqn_or_apu_element, eq->number);
    EMLX5_SET(context, cqc, dbr_addr, FUZZ_QP_DBR + 64);
    ring = fuzz_ring(FUZZ_CQ_RING, EMLX5_PAGE);
    cq   = emlx5_cq_create(hca, context, &ring);
    FUZZ_CHECK(cq != NULL);
    return cq;
}

/* A key of the memory that inputs reach, with bus addresses */
static void fuzz_make_mkey(emlx5_hca_t *hca)
{
    uint8_t context[EMLX5_MKC_SIZE] = {0};

    EMLX5_SET(context, mkc, lr, 1);
    EMLX5_SET(context, mkc, lw, 1);
    EMLX5_SET(context, mkc, rr, 1);
    EMLX5_SET(context, mkc, rw, 1);
    EMLX5_SET(context, mkc, a, 1);
    EMLX5_SET(context, mkc, umr_en, 1);
    EMLX5_SET(context, mkc, start_addr, FUZZ_DATA);
    EMLX5_SET(context, mkc, len, EMLX5_PAGE);
    FUZZ_CHECK(emlx5_mkey_create(hca, context, 16, NULL, 0) != NULL);
}

static emlx5_qp_t *fuzz_make_qp(emlx5_hca_t *hca, emlx5_st_t st, uint16_t lid)
{
    emlx5_pages_t ring = fuzz_ring(FUZZ_QP_RING, EMLX5_PAGE);
    uint8_t context[EMLX5_SIZE(qpc)] = {0};
    emlx5_cq_t *cq = fuzz_make_cq(hca);
    emlx5_qp_t *qp;

    EMLX5_SET(context, qpc, st, st);
    EMLX5_SET(context, qpc, uar_page, FUZZ_UAR);
    EMLX5_SET(context, qpc, log_rq_size, FUZZ_LOG_QUEUE);
    EMLX5_SET(context, qpc, log_rq_stride, 2);
    EMLX5_SET(context, qpc, log_sq_size, FUZZ_LOG_QUEUE);
    EMLX5_SET(context, qpc, cqn_snd, cq->number);
    EMLX5_SET(context, qpc, cqn_rcv, cq->number);
    EMLX5_SET(context, qpc, dbr_addr, FUZZ_QP_DBR);
    EMLX5_SET(context, qpc, rre, 1);
    EMLX5_SET(context, qpc, rwe, 1);
    EMLX5_SET(context, qpc, rae, 1);
    EMLX5_SET(context + EMLX5_OFFSET(qpc, primary_address_path), ads, rlid,
              lid);
    EMLX5_SET(context + EMLX5_OFFSET(qpc, primary_address_path), ads,
              ack_timeout, 1);
    qp = emlx5_qp_create(hca, context, &ring);
    FUZZ_CHECK(qp != NULL);
    emlx5_sq_attach(qp);
    qp->state = EMLX5_QP_RTS;
    return qp;
}

static void fuzz_make(void)
{
    emlx5_dma_config_t config = {.min_tlp = 64, .max_tlp = 256,
                                 .reorder_reads = 1, .seed = 1};
    int i;

    emlx5_log_level = -1;
    for (i = 0; i < 2; ++i) {
        fuzz_fake[i] = fake_host_create(&config, i + 1);
        emlx5_fabric_add(&fuzz_fabric, &fuzz_fake[i]->hca);
    }
    /* Without a connection: what it sends goes nowhere, its DMA fails */
    FUZZ_CHECK(emlx5_conn_init(&fuzz_vfio.conn) == 0);
    FUZZ_CHECK(emlx5_hca_init(&fuzz_vfio.hca, &fuzz_vfio.host, &config, 3) ==
               0);
    emlx5_cmdq_init(&fuzz_vfio.hca);
    emlx5_irq_init(&fuzz_vfio.irq);
    emlx5_config_init(&fuzz_vfio.config);
    fuzz_vfio.loop = &fuzz_loop;
    emlx5_loop_add(&fuzz_loop, &fuzz_vfio);
}

/* An input has the same effect each time. */
static void fuzz_repeat_numbers(emlx5_hca_t *hca)
{
    emlx5_table_t *tables[] = {&hca->eqs, &hca->cqs, &hca->mkeys, &hca->srqs,
                               &hca->qps, &hca->pds, &hca->tds, &hca->xrcds,
                               &hca->uars, &hca->counters};
    unsigned i;

    for (i = 0; i < sizeof(tables) / sizeof(tables[0]); ++i) {
        tables[i]->next = tables[i]->first;
    }
    hca->dma.random.state = 1;
}

static void fuzz_begin(emlx5_st_t st)
{
    emlx5_qp_t *qp[2];
    emlx5_hca_t *hca;
    int i;

    for (i = 0; i < 2; ++i) {
        hca = &fuzz_fake[i]->hca;
        emlx5_reset(hca);
        fuzz_repeat_numbers(hca);
        memset(fuzz_fake[i]->memory, 0, FUZZ_MEMORY);
        hca->cmdq = FUZZ_CMDQ;
        fuzz_make_mkey(hca);
        qp[i]       = fuzz_make_qp(hca, st, 2 - i);
        fuzz_qpn[i] = qp[i]->number;
    }
    qp[0]->remote = qp[1]->number;
    qp[1]->remote = qp[0]->number;
    emlx5_reset(&fuzz_vfio.hca);
}

/* --- what a bad one does ---------------------------------------------------*/

static void fuzz_write_memory(fuzz_reader_t *reader, fake_host_t *fake)
{
    uint16_t offset = (fuzz_read_u8(reader) << 8) | fuzz_read_u8(reader);
    uint8_t length  = fuzz_read_u8(reader);

    fuzz_read(reader, fake->memory + (offset % FUZZ_MEMORY), length);
}

static void fuzz_command(fuzz_reader_t *reader, fake_host_t *fake)
{
    static uint8_t out[EMLX5_MAX_CMD_OUT];
    uint8_t in[512] = {0};
    uint16_t op     = (fuzz_read_u8(reader) << 8) | fuzz_read_u8(reader);
    uint32_t skip   = fuzz_read_u8(reader);
    uint32_t length = fuzz_read_u8(reader);

    fuzz_read(reader, in + skip, length);
    fake_command(fake, op, in, skip + length, out);
}

static void fuzz_register(fuzz_reader_t *reader, emlx5_hca_t *hca)
{
    uint32_t page   = fuzz_read_u8(reader) % 20;
    uint32_t offset = (fuzz_read_u8(reader) << 8) | fuzz_read_u8(reader);
    uint32_t length = 1u << (fuzz_read_u8(reader) % 5);
    uint8_t data[16];

    fuzz_read(reader, data, sizeof(data));
    emlx5_bar_write(hca, (page * EMLX5_PAGE) + (offset % EMLX5_PAGE), data,
                    length);
    emlx5_bar_read(hca, (page * EMLX5_PAGE) + (offset % EMLX5_PAGE), data,
                   length);
}

/* A request behind those that are there, and a receive of the peer */
static void fuzz_post(fuzz_reader_t *reader, int which)
{
    fake_host_t *fake = fuzz_fake[which];
    emlx5_qp_t *qp    = emlx5_table_get(&fake->hca.qps,
                                        fuzz_qpn[which]);
    uint8_t *ring     = fake_at(fake, FUZZ_QP_RING, EMLX5_PAGE);
    uint8_t *record   = fake_at(fake, FUZZ_QP_DBR, 8);
    uint8_t blocks    = fuzz_read_u8(reader) % 4;
    uint32_t begin    = 64 << FUZZ_LOG_QUEUE, i;
    uint16_t producer = emlx5_be32(record + 4);

    for (i = 0; i < blocks; ++i, ++producer) {
        fuzz_read(reader, ring + begin +
                          (64 * (producer & ((1 << FUZZ_LOG_QUEUE) - 1))), 64);
    }
    emlx5_put_be32(record + 4, producer);
    emlx5_put_be32(record, emlx5_be32(record) + (fuzz_read_u8(reader) & 1));
    emlx5_sq_ring(&fake->hca, FUZZ_UAR, (qp != NULL) ? qp->number : 0);
}

static void fuzz_message(fuzz_reader_t *reader)
{
    emlx5_conn_t *conn = &fuzz_vfio.conn;
    uint8_t head[EMLX5_MESSAGE_HEADER];
    int i;

    fuzz_read(reader, head, sizeof(head));
    head[6] = head[7] = 0;
    conn->broken = 1;
    if (emlx5_header_read(&conn->header, head) != 0) {
        return;
    }
    memcpy(conn->in, head, sizeof(head));
    fuzz_read(reader, conn->in + sizeof(head),
              conn->header.size - sizeof(head));
    emlx5_vfio_handle(&fuzz_vfio);
    for (i = 0; (i < FUZZ_WORK) && emlx5_queue_run(&fuzz_vfio.hca.queue); ++i) {
    }
    emlx5_conn_discard(conn);
}

static void fuzz_act(fuzz_reader_t *reader)
{
    uint8_t byte      = fuzz_read_u8(reader);
    int which         = byte >> 7;
    fake_host_t *fake = fuzz_fake[which];

    switch (byte % FUZZ_ACTIONS) {
    case FUZZ_WRITE_MEMORY:
        fuzz_write_memory(reader, fake);
        break;
    case FUZZ_COMMAND:
        fuzz_command(reader, fake);
        break;
    case FUZZ_REGISTER:
        fuzz_register(reader, &fake->hca);
        break;
    case FUZZ_POST:
        if (emlx5_table_get(&fake->hca.qps, fuzz_qpn[which]) != NULL) {
            fuzz_post(reader, which);
        }
        break;
    case FUZZ_RUN:
        fake_run(fake, FUZZ_WORK);
        break;
    default:
        fuzz_message(reader);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const emlx5_st_t types[] = {EMLX5_ST_RC, EMLX5_ST_UC, EMLX5_ST_UD,
                                       EMLX5_ST_XRC, EMLX5_ST_UMR};
    fuzz_reader_t reader = {data, size};
    int i;

    if (fuzz_fake[0] == NULL) {
        fuzz_make();
    }
    fuzz_begin(types[fuzz_read_u8(&reader) % 5]);
    for (i = 0; (i < FUZZ_STEPS) && (reader.left > 0); ++i) {
        fuzz_act(&reader);
    }
    for (i = 0; i < 2; ++i) {
        fake_run(fuzz_fake[i], FUZZ_WORK);
        FUZZ_CHECK(fuzz_fake[i]->crossing == 0);
        FUZZ_CHECK(fuzz_fake[i]->longest <= EMLX5_DMA_TLP);
    }
    return 0;
}
