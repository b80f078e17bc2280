/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * signal_bench message|flag|alone BYTES
 *
 * A put of BYTES and a signal behind it without a fence: an active message, or
 * a put of 8 bytes that the target polls. "alone": the message without the put.
 * The target answers each signal by a message. Prints the microseconds of a
 * round trip.
 */

#include "ucp_side.h"

#define MAX_BYTES  (16u << 20)
#define AM_ID      1

/* Round trips that warm up, and that are measured */
#define WARM       500
#define ROUNDS     5000

#define CMD_END    'e'

static const char *kind;
static size_t     amount;
static uint64_t   num_messages;

static uint64_t features(void)
{
    return UCP_FEATURE_RMA | UCP_FEATURE_AM;
}

static ucs_status_t count_message(void *arg, const void *header,
                                  size_t header_length, void *data,
                                  size_t length,
                                  const ucp_am_recv_param_t *param)
{
    (void)arg, (void)header, (void)header_length, (void)data, (void)length,
            (void)param;
    ++num_messages;
    return UCS_OK;
}

static void take_messages(side_t *side)
{
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = AM_ID,
        .cb         = count_message
    };

    UCP_CHECK(ucp_worker_set_am_recv_handler(side->worker, &handler));
}

static ucs_status_ptr_t send_message(ucp_ep_h ep)
{
    static const uint64_t header    = 0;
    const ucp_request_param_t param = {0};

    return ucp_am_send_nbx(ep, AM_ID, &header, sizeof(header), NULL, 0, &param);
}

static void target_main(int sock)
{
    char *memory = mmap(NULL, MAX_BYTES + sizeof(uint64_t),
                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
    int is_flag       = strcmp(kind, "flag") == 0;
    uint64_t answered = 0, sum = 0;
    volatile uint64_t *flag;
    target_t target;
    char cmd;
    int i;

    CHECK(memory != MAP_FAILED, "mmap: %m");
    memset(memory, 0, MAX_BYTES + sizeof(*flag));
    flag = (uint64_t*)(memory + MAX_BYTES);
    target_init(&target, sock, features(), memory, MAX_BYTES + sizeof(*flag),
                1);
    take_messages(&target.side);
    send_all(sock, &sum, sizeof(sum)); /* Ready for messages */
    while (recv(sock, &cmd, 1, MSG_DONTWAIT) != 1) {
        for (i = 0; i < 1000; ++i) {
            ucp_worker_progress(target.side.worker);
            if ((is_flag ? *flag : num_messages) > answered) {
                ++answered;
                wait_for(&target.side, send_message(target.back));
            }
        }
    }
    target_cleanup(&target, sum);
}

/* Microseconds of one of a number of round trips */
static double run(initiator_t *initiator, const char *data, int count)
{
    static uint64_t sequence;
    const ucp_request_param_t param = {0};
    ucs_status_ptr_t put            = NULL, signal;
    double start                    = now_us();
    int i;

    for (i = 0; i < count; ++i) {
        ++sequence;
        if (strcmp(kind, "alone")) {
            put = ucp_put_nbx(initiator->ep, data, amount, initiator->memory,
                              initiator->rkey, &param);
        }
        signal = strcmp(kind, "flag") ?
                 send_message(initiator->ep) :
                 ucp_put_nbx(initiator->ep, &sequence, sizeof(sequence),
                             initiator->memory + MAX_BYTES, initiator->rkey,
                             &param);
        while (num_messages < sequence) {
            ucp_worker_progress(initiator->side.worker);
        }
        wait_for(&initiator->side, put);
        wait_for(&initiator->side, signal);
    }
    return (now_us() - start) / count;
}

static void initiator_main(int sock, pid_t target)
{
    initiator_t initiator;
    uint64_t answer;
    char *data;

    initiator_init(&initiator, sock, target, features());
    take_messages(&initiator.side);
    await_answer(&initiator, &answer, sizeof(answer));
    initiator_connect(&initiator);
    data = malloc(MAX_BYTES);
    CHECK(data != NULL, "malloc: %m");
    memset(data, 0x55, MAX_BYTES);
    run(&initiator, data, WARM);
    printf("us %.3f\n", run(&initiator, data, ROUNDS));
    command(&initiator, CMD_END, &answer, sizeof(answer));
    free(data);
    initiator_disconnect(&initiator);
    initiator_cleanup(&initiator);
}

int main(int argc, char **argv)
{
    kind   = argc > 1 ? argv[1] : "";
    amount = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;
    if ((strcmp(kind, "message") && strcmp(kind, "flag") &&
         strcmp(kind, "alone")) ||
        (amount < 1) || (amount > MAX_BYTES)) {
        fprintf(stderr, "usage: signal_bench message|flag|alone BYTES\n"
                        "       (1 to %u)\n", MAX_BYTES);
        return 2;
    }

    return run_both(target_main, initiator_main);
}
