/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_order [-t SECONDS] [-s SEED]
 *
 * Random puts, active messages, tagged messages, flags and atomics of one
 * endpoint, without a fence. The judge is the order in which RC makes them
 * visible: what the target sees of a message, of a flag (a small put) or of an
 * atomic shows that every put that was started before it has arrived. Programs
 * rely on that, though UCP does not promise it.
 *
 * Both processes draw the same plan from the seed, one round at a time. Puts of
 * a round have places of their own. The target checks whole puts.
 */

#include "ucp_pair.h"

enum {
    OPS       = 24,            /* Of a round */
    PLACE     = 192 << 10,     /* Bytes of the longest put */
    AM_ID     = 5,
    BIG_AM    = 20000          /* Several fragments */
};

typedef enum kind {
    SMALL_PUT, LARGE_PUT, GET, FLAG, ATOMIC, AM, BIG, TAG, NUM_KINDS
} kind_t;

typedef struct op {
    kind_t kind;
    size_t size;
    int    is_seen;            /* At the target */
} op_t;

/* Memory of the target: the places of puts, then a word for each operation */
typedef struct area {
    char              places[OPS][PLACE];
    volatile uint64_t words[OPS];
} area_t;

static area_t   *area;
static op_t     ops[OPS];
static double   seconds = 5;
static uint64_t seed;
static uint64_t round_number;
static uint64_t num_checks;

static uint64_t draw(uint64_t count)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % count;
}

/* One kind of signal or two dominate a round */
static void plan_round(void)
{
    kind_t favourite = draw(NUM_KINDS);
    int i;

    for (i = 0; i < OPS; ++i) {
        ops[i].kind    = draw(3) ? draw(NUM_KINDS) : favourite;
        ops[i].is_seen = 0;
        ops[i].size    = 1 + draw((ops[i].kind == SMALL_PUT) ? 8192 : PLACE);
    }
}

static uint64_t place_of(int i)
{
    return (round_number * OPS + i) * 1000003;
}

/* Ends of the put, and one byte of each page: a page arrives as a whole or in
 * lines, which the ends of pages show */
static void check_put(int put, int signal)
{
    size_t size    = ops[put].size;
    const char *at = area->places[put];
    size_t i;

    for (i = 0; i < size; i += (i + 64 < size) ? 61 : 1) {
        CHECK(at[i] == byte_at(place_of(put) + i),
              "round %lu: signal %d of kind %d is visible before byte %zu of "
              "%zu of put %d", (unsigned long)round_number, signal,
              ops[signal].kind, i, size, put);
    }
    ++num_checks;
}

/* The target has seen an operation */
static void see(int signal)
{
    int i;

    CHECK((signal < OPS) && !ops[signal].is_seen, "operation %d came twice",
          signal);
    ops[signal].is_seen = 1;
    for (i = 0; i < signal; ++i) {
        if (ops[i].kind <= LARGE_PUT) {
            check_put(i, signal);
        }
    }
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length,
                          void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    see(*(const int*)header);
    return UCS_OK;
}

/* ---- the target ---- */

static void open_worker(void)
{
    open_ucp(UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_TAG |
             UCP_FEATURE_AMO64, &pair.context, &pair.worker);
}

/* The counters are written when the worker is destroyed */
static void close_worker(ucp_ep_h ep)
{
    close_ep(pair.worker, ep, UCP_EP_CLOSE_FLAG_FORCE);
    close_ucp(pair.context, pair.worker);
}

static void look_at_words(void)
{
    int i;

    for (i = 0; i < OPS; ++i) {
        if (((ops[i].kind == FLAG) || (ops[i].kind == ATOMIC)) &&
            !ops[i].is_seen && (area->words[i] != 0)) {
            __sync_synchronize();
            see(i);
        }
    }
}

static void look_at_tags(void)
{
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    char *data;

    message = ucp_tag_probe_nb(pair.worker, 0, 0, 1, &info);
    if (message == NULL) {
        return;
    }

    see(info.sender_tag); /* Its data may come later, by rendezvous */
    data = malloc(info.length);
    CHECK_OK(wait_for(pair.worker,
                      ucp_tag_msg_recv_nbx(pair.worker, data, info.length,
                                           message, &none)));
    free(data);
}

static int is_round_seen(void)
{
    int i;

    for (i = 0; i < OPS; ++i) {
        if ((ops[i].kind >= FLAG) && !ops[i].is_seen) {
            return 0;
        }
    }
    return 1;
}

