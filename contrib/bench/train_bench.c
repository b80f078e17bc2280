/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The training of a recommendation model by four ranks, as a program on UCP:
 *
 *   train_bench STEPS COMPUTE [no-rows]
 *
 * Large tables of parameters are spread over the ranks, so before a layer is
 * computed, a rank gets a row of 256 bytes from each of the others. All other
 * parameters are on every rank, and their gradients are summed over the ranks:
 * 64 MiB in each step, in buckets of 4 MiB, each of four layers. While a bucket
 * is summed, the next layers are computed. An accelerator would do that for
 * COMPUTE microseconds: the CPU has nothing to do but progress, at intervals.
 * So what a row waits for gradients delays the accelerator. With no-rows, none
 * are needed.
 *
 * To sum a bucket, each rank tells the others that theirs is ready, gets its
 * quarter of it from each, adds, tells the others, and gets their quarters.
 * Messages, rows and gradients use one endpoint to each peer, as programs do.
 *
 * Prints medians over the steps of rank 0: milliseconds of a step, microseconds
 * that the rows of a layer have taken, and the megabytes per second that its
 * port has sent. The contents are checked.
 */

#include "ucp_side.h"

#include <stdatomic.h>
#include <signal.h>

#define NUM_RANKS     4
#define NUM_BUCKETS   16
#define NUM_LAYERS    4 /* Of a bucket */
#define BUCKET_BYTES  (4ul << 20)
#define PART_BYTES    (BUCKET_BYTES / NUM_RANKS)
#define PART_COUNT    (PART_BYTES / sizeof(float))
#define TOTAL_BYTES   (NUM_BUCKETS * BUCKET_BYTES)
#define ROW_BYTES     256
#define ROW_COUNT     ((int)(ROW_BYTES / sizeof(uint64_t)))
#define NUM_ROWS      256
#define MAX_STEPS     1000

/* Memory that peers read */
#define SUMS_PLACE    TOTAL_BYTES
#define ROWS_PLACE    (2 * TOTAL_BYTES)
#define SHARED_BYTES  (ROWS_PLACE + (NUM_ROWS * ROW_BYTES))

/* Between two calls of progress: each rank has a part of a CPU only */
#define PROGRESS_US   20

#define MAX_BLOB      2048
#define ANY_TAG       0

/* What a rank tells the others of a bucket */
typedef enum {
    READY,
    SUMMED
} word_t;

typedef struct {
    word_t word;
    int    bucket;
    int    from;
} message_t;

typedef struct {
    ucs_status_ptr_t request;
    bool             is_told;
    bool             is_posted;
    bool             is_done;
} part_t;

typedef struct {
    bool   is_ready;
    bool   is_summed;
    bool   is_done;
    part_t parts[2][NUM_RANKS]; /* By word: what is got after it */
} bucket_t;

/* What others need to know of a rank */
typedef struct {
    uint64_t memory;
    size_t   address_length;
    size_t   rkey_length;
    char     address[MAX_BLOB];
    char     rkey[MAX_BLOB];
} card_t;

/* In memory of all processes, which loads no link */
typedef struct {
    _Atomic unsigned arrived;
    card_t           cards[NUM_RANKS];
} board_t;

static board_t          *board;
static int              rank;
static unsigned         num_barriers;
static side_t           side;
static ucp_ep_h         eps[NUM_RANKS];
static ucp_rkey_h       rkeys[NUM_RANKS];
static char             *shared, *staging;
static bucket_t         buckets[NUM_BUCKETS];
static message_t        message;
static ucs_status_ptr_t received;
static double           compute_us; /* For a layer */
static bool             has_rows = true;

static const ucp_request_param_t no_param;

static float *gradients_of(int bucket, int part)
{
    return (float*)(shared + (bucket * BUCKET_BYTES) + (part * PART_BYTES));
}

static float *sums_of(int bucket, int part)
{
    return (float*)(shared + SUMS_PLACE + (bucket * BUCKET_BYTES) +
                    (part * PART_BYTES));
}

