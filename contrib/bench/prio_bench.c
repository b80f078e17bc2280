/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Small operations beside two large ones of 16 MiB of the same endpoint, which
 * are posted again whenever they are done:
 *
 *   tag BULK    a tag message of 8 bytes there and back
 *   get BULK    a get of 8 bytes
 *   add BULK    a fetch-add of 8 bytes
 *   flood BULK  puts of 8 bytes, a million a second if the machine can
 *
 * BULK is put, get, tag or, for the times without any, none.
 *
 * Prints the median and the 99th percentile of a small one in microseconds, and
 * the megabytes per second of the large ones. For flood: their bandwidth alone
 * and beside, how many small ones there were in a second, and the longest time
 * in milliseconds in which no large one of 1 MiB was done.
 */

#include "ucp_side.h"

#define NUM_LARGE    2
#define LARGE_BYTES  (16ul << 20)
#define FLOOD_LARGE  8
#define FLOOD_BYTES  (1ul << 20)
#define DATA_BYTES   (NUM_LARGE * LARGE_BYTES)

/* Behind the large ones */
#define SMALL_PLACE  DATA_BYTES
#define TOTAL_BYTES  (DATA_BYTES + 4096)

#define WARM_US      2e5
#define MEASURED_US  1e6
#define MAX_VALUES   (1u << 21)

/* Small ones in flight at once, and the time between two, for flood */
#define FLOOD_SMALL  64
#define FLOOD_US     1.0

#define TAG_PROBE    1
#define TAG_ECHO     2
#define TAG_LARGE    3
#define TAG_MASK     UINT64_MAX

#define CMD_END      'e'

typedef struct {
    initiator_t      initiator;
    char             *data;
    ucs_status_ptr_t large[FLOOD_LARGE];
    unsigned         num_large;
    size_t           bytes;         /* Of each */
    unsigned long    num_done;
    double           last_done;
    double           longest_gap;
} run_t;

static const char *probe, *bulk;

static uint64_t features(void)
{
    return UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
}


/* ---- the target ---- */

static void cancel(side_t *side, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_cancel(side->worker, request);
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(side->worker);
        }
        ucp_request_free(request);
    }
}

/* Answers probes, and receives large messages */
static void target_main(int sock)
{
    char *memory                        = map_memory(TOTAL_BYTES);
    ucp_request_param_t param           = {0};
    ucs_status_ptr_t large[FLOOD_LARGE] = {NULL};
    int num_large                       = strcmp(bulk, "tag") ? 0 : NUM_LARGE;
    ucs_status_ptr_t received;
    uint64_t message;
    target_t target;
    char cmd;
    int i;

    memset(memory, 1, TOTAL_BYTES);
    target_init(&target, sock, features(), memory, TOTAL_BYTES);
    received = ucp_tag_recv_nbx(target.side.worker, &message, sizeof(message),
                                TAG_PROBE, TAG_MASK, &param);
    while (recv(sock, &cmd, 1, MSG_DONTWAIT) != 1) {
        for (i = 0; i < num_large; ++i) {
            if (is_done(&large[i])) {
                large[i] = ucp_tag_recv_nbx(
                        target.side.worker, memory + (i * LARGE_BYTES),
                        LARGE_BYTES, TAG_LARGE, TAG_MASK, &param);
            }
        }
        for (i = 0; i < 64; ++i) {
            ucp_worker_progress(target.side.worker);
            if (is_done(&received)) {
                wait_for(&target.side,
                         ucp_tag_send_nbx(target.back, &message,
                                          sizeof(message), TAG_ECHO, &param));
                received = ucp_tag_recv_nbx(target.side.worker, &message,
                                            sizeof(message), TAG_PROBE,
                                            TAG_MASK, &param);
            }
        }
    }
    cancel(&target.side, received);
    for (i = 0; i < num_large; ++i) {
        cancel(&target.side, large[i]);
    }
    target_cleanup(&target, 0);
}


/* ---- the initiator ---- */

static ucs_status_ptr_t post_large(run_t *run, unsigned i)
{
    const initiator_t *initiator = &run->initiator;
    char *data                   = run->data + (i * run->bytes);
    uint64_t address             = initiator->memory + (i * run->bytes);
    ucp_request_param_t param    = {0};

    if (!strcmp(bulk, "put")) {
        return ucp_put_nbx(initiator->ep, data, run->bytes, address,
                           initiator->rkey, &param);
    } else if (!strcmp(bulk, "get")) {
        return ucp_get_nbx(initiator->ep, data, run->bytes, address,
                           initiator->rkey, &param);
    }
    return ucp_tag_send_nbx(initiator->ep, data, run->bytes, TAG_LARGE, &param);
}

/* Counts large ones that are done, and posts them again */
static void repost(run_t *run)
{
    double now;
    unsigned i;

    for (i = 0; i < run->num_large; ++i) {
        if (is_done(&run->large[i])) {
            now              = now_us();
            run->longest_gap = (now - run->last_done > run->longest_gap) ?
                               now - run->last_done : run->longest_gap;
            run->last_done   = now;
            ++run->num_done;
            run->large[i]    = post_large(run, i);
        }
    }
}

/* Starts as many large ones; those of before are done first */
static void start_large(run_t *run, unsigned num_large, size_t bytes)
{
    unsigned i;

    for (i = 0; i < run->num_large; ++i) {
        wait_for(&run->initiator.side, run->large[i]);
    }
    run->num_large = num_large;
    run->bytes     = bytes;
    for (i = 0; i < num_large; ++i) {
        run->large[i] = post_large(run, i);
    }
}

