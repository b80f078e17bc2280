/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Small operations beside two large ones of 16 MiB, or of SIZE, of the same
 * endpoint, which are posted again whenever they are done:
 *
 *   tag BULK [SIZE]  a tag message of 8 bytes there and back
 *   get BULK [SIZE]  a get of 8 bytes
 *   add BULK [SIZE]  a fetch-add of 8 bytes
 *   flood BULK       puts of 8 bytes, a million a second if the machine can
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

static char             *data;
static ucs_status_ptr_t large[FLOOD_LARGE];
static unsigned         num_large;
static size_t           bytes; /* Of each */
static unsigned long    num_done;
static double           last_done, longest_gap;

static size_t           large_bytes = LARGE_BYTES;
static const char       *probe, *bulk;

static uint64_t features(void)
{
    return UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
}


/* ---- the target ---- */

static void cancel(ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_cancel(side.worker, request);
    }
    wait_for_end(request);
}

/* Answers probes, and receives large messages */
static void target_main(void)
{
    char *memory = map_memory(TOTAL_BYTES);
    ucs_status_ptr_t received;
    uint64_t message;
    unsigned i;
    char cmd;

    num_large = strcmp(bulk, "tag") ? 0 : NUM_LARGE;
    memset(memory, 1, TOTAL_BYTES);
    target_open(features(), memory, TOTAL_BYTES);
    received = ucp_tag_recv_nbx(side.worker, &message, sizeof(message),
                                TAG_PROBE, TAG_MASK, &no_param);
    while (recv(side.sock, &cmd, 1, MSG_DONTWAIT) != 1) {
        for (i = 0; i < num_large; ++i) {
            if (is_done(&large[i])) {
                large[i] = ucp_tag_recv_nbx(
                        side.worker, memory + (i * LARGE_BYTES), LARGE_BYTES,
                        TAG_LARGE, TAG_MASK, &no_param);
            }
        }
        for (i = 0; i < 64; ++i) {
            ucp_worker_progress(side.worker);
            if (is_done(&received)) {
                wait_for(ucp_tag_send_nbx(side.ep, &message, sizeof(message),
                                          TAG_ECHO, &no_param));
                received = ucp_tag_recv_nbx(side.worker, &message,
                                            sizeof(message), TAG_PROBE,
                                            TAG_MASK, &no_param);
            }
        }
    }
    cancel(received);
    for (i = 0; i < num_large; ++i) {
        cancel(large[i]);
    }
    target_close(0);
}


/* ---- the initiator ---- */

static ucs_status_ptr_t post_large(unsigned i)
{
    char *buffer     = data + (i * bytes);
    uint64_t address = side.memory + (i * bytes);

    if (!strcmp(bulk, "put")) {
        return ucp_put_nbx(side.ep, buffer, bytes, address, side.rkey,
                           &no_param);
    } else if (!strcmp(bulk, "get")) {
        return ucp_get_nbx(side.ep, buffer, bytes, address, side.rkey,
                           &no_param);
    }
    return ucp_tag_send_nbx(side.ep, buffer, bytes, TAG_LARGE, &no_param);
}

/* Counts large ones that are done, and posts them again */
static void repost(void)
{
    double now;
    unsigned i;

    for (i = 0; i < num_large; ++i) {
        if (is_done(&large[i])) {
            now         = now_us();
            longest_gap = (now - last_done > longest_gap) ? now - last_done :
                          longest_gap;
            last_done   = now;
            ++num_done;
            large[i]    = post_large(i);
        }
    }
}

/* Starts as many large ones; those of before are done first */
static void start_large(unsigned count, size_t size)
{
    unsigned i;

    for (i = 0; i < num_large; ++i) {
        wait_for(large[i]);
    }
    num_large = count;
    bytes     = size;
    for (i = 0; i < num_large; ++i) {
        large[i] = post_large(i);
    }
}

static void start_count(void)
{
    num_done    = 0;
    longest_gap = 0;
    last_done   = now_us();
}

