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
 *   put-pair [BYTES]
 *                  put and flush as in put-polling next to active messages of
 *                  the same size there and back, over the same endpoint: some
 *                  fifty of these, some fifty of those, and so on, because a
 *                  host that moves the CPUs of a virtual machine changes both
 *   connect N      N endpoints created and flushed, i.e. really connected
 *
 * put-* print the median, the 99th percentile and the largest of the times in
 * microseconds, and the longest pause of a process that only reads the clock:
 * the machine itself causes delays of this length. put-pair
 * prints the medians of the batches' medians in microseconds, and of the ratios
 * of neighbouring batches. connect prints the microseconds per endpoint.
 */

#include "ucp_side.h"

/* Microseconds from one put to the next while the target computes */
#define COMPUTING_INTERVAL_US 2000.0

/* 64-bit words that a put can have */
#define MAX_WORDS 512

/* Operations of one kind in a row, mostly less than a tenth of a millisecond,
 * and the number of such pairs that warm up and that are measured */
#define BATCH      50
#define WARM_PAIRS 20
#define PAIRS      1000

#define MESSAGE_ID 1

/* What the target does: a byte on the socket, which it looks at in progress */
enum { CMD_COMPUTE = 'c', CMD_END = 'e' };

static const char *kind;
static int        amount; /* Bytes of a put, or endpoints */

static uint64_t      payload[MAX_WORDS] __attribute__((aligned(4096)));
static unsigned long messages_received;

static int is_pair(void)
{
    return strcmp(kind, "put-pair") == 0;
}

static uint64_t features(void)
{
    return UCP_FEATURE_RMA | (is_pair() ? UCP_FEATURE_AM : 0);
}


/* ---- messages there and back, as in ucx_perftest's ucp_am_lat: the data is
 *      neither written nor read ---- */

static ucs_status_t on_message(void *arg, const void *header,
                               size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    CHECK(!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) &&
          (length == (size_t)amount), "a message of %zu bytes, or rendezvous",
          length);
    ++messages_received;
    return UCS_OK;
}

static void listen_for_messages(side_t *side)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = MESSAGE_ID,
        .flags      = UCP_AM_FLAG_WHOLE_MSG,
        .cb         = on_message
    };

    UCP_CHECK(ucp_worker_set_am_recv_handler(side->worker, &param));
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    ucp_request_free(request);
}

static void send_message(ucp_ep_h ep)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK,
        .cb.send      = on_sent
    };
    ucs_status_ptr_t request;

    request = ucp_am_send_nbx(ep, MESSAGE_ID, NULL, 0, payload, amount, &param);
    CHECK(!UCS_PTR_IS_ERR(request), "%s",
          ucs_status_string(UCS_PTR_STATUS(request)));
}

/* The target's part; a system call now and then must not be seen in a median */
static void answer_some(target_t *target)
{
    static unsigned long answered;
    int i;

    for (i = 0; i < 4096; ++i) {
        ucp_worker_progress(target->side.worker);
        if (answered != messages_received) {
            ++answered;
            send_message(target->back);
        }
    }
}

static void message_and_answer(initiator_t *initiator)
{
    unsigned long before = messages_received;

    send_message(initiator->ep);
    while (messages_received == before) {
        ucp_worker_progress(initiator->side.worker);
    }
}


/* ---- put ---- */

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

    target_init(&target, sock, features(), memory, sizeof(memory),
                strcmp(kind, "put-listening") != 0);
    if (is_pair()) {
        listen_for_messages(&target.side);
    }
    for (cmd = 0; cmd != CMD_END;) {
        if (is_pair()) {
            answer_some(&target);
        } else {
            progress_some(&target.side);
        }
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
    ucp_request_param_t param = {0};

    payload[0] = payload[words - 1] = value;
    wait_for(&initiator->side,
             ucp_put_nbx(initiator->ep, payload, words * sizeof(*payload),
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

/* Median ticks of a put and flush; *value is what was put last */
static double put_batch(initiator_t *initiator, int words, uint64_t *value)
{
    double ticks[BATCH];
    uint64_t start;
    int i;

    for (i = 0; i < BATCH; ++i) {
        start = now_ticks();
        put_flush(initiator, ++*value, words);
        ticks[i] = now_ticks() - start;
    }
    return median(ticks, BATCH);
}

static double message_batch(initiator_t *initiator)
{
    double ticks[BATCH];
    uint64_t start;
    int i;

    for (i = 0; i < BATCH; ++i) {
        start = now_ticks();
        message_and_answer(initiator);
        ticks[i] = now_ticks() - start;
    }
    return median(ticks, BATCH);
}

static void pair_main(initiator_t *initiator, int words)
{
    static double puts[PAIRS], messages[PAIRS], ratios[PAIRS];
    uint64_t value = 0;
    uint64_t seen, first;
    double began, us_per_tick;
    int i;

    listen_for_messages(&initiator->side);
    for (i = 0; i < WARM_PAIRS; ++i) {
        put_batch(initiator, words, &value);
        message_batch(initiator);
    }

    began = now_us();
    first = now_ticks();
    for (i = 0; i < PAIRS; ++i) {
        puts[i]     = put_batch(initiator, words, &value);
        messages[i] = message_batch(initiator);
        ratios[i]   = puts[i] / messages[i];
    }
    us_per_tick = (now_us() - began) / (now_ticks() - first);

    command(initiator, CMD_END, &seen, sizeof(seen));
    CHECK(seen == value, "the target's memory has another value");
    printf("put_us %.3f am_us %.3f ratio %.3f\n",
           us_per_tick * median(puts, PAIRS),
           us_per_tick * median(messages, PAIRS), median(ratios, PAIRS));
}


/* ---- endpoints ---- */

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

    initiator_init(&initiator, sock, target, features());
    if (strcmp(kind, "connect") == 0) {
        connect_main(&initiator, amount);
    } else {
        initiator_connect(&initiator);
        if (is_pair()) {
            pair_main(&initiator, amount / sizeof(uint64_t));
        } else {
            put_main(&initiator, amount / sizeof(uint64_t));
        }
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
         strcmp(kind, "put-computing") && !is_pair() && !is_connect) ||
        (amount > max) ||
        (amount < (is_connect ? 1 : (int)sizeof(uint64_t))) ||
        (!is_connect && (amount % sizeof(uint64_t)))) {
        fprintf(stderr, "usage: ucp_bench put-polling [BYTES] | put-listening "
                        "[BYTES] |\n       put-computing [BYTES] | put-pair "
                        "[BYTES] | connect ENDPOINTS\n");
        return 2;
    }

    /* Pages of its own, not the one of zeroes that is always in the cache */
    memset(payload, 0x55, sizeof(payload));

    return run_both(target_main, initiator_main);
}
