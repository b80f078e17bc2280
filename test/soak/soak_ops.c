/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "soak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SOAK_AM_ID   7
#define SOAK_POISON  0xdb
#define SOAK_EDGE    0xe5

typedef enum soak_kind {
    SOAK_PUT,
    SOAK_GET,
    SOAK_ATOMIC,
    SOAK_SEND          /* Tagged or active message */
} soak_kind_t;

/* An operation of a batch */
typedef struct soak_op {
    soak_rank_t *rank;
    soak_kind_t kind;
    unsigned    peer;
    size_t      offset;      /* In the segment */
    size_t      length;
    char        *buffer;
    uint64_t    value;       /* Atomic: operand, and expected result */
    uint64_t    expected;
    uint64_t    reply;
    size_t      put_offset;  /* Get: the put that it checks */
    size_t      put_length;
    int         bad;
    int         done;
} soak_op_t;

/* The header of an active message */
typedef struct soak_am {
    uint64_t seed;
    uint64_t length;
} soak_am_t;

/* A message that is being received */
typedef struct soak_receive {
    soak_rank_t *rank;
    soak_am_t   am;
    char        *buffer;
} soak_receive_t;


/* ---- completion ---- */

/* Reports wrong data: its extent, and the place where it would be right */
static void soak_tell_get(soak_op_t *op, const char *when)
{
    const char *shadow   = op->rank->peers[op->peer].shadow;
    const char *expected = shadow + op->offset;
    size_t first         = op->length, last = 0, wrong = 0, i;
    const char *found;

    for (i = 0; i < op->length; ++i) {
        if (op->buffer[i] != expected[i]) {
            first = (first < i) ? first : i;
            last  = i;
            ++wrong;
        }
    }
    found = (wrong >= 8) ? memmem(shadow, SOAK_SEGMENT, op->buffer + first, 8) :
                           NULL;
    fprintf(stderr, "soak: rank %u: get of %zu bytes at %zu from rank %u, %s: "
            "%zu bytes are wrong, from %zu to %zu: 0x%02x, expected 0x%02x; "
            "%s%ld; put were %zu bytes at %zu; buffer is %p\n",
            op->rank->me, op->length,
            op->offset, op->peer, when, wrong, first, last,
            (uint8_t)op->buffer[first], (uint8_t)expected[first],
            (found != NULL) ? "they belong to " : "they are nowhere ",
            (found != NULL) ? (long)(found - shadow) : 0, op->put_length,
            op->put_offset, op->buffer);
}

static void soak_verify_get(soak_rank_t *rank, soak_op_t *op)
{
    const char *expected = rank->peers[op->peer].shadow + op->offset;
    size_t i;

    for (i = 1; i <= SOAK_GUARD; ++i) {
        if (((uint8_t)op->buffer[-(ssize_t)i] != SOAK_EDGE) ||
            ((uint8_t)op->buffer[op->length + i - 1] != SOAK_EDGE)) {
            soak_fail(rank, "get of %zu bytes wrote outside of its buffer",
                      op->length);
        }
    }
    op->bad = (memcmp(op->buffer, expected, op->length) != 0);
    if (op->bad) {
        soak_tell_get(op, "at its completion");
    }
    rank->result.gets += !op->bad;
}

static void soak_op_done(soak_op_t *op, ucs_status_t status)
{
    soak_rank_t *rank = op->rank;

    soak_status(rank, status, "operation");
    switch (op->kind) {
    case SOAK_GET:
        soak_verify_get(rank, op);
        break;
    case SOAK_ATOMIC:
        if (op->reply != op->expected) {
            soak_fail(rank, "atomic at rank %u found %lu, expected %lu",
                      op->peer, (unsigned long)op->reply,
                      (unsigned long)op->expected);
        }
        ++rank->result.atomics;
        break;
    default:
        /* The program may reuse the buffer: the transport must not access it
         * any more */
        memset(op->buffer, SOAK_POISON, op->length);
        break;
    }
    rank->result.bytes += op->length;
    op->done            = 1;
    --rank->outstanding;
}

static void soak_callback(void *request, ucs_status_t status, void *arg)
{
    ucp_request_free(request);
    soak_op_done(arg, status);
}

