/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A stream of puts over one endpoint that overlap nowhere:
 *
 *   puts BYTES     puts of BYTES each
 *   small BYTES    a put of 8 bytes elsewhere behind each of them
 *   atomics BYTES  an atomic elsewhere behind each of them
 *   same BYTES     all puts to one place, as ucx_perftest has it: each of them
 *                  waits for the one before it
 *
 * Prints the megabytes per second of the large ones, the flush at the end
 * included. The target calls ucp_worker_progress() all the time.
 */

#include "ucp_side.h"

/* Where the puts go, all of it in turn; more than a cache has */
#define DATA_BYTES  (32u << 20)

/* Words behind that, one for each place */
#define MAX_PLACES  (DATA_BYTES / 8192)
#define TOTAL_BYTES (DATA_BYTES + (MAX_PLACES * sizeof(uint64_t)))

/* Puts that are not complete */
#define WINDOW      32

/* Bytes that warm up, and bytes that are measured */
#define WARM_BYTES  (2ul * DATA_BYTES)
#define BYTES       (1ul << 32)

#define CMD_END     'e'

static const char *kind;
static size_t     amount;

static uint64_t features(void)
{
    return UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
}

static void target_main(int sock)
{
    char *memory = mmap(NULL, TOTAL_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    target_t target;
    uint64_t sum = 0;
    size_t i;
    char cmd;

    CHECK(memory != MAP_FAILED, "mmap: %m");
    memset(memory, 0, TOTAL_BYTES);
    target_init(&target, sock, features(), memory, TOTAL_BYTES, 1);
    while (recv(sock, &cmd, 1, MSG_DONTWAIT) != 1) {
        progress_some(&target.side);
    }

    for (i = 0; i < MAX_PLACES; ++i) {
        sum += ((uint64_t*)(memory + DATA_BYTES))[i];
    }
    target_cleanup(&target, sum);
}

/* The word that belongs to a place */
static ucs_status_ptr_t
small_operation(initiator_t *initiator, size_t place, int is_atomic)
{
    static uint64_t one       = 1;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE,
        .datatype     = ucp_dt_make_contig(sizeof(one))
    };
    uint64_t address = initiator->memory + DATA_BYTES + (place * sizeof(one));

    if (is_atomic) {
        return ucp_atomic_op_nbx(initiator->ep, UCP_ATOMIC_OP_ADD, &one, 1,
                                 address, initiator->rkey, &param);
    }
    param.op_attr_mask = 0;
    return ucp_put_nbx(initiator->ep, &one, sizeof(one), address,
                       initiator->rkey, &param);
}

/* Microseconds that a number of puts take */
static double stream(initiator_t *initiator, const char *data, size_t count)
{
    ucs_status_ptr_t open[WINDOW] = {NULL}, small[WINDOW] = {NULL};
    ucp_request_param_t param     = {0};
    size_t num_places             = DATA_BYTES / amount;
    int is_same                   = strcmp(kind, "same") == 0;
    int is_atomic                 = strcmp(kind, "atomics") == 0;
    int is_plain                  = !is_atomic && strcmp(kind, "small");
    double start                  = now_us();
    size_t i, place;

    for (i = 0; i < count; ++i) {
        place = is_same ? 0 : i % num_places;
        wait_for(&initiator->side, open[i % WINDOW]);
        wait_for(&initiator->side, small[i % WINDOW]);
        open[i % WINDOW] = ucp_put_nbx(initiator->ep, data + (place * amount),
                                       amount,
                                       initiator->memory + (place * amount),
                                       initiator->rkey, &param);
        if (!is_plain) {
            small[i % WINDOW] = small_operation(initiator, place, is_atomic);
        }
    }
    for (i = 0; i < WINDOW; ++i) {
        wait_for(&initiator->side, open[i]);
        wait_for(&initiator->side, small[i]);
    }
    wait_for(&initiator->side, ucp_ep_flush_nbx(initiator->ep, &param));
    return now_us() - start;
}

static void initiator_main(int sock, pid_t target)
{
    size_t warm  = WARM_BYTES / amount;
    size_t count = BYTES / amount;
    initiator_t initiator;
    uint64_t seen;
    char *data;
    double us;

    initiator_init(&initiator, sock, target, features());
    initiator_connect(&initiator);
    data = malloc(DATA_BYTES);
    CHECK(data != NULL, "malloc: %m");
    memset(data, 0x55, DATA_BYTES);
    stream(&initiator, data, warm);
    us = stream(&initiator, data, count);
    command(&initiator, CMD_END, &seen, sizeof(seen));
    CHECK(strcmp(kind, "atomics") || (seen == warm + count),
          "%zu atomics, of which the target has seen %zu", warm + count,
          (size_t)seen);
    printf("mb_per_s %.1f puts %zu\n", (count * amount) / us, count);
    free(data);
    initiator_disconnect(&initiator);
    initiator_cleanup(&initiator);
}

int main(int argc, char **argv)
{
    kind   = argc > 1 ? argv[1] : "";
    amount = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;
    if ((strcmp(kind, "puts") && strcmp(kind, "small") &&
         strcmp(kind, "atomics") && strcmp(kind, "same")) ||
        (amount < 8192) || (amount > DATA_BYTES / 2)) {
        fprintf(stderr, "usage: order_bench puts|small|atomics|same BYTES\n"
                        "       (8192 to %u)\n", DATA_BYTES / 2);
        return 2;
    }

    return run_both(target_main, initiator_main);
}