/* Where this rank's part of another rank's gradients comes to */
static float *staging_of(int bucket, int from)
{
    return (float*)(staging + (bucket * BUCKET_BYTES) + (from * PART_BYTES));
}

/* Place is in the shared memory of the peer. */
static ucs_status_ptr_t get_from(int peer, void *buffer, size_t place,
                                 size_t bytes)
{
    return ucp_get_nbx(eps[peer], buffer, bytes,
                       board->cards[peer].memory + place, rkeys[peer],
                       &no_param);
}


/* ---- buckets ---- */

static void tell(word_t word, int bucket)
{
    message_t own = {word, bucket, rank};
    int peer;

    for (peer = 0; peer < NUM_RANKS; ++peer) {
        if (peer != rank) {
            wait_for(&side, ucp_tag_send_nbx(eps[peer], &own, sizeof(own), 1,
                                             &no_param));
        }
    }
}

static void receive(void)
{
    while (is_done(&received)) {
        if (message.from >= 0) {
            buckets[message.bucket].parts[message.word][message.from].is_told =
                    true;
        }
        message.from = -1;
        received     = ucp_tag_recv_nbx(side.worker, &message, sizeof(message),
                                        1, ANY_TAG, &no_param);
        if (received == NULL) {
            CHECK(message.from >= 0, "an empty message");
        }
    }
}

static void add_parts(int bucket)
{
    float *sum       = sums_of(bucket, rank);
    const float *own = gradients_of(bucket, rank);
    const float *other;
    int peer;
    size_t i;

    memcpy(sum, own, PART_BYTES);
    for (peer = 0; peer < NUM_RANKS; ++peer) {
        if (peer != rank) {
            other = staging_of(bucket, peer);
            for (i = 0; i < PART_COUNT; ++i) {
                sum[i] += other[i];
            }
        }
    }
}

/* @return Nonzero if all peers have told and what they have is here. */
static bool get_parts(int bucket, word_t word)
{
    size_t base = bucket * BUCKET_BYTES;
    int num     = 0;
    part_t *part;
    int peer;

    for (peer = 0; peer < NUM_RANKS; ++peer) {
        part = &buckets[bucket].parts[word][peer];
        if (part->is_told && !part->is_posted) {
            part->request = (word == READY) ?
                    get_from(peer, staging_of(bucket, peer),
                             base + (rank * PART_BYTES), PART_BYTES) :
                    get_from(peer, sums_of(bucket, peer),
                             SUMS_PLACE + base + (peer * PART_BYTES),
                             PART_BYTES);
            part->is_posted = true;
        }
        part->is_done = part->is_done ||
                        (part->is_posted && is_done(&part->request));
        num          += part->is_done;
    }
    return num == NUM_RANKS - 1;
}

/* @return Nonzero if all buckets are done. */
static bool advance(void)
{
    int num = 0;
    bucket_t *bucket;
    int i;

    ucp_worker_progress(side.worker);
    receive();
    for (i = 0; i < NUM_BUCKETS; ++i) {
        bucket = &buckets[i];
        if (bucket->is_ready && !bucket->is_done) {
            if (!bucket->is_summed && get_parts(i, READY)) {
                add_parts(i);
                bucket->is_summed = true;
                tell(SUMMED, i);
            }
            bucket->is_done = get_parts(i, SUMMED) && bucket->is_summed;
        }
        num += bucket->is_done;
    }
    return num == NUM_BUCKETS;
}


/* ---- layers ---- */

static uint64_t row_value(int owner, int row)
{
    return (owner * 1000003ull) + row;
}

/* @return Nonzero if the rows are here. */
static bool have_rows(ucs_status_ptr_t *requests)
{
    bool all = true;
    int peer;

    for (peer = 0; peer < NUM_RANKS; ++peer) {
        all = is_done(&requests[peer]) && all;
    }
    return all;
}