static void run_target(void)
{
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = AM_ID,
        .cb         = on_am
    };
    ucp_mem_h memh;
    ucp_ep_h ep;
    char go_on;

    CHECK_OK(ucp_worker_set_am_recv_handler(pair.worker, &handler));
    area = (area_t*)new_memory(sizeof(*area));
    memh = pair_export(area, sizeof(*area));
    ep   = pair_connect();

    for (;;) {
        plan_round();
        memset((void*)area->words, 0, sizeof(area->words));
        if (draw(2)) {
            memset(area->places, 0, sizeof(area->places));
        }
        pair_put("r", 1);
        while (!is_round_seen()) {
            ucp_worker_progress(pair.worker);
            look_at_words();
            look_at_tags();
        }
        /* Until the initiator has flushed */
        pair_get(&go_on, 1);
        if (go_on == 'e') {
            break;
        }
        ++round_number;
    }

    printf("%lu rounds, %lu puts checked\n", (unsigned long)round_number,
           (unsigned long)num_checks);
    CHECK(num_checks > 0, "nothing was checked");
    pair_put("b", 1);
    CHECK_OK(ucp_mem_unmap(pair.context, memh));
    close_worker(ep);
}

/* ---- the initiator ---- */

static ucs_status_ptr_t start_op(ucp_ep_h ep, ucp_rkey_h rkey, int i,
                                 area_t *source, area_t *remote, int *numbers)
{
    const ucp_request_param_t wide  = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE,
        .datatype     = ucp_dt_make_contig(sizeof(uint64_t))
    };
    size_t size    = ops[i].size;
    uint64_t place = (uint64_t)remote->places[i];
    uint64_t word  = (uint64_t)&remote->words[i];

    switch (ops[i].kind) {
    case SMALL_PUT:
    case LARGE_PUT:
        return ucp_put_nbx(ep, source->places[i], size, place, rkey, &none);
    case GET:
        return ucp_get_nbx(ep, source->places[i], size, place, rkey, &none);
    case FLAG:
        return ucp_put_nbx(ep, (void*)&source->words[i], sizeof(uint64_t), word,
                           rkey, &none);
    case ATOMIC:
        return ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD,
                                 (void*)&source->words[i], 1, word, rkey,
                                 &wide);
    case AM:
        return ucp_am_send_nbx(ep, AM_ID, &numbers[i], sizeof(int), NULL, 0,
                               &none);
    case BIG:
        return ucp_am_send_nbx(ep, AM_ID, &numbers[i], sizeof(int),
                               source->places[i], BIG_AM, &none);
    default:
        return ucp_tag_send_nbx(ep, source->places[i], size, i, &none);
    }
}

static void run_round(ucp_ep_h ep, ucp_rkey_h rkey, area_t *source,
                      area_t *remote)
{
    ucs_status_ptr_t requests[OPS];
    int numbers[OPS];
    int i;

    plan_round();
    for (i = 0; i < OPS; ++i) {
        numbers[i]       = i;
        source->words[i] = 1;
        if (ops[i].kind <= LARGE_PUT) {
            fill(source->places[i], ops[i].size, place_of(i));
        }
    }
    for (i = 0; i < OPS; ++i) {
        requests[i] = start_op(ep, rkey, i, source, remote, numbers);
    }
    for (i = 0; i < OPS; ++i) {
        CHECK_OK(wait_for(pair.worker, requests[i]));
    }
    CHECK_OK(wait_for(pair.worker, ucp_ep_flush_nbx(ep, &none)));
    (void)draw(2); /* As the target does */
    ++round_number;
}

static void run_initiator(void)
{
    area_t *source = (area_t*)new_memory(sizeof(*source));
    time_t end     = time(NULL) + (time_t)seconds;
    ucp_rkey_h rkey;
    uint64_t remote;
    void *key;
    ucp_ep_h ep;
    char ready;

    key = pair_import(&remote);
    ep  = pair_connect();
    CHECK_OK(ucp_ep_rkey_unpack(ep, key, &rkey));
    do {
        pair_get(&ready, 1); /* The target sets its words to 0 */
        run_round(ep, rkey, source, (area_t*)remote);
        pair_put((time(NULL) < end) ? "g" : "e", 1);
    } while (time(NULL) < end);
    pair_get(&ready, 1);
    ucp_rkey_destroy(rkey);
    close_worker(ep);
}

static void run(void)
{
    open_worker();
    if (pair.number == 0) {
        run_target();
    } else {
        run_initiator();
    }
}

int main(int argc, char **argv)
{
    int option;

    seed = (uint64_t)time(NULL) * 2654435761u + getpid();
    while ((option = getopt(argc, argv, "t:s:")) != -1) {
        CHECK(option != '?', "usage: ucp_order [-t SECONDS] [-s SEED]");
        if (option == 't') {
            seconds = strtod(optarg, NULL);
        } else {
            seed = strtoull(optarg, NULL, 0);
        }
    }
    seed |= 1;
    printf("seed %lu\n", (unsigned long)seed);
    fflush(stdout);
    return run_pair(run);
}