static void start_count(run_t *run)
{
    run->num_done    = 0;
    run->longest_gap = 0;
    run->last_done   = now_us();
}

static ucs_status_ptr_t post_small(run_t *run)
{
    static uint64_t one       = 1;
    static uint64_t result;
    ucp_request_param_t param = {0};
    initiator_t *initiator    = &run->initiator;
    uint64_t address          = initiator->memory + SMALL_PLACE;

    if (!strcmp(probe, "get")) {
        return ucp_get_nbx(initiator->ep, &result, sizeof(result), address,
                           initiator->rkey, &param);
    } else if (!strcmp(probe, "flood")) {
        return ucp_put_nbx(initiator->ep, &one, sizeof(one), address,
                           initiator->rkey, &param);
    } else if (!strcmp(probe, "add")) {
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                             UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.datatype     = ucp_dt_make_contig(sizeof(one));
        param.reply_buffer = &result;
        return ucp_atomic_op_nbx(initiator->ep, UCP_ATOMIC_OP_ADD, &one, 1,
                                 address, initiator->rkey, &param);
    }
    wait_for(&initiator->side,
             ucp_tag_send_nbx(initiator->ep, &one, sizeof(one), TAG_PROBE,
                              &param));
    return ucp_tag_recv_nbx(initiator->side.worker, &result, sizeof(result),
                            TAG_ECHO, TAG_MASK, &param);
}

static void measure_latency(run_t *run)
{
    double *values = malloc(MAX_VALUES * sizeof(*values));
    double start   = now_us(), begin = 0, now, from;
    size_t count   = 0;
    ucs_status_ptr_t small;

    CHECK(values != NULL, "malloc: %m");
    start_large(run, strcmp(bulk, "none") ? NUM_LARGE : 0, LARGE_BYTES);
    do {
        from  = now_us();
        small = post_small(run);
        while (!is_done(&small)) {
            ucp_worker_progress(run->initiator.side.worker);
            repost(run);
        }
        now = now_us();
        if (begin == 0) {
            if (now - start > WARM_US) {
                begin = now;
                start_count(run);
            }
        } else if (count < MAX_VALUES) {
            values[count++] = now - from;
        }
    } while ((begin == 0) || (now - begin < MEASURED_US));
    sort_values(values, count);
    printf("p50_us %.2f p99_us %.2f values %zu mb_per_s %.1f\n",
           values[count / 2], values[count * 99 / 100], count,
           run->num_done * LARGE_BYTES / (now - begin));
    free(values);
}

/* @return MB/s of the large ones; *rate_p: small ones in a second */
static double flood(run_t *run, bool has_small, double *rate_p)
{
    ucs_status_ptr_t small[FLOOD_SMALL] = {NULL};
    double start                        = now_us();
    unsigned long count                 = 0;
    double now;
    unsigned i;

    start_count(run);
    do {
        now = now_us();
        i   = count % FLOOD_SMALL;
        if (has_small && (now - start > count * FLOOD_US) &&
            is_done(&small[i])) {
            small[i] = post_small(run);
            ++count;
        }
        ucp_worker_progress(run->initiator.side.worker);
        repost(run);
    } while (now - start < MEASURED_US);
    for (i = 0; i < FLOOD_SMALL; ++i) {
        wait_for(&run->initiator.side, small[i]);
    }
    *rate_p = count / (now - start) * 1e6;
    return (run->num_done * FLOOD_BYTES) / (now - start);
}

static void measure_flood(run_t *run)
{
    double alone, beside, rate;

    start_large(run, FLOOD_LARGE, FLOOD_BYTES);
    flood(run, false, &rate);
    alone  = flood(run, false, &rate);
    beside = flood(run, true, &rate);
    printf("alone_mb %.1f beside_mb %.1f small_per_s %.0f gap_ms %.2f\n", alone,
           beside, rate, run->longest_gap * 1e-3);
}

static void initiator_main(int sock, pid_t target)
{
    run_t run = {};
    uint64_t last;

    initiator_init(&run.initiator, sock, target, features());
    initiator_connect(&run.initiator);
    run.data = map_memory(DATA_BYTES);
    memset(run.data, 2, DATA_BYTES);
    if (!strcmp(probe, "flood")) {
        measure_flood(&run);
    } else {
        measure_latency(&run);
    }
    start_large(&run, 0, 0);
    command(&run.initiator, CMD_END, &last, sizeof(last));
    initiator_disconnect(&run.initiator);
    initiator_cleanup(&run.initiator);
}

int main(int argc, char **argv)
{
    bool is_tag, is_rma, is_small;

    probe    = (argc == 3) ? argv[1] : "";
    bulk     = (argc == 3) ? argv[2] : "";
    is_rma   = !strcmp(bulk, "put") || !strcmp(bulk, "get");
    is_tag   = !strcmp(bulk, "tag") || !strcmp(bulk, "none");
    is_small = !strcmp(probe, "tag") || !strcmp(probe, "get") ||
               !strcmp(probe, "add");
    if (!(is_small && (is_rma || is_tag)) &&
        !(is_rma && !strcmp(probe, "flood"))) {
        fprintf(stderr, "usage: prio_bench tag|get|add put|get|tag|none\n"
                        "       prio_bench flood put|get\n");
        return 2;
    }
    return run_both(target_main, initiator_main);
}