/* Rows of a layer from all others */
static void get_rows(int row)
{
    static uint64_t rows[NUM_RANKS][ROW_COUNT];
    ucs_status_ptr_t requests[NUM_RANKS] = {NULL};
    int peer, i;

    for (peer = 0; peer < NUM_RANKS; ++peer) {
        if (peer != rank) {
            requests[peer] = get_from(peer, rows[peer],
                                      ROWS_PLACE + (row * ROW_BYTES),
                                      ROW_BYTES);
        }
    }
    for (advance(); !have_rows(requests); advance()) {
        usleep(PROGRESS_US);
    }
    for (i = 0; i < NUM_RANKS * ROW_COUNT; ++i) {
        peer = i / ROW_COUNT;
        CHECK((peer == rank) ||
              (rows[peer][i % ROW_COUNT] == row_value(peer, row)),
              "wrong row %d of rank %d", row, peer);
    }
    memset(rows, 0, sizeof(rows));
}

static void compute(void)
{
    double start = now_us();

    do {
        advance();
        usleep(PROGRESS_US);
    } while (now_us() - start < compute_us);
}

static void barrier(void)
{
    unsigned all = ++num_barriers * NUM_RANKS;

    atomic_fetch_add(&board->arrived, 1);
    while (atomic_load(&board->arrived) < all) {
        ucp_worker_progress(side.worker);
        usleep(PROGRESS_US);
    }
}

static void begin_step(int step)
{
    float *gradients = gradients_of(0, 0);
    size_t i;

    for (i = 0; i < TOTAL_BYTES / sizeof(float); ++i) {
        gradients[i] = step + rank;
    }
    memset(shared + SUMS_PLACE, 0, TOTAL_BYTES);
    memset(buckets, 0, sizeof(buckets));
    barrier();
}

static void check_sums(int step)
{
    float sum         = (NUM_RANKS * step) + (NUM_RANKS * (NUM_RANKS - 1) / 2);
    const float *sums = sums_of(0, 0);
    size_t i;

    for (i = 0; i < TOTAL_BYTES / sizeof(float); i += 1021) {
        CHECK(sums[i] == sum, "sum %zu of step %d is %f", i, step, sums[i]);
    }
}

/* @return Microseconds; *rows_p: those of the rows of a layer. */
static double run_step(int step, double *rows_p)
{
    double start, from;
    int i;

    begin_step(step);
    start   = now_us();
    *rows_p = 0;
    for (i = 0; i < NUM_BUCKETS * NUM_LAYERS; ++i) {
        from     = now_us();
        if (has_rows) {
            get_rows(((step * 61) + i) % NUM_ROWS);
        }
        *rows_p += (now_us() - from) / (NUM_BUCKETS * NUM_LAYERS);
        compute();
        if ((i + 1) % NUM_LAYERS == 0) {
            buckets[i / NUM_LAYERS].is_ready = true;
            tell(READY, i / NUM_LAYERS);
        }
    }
    while (!advance()) {
        usleep(PROGRESS_US);
    }
    barrier();
    start = now_us() - start;
    check_sums(step);
    return start;
}

static void run_steps(int num_steps)
{
    static double steps[MAX_STEPS], rows[MAX_STEPS];
    double bytes = 2.0 * (NUM_RANKS - 1) / NUM_RANKS * TOTAL_BYTES;
    double step;
    int i;

    run_step(0, rows); /* Keys and connections */
    for (i = 0; i < num_steps; ++i) {
        steps[i] = run_step(i + 1, &rows[i]);
    }
    step = median(steps, num_steps);
    if (rank == 0) {
        printf("step_ms %.2f rows_us %.1f mb_per_s %.1f\n", step * 1e-3,
               median(rows, num_steps), bytes / step);
    }
}


/* ---- ranks ---- */