/* Handles the result of a UCP function that starts an operation */
static void soak_posted(soak_op_t *op, ucs_status_ptr_t answer)
{
    if (UCS_PTR_IS_ERR(answer)) {
        soak_status(op->rank, UCS_PTR_STATUS(answer), "post");
    } else if (answer == NULL) {
        soak_op_done(op, UCS_OK);
    }
}

static void soak_wait(soak_rank_t *rank)
{
    while (rank->outstanding > 0) {
        soak_progress(rank);
    }
}

static void soak_op_init(soak_rank_t *rank, soak_op_t *op, soak_kind_t kind,
                         unsigned peer)
{
    memset(op, 0, sizeof(*op));
    op->rank = rank;
    op->kind = kind;
    op->peer = peer;
    ++rank->outstanding;
}

/* Any alignment, and at times a page of its own */
static char *soak_take(soak_rank_t *rank, char *arena, size_t *used,
                       size_t length)
{
    size_t offset = *used + SOAK_GUARD + soak_below(&rank->random, 256);

    if (soak_below(&rank->random, 4) == 0) {
        offset = ((offset + 4095) & ~(size_t)4095) +
                 ((soak_below(&rank->random, 2) == 0) ? 0 :
                  4096 - (length % 4096));
    }
    *used = offset + length + SOAK_GUARD;
    return (*used <= SOAK_ARENA) ? arena + offset : NULL;
}


/* ---- put and get ---- */

static ucp_request_param_t soak_param(soak_op_t *op)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send      = soak_callback,
        .user_data    = op
    };

    return param;
}

static void soak_put(soak_rank_t *rank, soak_op_t *op)
{
    soak_peer_t *peer         = &rank->peers[op->peer];
    ucp_request_param_t param = soak_param(op);

    soak_posted(op, ucp_put_nbx(peer->ep, op->buffer, op->length,
                                peer->window + op->offset, peer->rkey, &param));
}

static void soak_get(soak_rank_t *rank, soak_op_t *op)
{
    soak_peer_t *peer         = &rank->peers[op->peer];
    ucp_request_param_t param = soak_param(op);

    memset(op->buffer - SOAK_GUARD, SOAK_EDGE, SOAK_GUARD);
    memset(op->buffer, SOAK_POISON, op->length);
    memset(op->buffer + op->length, SOAK_EDGE, SOAK_GUARD);
    soak_posted(op, ucp_get_nbx(peer->ep, op->buffer, op->length,
                                peer->window + op->offset, peer->rkey, &param));
}

/* Puts to places that do not overlap, because their order is not defined */
static unsigned soak_batch_puts(soak_rank_t *rank, soak_op_t *ops)
{
    size_t used[SOAK_MAX_RANKS] = {0};
    unsigned count              = 1 + soak_below(&rank->random, SOAK_BATCH);
    unsigned i, num             = 0;
    size_t offset, length;
    unsigned peer;
    char *buffer;

    for (i = 0; i < count; ++i) {
        peer   = soak_below(&rank->random, rank->config->ranks);
        length = soak_length(&rank->random);
        offset = used[peer] + soak_below(&rank->random, 5000);
        buffer = soak_take(rank, rank->source, &rank->source_used, length);
        if ((SOAK_WORDS + offset + length > SOAK_SEGMENT) || (buffer == NULL)) {
            continue;
        }

        used[peer] = offset + length;
        soak_op_init(rank, &ops[num], SOAK_PUT, peer);
        ops[num].offset = SOAK_WORDS + offset;
        ops[num].length = length;
        ops[num].buffer = buffer;
        soak_fill(buffer, length, soak_random(&rank->random));
        memcpy(rank->peers[peer].shadow + ops[num].offset, buffer, length);
        soak_put(rank, &ops[num++]);
    }
    return num;
}

static void soak_flush_done(void *request, ucs_status_t status, void *arg)
{
    soak_rank_t *rank = arg;

    ucp_request_free(request);
    soak_status(rank, status, "flush");
    --rank->outstanding;
}

static void soak_flush(soak_rank_t *rank)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send      = soak_flush_done,
        .user_data    = rank
    };
    ucs_status_ptr_t answer;

    ++rank->outstanding;
    answer = ucp_worker_flush_nbx(rank->worker, &param);
    if (UCS_PTR_IS_ERR(answer)) {
        soak_status(rank, UCS_PTR_STATUS(answer), "flush");
    } else if (answer == NULL) {
        --rank->outstanding;
    }
    soak_wait(rank);
}

