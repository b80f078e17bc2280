/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCP puts of which ucx_perftest has no test, between two processes on one
 * machine, each bound to a CPU of its own:
 *
 *   put-computing [BYTES]
 *                  put (of 8 bytes) and flush while the target computes for a
 *                  second and calls nothing of UCX; one every two
 *                  milliseconds, because back to back they would take half of
 *                  the CPU that it computes on, and the scheduler would give it
 *                  its share back. Prints the median and the 99th percentile of
 *                  the times in microseconds
 *   put-pair [BYTES]
 *                  put and flush next to active messages of the same size there
 *                  and back, over the same endpoint, with a target that polls:
 *                  some fifty of these, some fifty of those, and so on, because
 *                  a host that moves the CPUs of a virtual machine changes
 *                  both. Prints the medians of the batches in microseconds, and
 *                  of the ratios of neighbouring batches
 */

#include "ucp_side.h"

/* Microseconds from one put to the next while the target computes */
#define COMPUTING_INTERVAL_US 2000.0
#define COMPUTING_PUTS        400

/* 64-bit words that a put can have */
#define MAX_WORDS 512

/* Operations of one kind in a row, mostly less than a tenth of a millisecond,
 * and the number of such pairs that warm up and that are measured */
#define BATCH      50
#define WARM_PAIRS 20
#define PAIRS      400

#define MESSAGE_ID 1

/* What the target does: a byte on the socket, which it looks at in progress */
enum { CMD_COMPUTE = 'c', CMD_END = 'e' };

static bool   is_pair;
static size_t amount; /* Bytes of a put */

static uint64_t      payload[MAX_WORDS] __attribute__((aligned(4096)));
static unsigned long messages_received;

static uint64_t features(void)
{
    return UCP_FEATURE_RMA | (is_pair ? UCP_FEATURE_AM : 0);
}


/* ---- messages there and back, as in ucx_perftest's ucp_am_lat: the data is
 *      neither written nor read ---- */

static ucs_status_t on_message(void *arg, const void *header,
                               size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    CHECK(!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) &&
          (length == amount), "a message of %zu bytes, or rendezvous", length);
    ++messages_received;
    return UCS_OK;
}

static void listen_for_messages(void)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = MESSAGE_ID,
        .flags      = UCP_AM_FLAG_WHOLE_MSG,
        .cb         = on_message
    };

    UCP_CHECK(ucp_worker_set_am_recv_handler(side.worker, &param));
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    ucp_request_free(request);
}

static void send_message(void)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK,
        .cb.send      = on_sent
    };
    ucs_status_ptr_t request;

    request = ucp_am_send_nbx(side.ep, MESSAGE_ID, NULL, 0, payload, amount,
                              &param);
    CHECK(!UCS_PTR_IS_ERR(request), "%s",
          ucs_status_string(UCS_PTR_STATUS(request)));
}

/* The target's part; a system call now and then must not be seen in a median */
static void answer_some(void)
{
    static unsigned long answered;
    int i;

    for (i = 0; i < 4096; ++i) {
        ucp_worker_progress(side.worker);
        if (answered != messages_received) {
            ++answered;
            send_message();
        }
    }
}

static void message_and_answer(void)
{
    unsigned long before = messages_received;

    send_message();
    while (messages_received == before) {
        ucp_worker_progress(side.worker);
    }
}


/* ---- put ---- */

static void compute_one_second(void)
{
    double end = now_us() + 1e6;

    while (now_us() < end) {
    }
}

/* Serves until told to end. Its last answer is what was put last. */
static void target_main(void)
{
    uint64_t *memory = map_memory(sizeof(payload));
    char cmd;

    memset(memory, 0, sizeof(payload));
    target_open(features(), memory, sizeof(payload));
    if (is_pair) {
        listen_for_messages();
    }
    for (cmd = 0; cmd != CMD_END;) {
        if (is_pair) {
            answer_some();
        } else {
            progress_some();
        }
        if (recv(side.sock, &cmd, 1, MSG_DONTWAIT) != 1) {
            continue;
        }
        if (cmd == CMD_COMPUTE) {
            send_all(&cmd, 1);
            compute_one_second();
        }
    }
    target_close(memory[0]);
}

static void put_flush(uint64_t value, int words)
{
    payload[0] = payload[words - 1] = value;
    wait_for(ucp_put_nbx(side.ep, payload, words * sizeof(*payload),
                         side.memory, side.rkey, &no_param));
    wait_for(ucp_ep_flush_nbx(side.ep, &no_param));
}

static void computing_main(int words)
{
    static double times[COMPUTING_PUTS];
    uint64_t value, seen;
    double began, start;
    char answer;
    int i;

    for (value = 1; value <= 200; ++value) {
        put_flush(value, words);
    }
    command(CMD_COMPUTE, &answer, 1);

    /* Only while the target certainly computes */
    began = now_us();
    for (i = 0; (i < COMPUTING_PUTS) && (now_us() < began + 0.8e6);
         ++i, ++value) {
        while (now_us() < began + i * COMPUTING_INTERVAL_US) {
        }
        start = now_us();
        put_flush(value, words);
        times[i] = now_us() - start;
    }

    command(CMD_END, &seen, sizeof(seen));
    CHECK(seen == value - 1, "the target's memory has another value");
    sort_values(times, i);
    printf("median_us %.3f p99_us %.3f puts %d\n", times[i / 2],
           times[(i * 99) / 100], i);
}

/* Microseconds of a put and flush, or of a message there and back; *value is
 * what was put last */
static double batch(bool is_put, int words, uint64_t *value)
{
    double start = now_us();
    int i;

    for (i = 0; i < BATCH; ++i) {
        if (is_put) {
            put_flush(++*value, words);
        } else {
            message_and_answer();
        }
    }
    return (now_us() - start) / BATCH;
}

static void pair_main(int words)
{
    static double puts[PAIRS], messages[PAIRS], ratios[PAIRS];
    uint64_t value = 0, seen;
    int i;

    listen_for_messages();
    for (i = -WARM_PAIRS; i < PAIRS; ++i) {
        puts[i < 0 ? 0 : i]     = batch(true, words, &value);
        messages[i < 0 ? 0 : i] = batch(false, words, &value);
    }
    for (i = 0; i < PAIRS; ++i) {
        ratios[i] = puts[i] / messages[i];
    }

    command(CMD_END, &seen, sizeof(seen));
    CHECK(seen == value, "the target's memory has another value");
    printf("put_us %.3f am_us %.3f ratio %.3f\n", median(puts, PAIRS),
           median(messages, PAIRS), median(ratios, PAIRS));
}


static void initiator_main(void)
{
    initiator_open(features());
    if (is_pair) {
        pair_main(amount / sizeof(uint64_t));
    } else {
        computing_main(amount / sizeof(uint64_t));
    }
    initiator_close();
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";

    is_pair = !strcmp(kind, "put-pair");
    amount  = argc > 2 ? strtoul(argv[2], NULL, 0) : sizeof(uint64_t);
    if (!(is_pair || !strcmp(kind, "put-computing")) || (amount == 0) ||
        (amount > sizeof(payload)) || (amount % sizeof(uint64_t) != 0)) {
        fprintf(stderr, "usage: ucp_bench put-computing|put-pair [BYTES]\n");
        return 2;
    }

    /* Pages of its own, not the one of zeroes that is always in the cache */
    memset(payload, 0x55, sizeof(payload));
    return run_both(target_main, initiator_main);
}