static void fill_card(ucp_mem_h memh)
{
    card_t *card = &board->cards[rank];
    ucp_address_t *address;
    void *rkey;

    UCP_CHECK(ucp_worker_get_address(side.worker, &address,
                                     &card->address_length));
    UCP_CHECK(ucp_rkey_pack(side.context, memh, &rkey, &card->rkey_length));
    CHECK((card->address_length <= MAX_BLOB) && (card->rkey_length <= MAX_BLOB),
          "an address or a key is too long");
    memcpy(card->address, address, card->address_length);
    memcpy(card->rkey, rkey, card->rkey_length);
    card->memory = (uintptr_t)shared;
    ucp_worker_release_address(side.worker, address);
    ucp_rkey_buffer_release(rkey);
}

static void connect_all(void)
{
    int peer;

    for (peer = 0; peer < NUM_RANKS; ++peer) {
        if (peer != rank) {
            eps[peer] = make_ep(&side, (ucp_address_t*)
                                board->cards[peer].address);
            UCP_CHECK(ucp_ep_rkey_unpack(eps[peer], board->cards[peer].rkey,
                                         &rkeys[peer]));
        }
    }
}

static void disconnect_all(void)
{
    int peer;

    for (peer = 0; peer < NUM_RANKS; ++peer) {
        if (peer != rank) {
            ucp_rkey_destroy(rkeys[peer]);
            close_ep(&side, eps[peer]);
        }
    }
    ucp_request_cancel(side.worker, received);
    while (ucp_request_check_status(received) == UCS_INPROGRESS) {
        ucp_worker_progress(side.worker);
    }
    ucp_request_free(received);
}

static void run_rank(int num_steps)
{
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .length     = SHARED_BYTES
    };
    ucp_mem_h memh;
    uint64_t *row;
    int i, j;

    shared  = map_memory(SHARED_BYTES);
    staging = map_memory(TOTAL_BYTES);
    memset(shared, 0, SHARED_BYTES);
    for (i = 0; i < NUM_ROWS; ++i) {
        row = (uint64_t*)(shared + ROWS_PLACE + (i * ROW_BYTES));
        for (j = 0; j < ROW_COUNT; ++j) {
            row[j] = row_value(rank, i);
        }
    }
    side_init(&side, -1, rank, UCP_FEATURE_TAG | UCP_FEATURE_RMA);
    map.address = shared;
    UCP_CHECK(ucp_mem_map(side.context, &map, &memh));
    fill_card(memh);
    barrier();
    connect_all();
    message.from = -1;
    receive();
    run_steps(num_steps);
    barrier();
    disconnect_all();
    barrier();
    ucp_mem_unmap(side.context, memh);
    side_cleanup(&side);
}

/* If a rank fails, the others would wait for ever */
static int await_ranks(const pid_t *children)
{
    int i, j, status;

    for (i = 0; i < NUM_RANKS; ++i) {
        CHECK(wait(&status) > 0, "wait: %m");
        if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0)) {
            for (j = 0; j < NUM_RANKS; ++j) {
                kill(children[j], SIGKILL);
            }
            return EXIT_FAILURE;
        }
    }
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    int num_steps = ((argc == 3) || ((argc == 4) &&
                                     !strcmp(argv[3], "no-rows"))) ?
                    atoi(argv[1]) : 0;
    pid_t children[NUM_RANKS];

    compute_us = (num_steps > 0) ? atof(argv[2]) / NUM_LAYERS : -1;
    has_rows   = (argc != 4);
    if ((num_steps < 1) || (num_steps > MAX_STEPS) || (compute_us < 0)) {
        fprintf(stderr, "usage: train_bench STEPS COMPUTE [no-rows]: 1 to %d "
                        "steps, and microseconds for a bucket\n", MAX_STEPS);
        return 2;
    }

    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED, "cannot map memory: %m");
    for (rank = 0; rank < NUM_RANKS; ++rank) {
        children[rank] = fork();
        CHECK(children[rank] >= 0, "fork: %m");
        if (children[rank] == 0) {
            run_rank(num_steps);
            exit(EXIT_SUCCESS);
        }
    }
    return await_ranks(children);
}