/* Reads again, to find out whether the data is late or lost */
static void soak_look_again(soak_rank_t *rank, soak_op_t *op)
{
    op->rank = rank;
    ++rank->outstanding;
    soak_get(rank, op);
    soak_wait(rank);
    soak_fail(rank, "wrong data; %s when looked at again",
              op->bad ? "still wrong" : "right");
}

/* Gets everything that was put, and some of its surroundings */
static void soak_batch_gets(soak_rank_t *rank, const soak_op_t *puts,
                            unsigned num_puts, soak_op_t *ops)
{
    size_t begin, end;
    unsigned i;

    for (i = 0; i < num_puts; ++i) {
        begin = puts[i].offset;
        end   = begin + puts[i].length;
        if (soak_below(&rank->random, 3) == 0) {
            begin -= soak_below(&rank->random, begin - SOAK_WORDS + 1) % 300;
            end   += soak_below(&rank->random, SOAK_SEGMENT - end + 1) % 300;
        }

        soak_op_init(rank, &ops[i], SOAK_GET, puts[i].peer);
        ops[i].offset     = begin;
        ops[i].length     = end - begin;
        ops[i].put_offset = puts[i].offset;
        ops[i].put_length = puts[i].length;
        ops[i].buffer = soak_take(rank, rank->sink, &rank->sink_used,
                                  ops[i].length);
        if (ops[i].buffer == NULL) {
            soak_wait(rank);
            rank->sink_used = 0;
            ops[i].buffer   = soak_take(rank, rank->sink, &rank->sink_used,
                                        ops[i].length);
        }
        soak_get(rank, &ops[i]);
    }
    soak_wait(rank);
    for (i = 0; i < num_puts; ++i) {
        if (ops[i].bad) {
            soak_look_again(rank, &ops[i]);
        }
    }
    rank->result.puts += num_puts;
}


/* ---- atomics and flags ---- */

/* Each counter at most once in a batch, because the next atomic needs its
 * result */
static void soak_batch_atomics(soak_rank_t *rank, soak_op_t *ops)
{
    unsigned count            = soak_below(&rank->random, 8);
    unsigned first            = soak_below(&rank->random, SOAK_COUNTERS);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_REPLY_BUFFER,
        .cb.send      = soak_callback,
        .datatype     = ucp_dt_make_contig(8)
    };
    soak_peer_t *peer;
    uint64_t *counter;
    unsigned i;

    for (i = 0; i < count; ++i) {
        soak_op_init(rank, &ops[i], SOAK_ATOMIC,
                     soak_below(&rank->random, rank->config->ranks));
        peer               = &rank->peers[ops[i].peer];
        ops[i].offset      = ((first + i) % SOAK_COUNTERS) * 8;
        counter            = (uint64_t*)(peer->shadow + ops[i].offset);
        ops[i].value       = soak_random(&rank->random);
        ops[i].expected    = *counter;
        *counter          += ops[i].value;
        param.user_data    = &ops[i];
        param.reply_buffer = &ops[i].reply;
        soak_posted(&ops[i], ucp_atomic_op_nbx(peer->ep, UCP_ATOMIC_OP_ADD,
                                               &ops[i].value, 1,
                                               peer->window + ops[i].offset,
                                               peer->rkey, &param));
    }
    soak_wait(rank);
}

static void soak_put_word(soak_rank_t *rank, unsigned peer, size_t offset,
                          uint64_t value)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    soak_peer_t *to           = &rank->peers[peer];
    ucs_status_ptr_t answer;

    answer = ucp_put_nbx(to->ep, &value, sizeof(value), to->window + offset,
                         to->rkey, &param);
    if (UCS_PTR_IS_ERR(answer)) {
        soak_status(rank, UCS_PTR_STATUS(answer), "flag");
    }
    while ((answer != NULL) &&
           (ucp_request_check_status(answer) == UCS_INPROGRESS)) {
        ucp_worker_progress(rank->worker);
    }
    if (answer != NULL) {
        ucp_request_free(answer);
    }
}

static volatile uint64_t *
soak_own_word(soak_rank_t *rank, unsigned writer, size_t offset)
{
    return (volatile uint64_t*)(rank->window + ((size_t)writer * SOAK_SEGMENT) +
                                offset);
}