static ucs_status_ptr_t post_small(void)
{
    static uint64_t one = 1;
    static uint64_t result;
    uint64_t address    = side.memory + SMALL_PLACE;

    if (!strcmp(probe, "get")) {
        return ucp_get_nbx(side.ep, &result, sizeof(result), address, side.rkey,
                           &no_param);
    } else if (!strcmp(probe, "flood")) {
        return ucp_put_nbx(side.ep, &one, sizeof(one), address, side.rkey,
                           &no_param);
    } else if (!strcmp(probe, "add")) {
        return add_one(side.ep, address, side.rkey, &result);
    }
    wait_for(ucp_tag_send_nbx(side.ep, &one, sizeof(one), TAG_PROBE,
                              &no_param));
    return ucp_tag_recv_nbx(side.worker, &result, sizeof(result), TAG_ECHO,
                            TAG_MASK, &no_param);
}

static void measure_latency(void)
{
    double *values = malloc(MAX_VALUES * sizeof(*values));
    double start   = now_us(), begin = 0, now, from;
    size_t count   = 0;
    ucs_status_ptr_t small;

    CHECK(values != NULL, "malloc: %m");
    start_large(strcmp(bulk, "none") ? NUM_LARGE : 0, large_bytes);
    do {
        from  = now_us();
        small = post_small();
        while (!is_done(&small)) {
            ucp_worker_progress(side.worker);
            repost();
        }
        now = now_us();
        if (begin == 0) {
            if (now - start > WARM_US) {
                begin = now;
                start_count();
            }
        } else if (count < MAX_VALUES) {
            values[count++] = now - from;
        }
    } while ((begin == 0) || (now - begin < MEASURED_US));
    sort_values(values, count);
    printf("p50_us %.2f p99_us %.2f values %zu mb_per_s %.1f\n",
           values[count / 2], values[count * 99 / 100], count,
           num_done * large_bytes / (now - begin));
    free(values);
}

/* @return MB/s of the large ones; *rate_p: small ones in a second */
static double flood(bool has_small, double *rate_p)
{
    ucs_status_ptr_t small[FLOOD_SMALL] = {NULL};
    double start                        = now_us();
    unsigned long count                 = 0;
    double now;
    unsigned i;

    start_count();
    do {
        now = now_us();
        i   = count % FLOOD_SMALL;
        if (has_small && (now - start > count * FLOOD_US) &&
            is_done(&small[i])) {
            small[i] = post_small();
            ++count;
        }
        ucp_worker_progress(side.worker);
        repost();
    } while (now - start < MEASURED_US);
    for (i = 0; i < FLOOD_SMALL; ++i) {
        wait_for(small[i]);
    }
    *rate_p = count / (now - start) * 1e6;
    return (num_done * FLOOD_BYTES) / (now - start);
}

static void measure_flood(void)
{
    double alone, beside, rate;

    start_large(FLOOD_LARGE, FLOOD_BYTES);
    flood(false, &rate);
    alone  = flood(false, &rate);
    beside = flood(true, &rate);
    printf("alone_mb %.1f beside_mb %.1f small_per_s %.0f gap_ms %.2f\n", alone,
           beside, rate, longest_gap * 1e-3);
}

static void initiator_main(void)
{
    uint64_t last;

    initiator_open(features());
    data = map_memory(DATA_BYTES);
    memset(data, 2, DATA_BYTES);
    if (!strcmp(probe, "flood")) {
        measure_flood();
    } else {
        measure_latency();
    }
    start_large(0, 0);
    command(CMD_END, &last, sizeof(last));
    initiator_close();
}

int main(int argc, char **argv)
{
    bool is_tag, is_rma, is_small;

    probe    = (argc == 3) || (argc == 4) ? argv[1] : "";
    bulk     = *probe ? argv[2] : "";
    if (argc == 4) {
        large_bytes = strtoul(argv[3], NULL, 10);
    }
    is_rma   = !strcmp(bulk, "put") || !strcmp(bulk, "get");
    is_tag   = !strcmp(bulk, "tag") || !strcmp(bulk, "none");
    is_small = !strcmp(probe, "tag") || !strcmp(probe, "get") ||
               !strcmp(probe, "add");
    if ((!(is_small && (is_rma || is_tag)) &&
         !(is_rma && !strcmp(probe, "flood"))) ||
        (large_bytes == 0) || (large_bytes > LARGE_BYTES)) {
        fprintf(stderr, "usage: see the top of prio_bench.c\n");
        return 2;
    }
    return run_both(target_main, initiator_main);
}
