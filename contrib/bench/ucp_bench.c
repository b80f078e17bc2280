/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCP benchmark of what ucx_perftest has no test for, between two processes on
 * one machine, each bound to a CPU of its own:
 *
 *   put-polling [BYTES]
 *                  put (of 8 bytes) and flush; the target calls
 *                  ucp_worker_progress()
 *   put-listening [BYTES]
 *                  the same to a target that has no endpoint of its own and
 *                  never sends anything: UCP polls no interface of it
 *   put-computing [BYTES]
 *                  the same while the target computes for a second and calls
 *                  nothing of UCX; one every two milliseconds, because back to
 *                  back they would take half of the CPU that it computes on,
 *                  and the scheduler would give it its share back
 *   connect N      N endpoints created and flushed, i.e. really connected
 *
 * put-* print the median, the 99th percentile and the largest of the times in
 * microseconds, and the longest time for which this machine let a process stand
 * still that only reads the clock: no figure can be better than that. connect
 * prints the microseconds per endpoint.
 */

#include "ucp_side.h"

/* Microseconds from one put to the next while the target computes */
#define COMPUTING_INTERVAL_US 2000.0

/* 64-bit words that a put can have */
#define MAX_WORDS 512

/* What the target does: a byte on the socket, which it looks at in progress */
enum { CMD_COMPUTE = 'c', CMD_END = 'e' };

static const char *kind;
static int        amount; /* Bytes of a put, or endpoints */

static void compute_one_second(void)
{
    double end = now_us() + 1e6;

    while (now_us() < end) {
    }
}

/* Serves until told to end; shows its memory for put */
static void target_main(int sock)
{
    static uint64_t memory[MAX_WORDS] __attribute__((aligned(4096)));
    target_t target;
    char cmd;

    target_init(&target, sock, memory, sizeof(memory),
                strcmp(kind, "put-listening") != 0);
    for (cmd = 0; cmd != CMD_END;) {
        progress_some(&target.side);
        if (recv(sock, &cmd, 1, MSG_DONTWAIT) != 1) {
            continue;
        }
        if (cmd == CMD_COMPUTE) {
            send_all(sock, &cmd, 1);
            compute_one_second();
        }
    }

    target_cleanup(&target, memory[0]);
}

static void put_flush(initiator_t *initiator, uint64_t value, int words)
{
    static uint64_t data[MAX_WORDS];
    ucp_request_param_t param = {0};

    data[0] = data[words - 1] = value;
    wait_for(&initiator->side,
             ucp_put_nbx(initiator->ep, data, words * sizeof(*data),
                         initiator->memory, initiator->rkey, &param));
    wait_for(&initiator->side, ucp_ep_flush_nbx(initiator->ep, &param));
}

static double longest_gap_us(void)
{
    double began = now_us();
    double last  = began;
    double gap   = 0;
    double now;

    while (last < began + 0.8e6) {
        now  = now_us();
        gap  = (now - last > gap) ? now - last : gap;
        last = now;
    }
    return gap;
}

static void put_main(initiator_t *initiator, int words)
{
    int computing = (strcmp(kind, "put-computing") == 0);
    int count     = computing ? 400 : 20000;
    double *times = calloc(count, sizeof(*times));
    uint64_t value, seen, start, first;
    double began, us_per_tick;
    char answer;
    int i, done;

    for (value = 1; value <= 200; ++value) {
        put_flush(initiator, value, words);
    }
    if (computing) {
        command(initiator, CMD_COMPUTE, &answer, 1);
    }

    /* Only while the target certainly computes */
    began = now_us();
    first = now_ticks();
    for (i = 0; (i < count) && (!computing || (now_us() < began + 0.8e6));
         ++i, ++value) {
        while (computing && (now_us() < began + i * COMPUTING_INTERVAL_US)) {
        }
        start = now_ticks();
        put_flush(initiator, value, words);
        times[i] = now_ticks() - start;
    }
    us_per_tick = (now_us() - began) / (now_ticks() - first);

    done = i;
    command(initiator, CMD_END, &seen, sizeof(seen));
    CHECK(seen == value - 1, "the target's memory has another value");
    sort_values(times, done);
    printf("median_us %.3f p99_us %.3f max_us %.3f gap_us %.3f puts %d\n",
           us_per_tick * times[done / 2],
           us_per_tick * times[(done * 99) / 100],
           us_per_tick * times[done - 1], longest_gap_us(), done);
    free(times);
}

static void connect_main(initiator_t *initiator, int count)
{
    side_t *side              = &initiator->side;
    ucp_request_param_t param = {0};
    ucp_ep_h *eps             = calloc(count, sizeof(*eps));
    ucs_status_ptr_t *req     = calloc(count, sizeof(*req));
    double start, end;
    uint64_t seen;
    int i;

    start = now_us();
    for (i = 0; i < count; ++i) {
        eps[i] = make_ep(side, initiator->address);
        req[i] = ucp_ep_flush_nbx(eps[i], &param);
    }
    for (i = 0; i < count; ++i) {
        wait_for(side, req[i]);
    }
    end = now_us();
    for (i = 0; i < count; ++i) {
        close_ep(side, eps[i]);
    }

    command(initiator, CMD_END, &seen, sizeof(seen));
    printf("us_per_endpoint %.2f total_us %.1f endpoints %d\n",
           (end - start) / count, end - start, count);
    free(req);
    free(eps);
}

static void initiator_main(int sock, pid_t target)
{
    initiator_t initiator;

    initiator_init(&initiator, sock, target);
    if (strcmp(kind, "connect") == 0) {
        connect_main(&initiator, amount);
    } else {
        initiator_connect(&initiator);
        put_main(&initiator, amount / sizeof(uint64_t));
        initiator_disconnect(&initiator);
    }
    initiator_cleanup(&initiator);
}

int main(int argc, char **argv)
{
    int is_connect, max;

    kind       = argc > 1 ? argv[1] : "";
    is_connect = (strcmp(kind, "connect") == 0);
    amount     = argc > 2 ? atoi(argv[2]) : (int)sizeof(uint64_t);
    max        = is_connect ? 1 << 20 : MAX_WORDS * sizeof(uint64_t);
    if ((strcmp(kind, "put-polling") && strcmp(kind, "put-listening") &&
         strcmp(kind, "put-computing") && !is_connect) || (amount > max) ||
        (amount < (is_connect ? 1 : (int)sizeof(uint64_t))) ||
        (!is_connect && (amount % sizeof(uint64_t)))) {
        fprintf(stderr, "usage: ucp_bench put-polling [BYTES] | put-listening "
                        "[BYTES] |\n       put-computing [BYTES] | connect "
                        "ENDPOINTS\n");
        return 2;
    }

    return run_both(target_main, initiator_main);
}