/* A flag is seen once, in order, and stays reset. A put that is executed twice
 * would be seen here. */
void soak_answer_flags(soak_rank_t *rank)
{
    volatile uint64_t *mailbox;
    soak_peer_t *peer;
    unsigned i;

    for (i = 0; i < rank->config->ranks; ++i) {
        peer    = &rank->peers[i];
        mailbox = soak_own_word(rank, i, SOAK_MAILBOX);
        if (*mailbox == 0) {
            continue;
        }
        if (*mailbox != peer->answered + 1) {
            soak_fail(rank, "flag %lu of rank %u after flag %lu",
                      (unsigned long)*mailbox, i,
                      (unsigned long)peer->answered);
        }
        *mailbox = 0;
        soak_put_word(rank, i, SOAK_ACK, ++peer->answered);
    }
}

static void soak_batch_flags(soak_rank_t *rank)
{
    unsigned i = soak_below(&rank->random, rank->config->ranks);

    if (*soak_own_word(rank, i, SOAK_ACK) == rank->peers[i].flag) {
        rank->result.flags += (rank->peers[i].flag > 0);
        soak_put_word(rank, i, SOAK_MAILBOX, ++rank->peers[i].flag);
    }
}


/* ---- messages ---- */

static void soak_received(soak_rank_t *rank, const void *buffer, size_t length,
                          uint64_t seed, uint64_t *count)
{
    size_t bad = soak_check(buffer, length, seed);

    if (bad < length) {
        soak_fail(rank, "message of %zu bytes: byte %zu is 0x%02x", length, bad,
                  ((const uint8_t*)buffer)[bad]);
    }
    ++*count;
    ++rank->received;
}

static void soak_tag_post(soak_rank_t *rank);

static void soak_tag_done(void *request, ucs_status_t status,
                          const ucp_tag_recv_info_t *info, void *arg)
{
    soak_rank_t *rank = arg;
    uint64_t seed     = info->sender_tag;

    ucp_request_free(request);
    if (status == UCS_ERR_CANCELED) {
        rank->tag_request = NULL;
        return;
    }
    soak_status(rank, status, "tag receive");
    soak_received(rank, rank->tag_buffer, info->length, seed,
                  &rank->result.tags);
    soak_tag_post(rank);
}

static void soak_tag_post(soak_rank_t *rank)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv      = soak_tag_done,
        .user_data    = rank
    };
    ucs_status_ptr_t answer;

    answer = ucp_tag_recv_nbx(rank->worker, rank->tag_buffer, SOAK_MAX_LENGTH,
                              0, 0, &param);
    if (UCS_PTR_IS_ERR(answer)) {
        soak_status(rank, UCS_PTR_STATUS(answer), "tag receive");
    }
    rank->tag_request = answer;
}

static void soak_am_done(void *request, ucs_status_t status, size_t length,
                         void *arg)
{
    soak_receive_t *receive = arg;

    soak_status(receive->rank, status, "AM data");
    ucp_request_free(request);
    soak_received(receive->rank, receive->buffer, length, receive->am.seed,
                  &receive->rank->result.ams);
    free(receive->buffer);
    free(receive);
}

static ucs_status_t
soak_am_arrived(void *arg, const void *header, size_t header_length, void *data,
                size_t length, const ucp_am_recv_param_t *param)
{
    soak_rank_t *rank                 = arg;
    ucp_request_param_t request_param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am   = soak_am_done
    };
    soak_receive_t *receive;
    ucs_status_ptr_t answer;
    soak_am_t am;

    memcpy(&am, header, sizeof(am));
    if ((header_length != sizeof(am)) || (length != am.length)) {
        soak_fail(rank, "AM of %zu bytes, not %lu", length,
                  (unsigned long)am.length);
    }
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        soak_received(rank, data, length, am.seed, &rank->result.ams);
        return UCS_OK;
    }

    receive                 = malloc(sizeof(*receive));
    receive->rank           = rank;
    receive->am             = am;
    receive->buffer         = malloc(length);
    request_param.user_data = receive;
    answer = ucp_am_recv_data_nbx(rank->worker, data, receive->buffer, length,
                                  &request_param);
    if (UCS_PTR_IS_ERR(answer)) {
        soak_status(rank, UCS_PTR_STATUS(answer), "AM data");
    }
    return UCS_INPROGRESS;
}

static void soak_batch_sends(soak_rank_t *rank, soak_op_t *ops)
{
    unsigned count            = soak_below(&rank->random, 4);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send      = soak_callback
    };
    soak_am_t ams[4];
    ucs_status_ptr_t answer;
    soak_peer_t *peer;
    unsigned i;

    for (i = 0; i < count; ++i) {
        soak_op_init(rank, &ops[i], SOAK_SEND,
                     soak_below(&rank->random, rank->config->ranks));
        peer          = &rank->peers[ops[i].peer];
        ops[i].length = soak_length(&rank->random);
        ops[i].buffer = soak_take(rank, rank->source, &rank->source_used,
                                  ops[i].length);
        if (ops[i].buffer == NULL) {
            --rank->outstanding;
            break;
        }

        ams[i].seed   = ((uint64_t)rank->me << 48) + ++rank->sends;
        ams[i].length = ops[i].length;
        soak_fill(ops[i].buffer, ops[i].length, ams[i].seed);
        ++rank->to_come[ops[i].peer];
        param.user_data = &ops[i];
        if (soak_below(&rank->random, 2) == 0) {
            answer = ucp_tag_send_nbx(peer->ep, ops[i].buffer, ops[i].length,
                                      ams[i].seed, &param);
        } else {
            answer = ucp_am_send_nbx(peer->ep, SOAK_AM_ID, &ams[i],
                                     sizeof(ams[i]), ops[i].buffer,
                                     ops[i].length, &param);
        }
        soak_posted(&ops[i], answer);
    }
    soak_wait(rank);
}

void soak_ops_init(soak_rank_t *rank)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id         = SOAK_AM_ID,
        .cb         = soak_am_arrived,
        .arg        = rank
    };

    soak_status(rank, ucp_worker_set_am_recv_handler(rank->worker, &param),
                "AM handler");
    soak_tag_post(rank);
}


/* ---- the batch ---- */

/* Unmaps the memory of an arena, replaces it, or discards its contents */
static void soak_remap(soak_rank_t *rank, char **arena)
{
    void *ptr;

    switch (soak_below(&rank->random, 3)) {
    case 0:
        ptr = MAP_FAILED;
        if (munmap(*arena, SOAK_ARENA) == 0) {
            ptr = mmap(*arena, SOAK_ARENA, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        }
        break;
    case 1:
        ptr = mmap(*arena, SOAK_ARENA, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        break;
    default:
        ptr = (madvise(*arena, SOAK_ARENA, MADV_DONTNEED) == 0) ? *arena :
              MAP_FAILED;
        break;
    }
    if (ptr == MAP_FAILED) {
        soak_fail(rank, "no memory for an arena: %m");
    }
    *arena = ptr;
    ++rank->result.remaps;
}

void soak_batch(soak_rank_t *rank)
{
    soak_op_t puts[SOAK_BATCH], ops[SOAK_BATCH];
    unsigned num_puts;

    rank->source_used = 0;
    rank->sink_used   = 0;
    num_puts          = soak_batch_puts(rank, puts);
    soak_wait(rank);
    soak_flush(rank);
    soak_batch_gets(rank, puts, num_puts, ops);
    soak_batch_atomics(rank, ops);
    soak_batch_flags(rank);

    rank->source_used = 0;
    soak_batch_sends(rank, ops);
    if (soak_below(&rank->random, 64) == 0) {
        soak_remap(rank, (soak_below(&rank->random, 2) == 0) ? &rank->source :
                                                               &rank->sink);
    }
}

void soak_ops_finish(soak_rank_t *rank)
{
    uint64_t all[SOAK_MAX_RANKS][SOAK_MAX_RANKS];
    uint64_t expected = 0;
    unsigned i;

    soak_gather(rank, rank->to_come, sizeof(rank->to_come), all);
    for (i = 0; i < rank->config->ranks; ++i) {
        expected += all[i][rank->me];
    }
    while (rank->received < expected) {
        soak_progress(rank);
    }
}

void soak_ops_cleanup(soak_rank_t *rank)
{
    ucp_request_cancel(rank->worker, rank->tag_request);
    while (rank->tag_request != NULL) {
        ucp_worker_progress(rank->worker);
    }
}
