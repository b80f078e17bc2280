/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Small operations beside two large ones of 16 MiB of the same endpoint, which
 * are posted again whenever they are done:
 *
 *   tag BULK    a tag message of 8 bytes there and back
 *   get BULK    a get of 8 bytes
 *   add BULK    a fetch-add of 8 bytes
 *   flood BULK  puts of 8 bytes, a million a second if the machine can
 *   batch BULK  16 of 1 MiB, while one of 64 MiB goes on
 *
 * BULK is put, get, tag or, for the times without any, none. With port, another
 * process puts, and shares the port of NPEMU_LINK with the initiator; targets
 * have ports of their own then. That process has a CPU of its own, so that the
 * link is busy, and the other two alternate on another CPU. With port-idle
 * everything is the same, but it puts nothing.
 *
 * Prints the median and the 99th percentile of a small one in microseconds, and
 * the megabytes per second of the large ones. For flood: their bandwidth alone
 * and beside, how many small ones there were in a second, and the longest time
 * in milliseconds in which no large one of 1 MiB was done. For batch:
 * milliseconds until the 16 are done, without the large one, and with it on
 * another endpoint and on the same; and the megabytes per second of all with
 * another endpoint.
 */

#include "ucp_side.h"

#define NUM_LARGE    2
#define LARGE_BYTES  (16ul << 20)
#define FLOOD_LARGE  8
#define FLOOD_BYTES  (1ul << 20)
#define BATCH_LARGE  (64ul << 20)
#define BATCH_BYTES  (1ul << 20)
#define NUM_BATCH    16
#define DATA_BYTES   (BATCH_LARGE + (NUM_BATCH * BATCH_BYTES))

/* Behind the large ones */
#define SMALL_PLACE  DATA_BYTES
#define TOTAL_BYTES  (DATA_BYTES + 4096)

/* A large operation goes on for this long before the batch is posted */
#define HEAD_US      2e3

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

/* With another process on the port */
#define PROBE_CPU    0
#define LOAD_CPU     1

#define CMD_END      'e'
#define CMD_READY    'r'
#define CMD_COUNT    'c'

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

/* Another process has the port, and the two that probe share a CPU */
static bool is_shared;

/* To the process that puts on the same port; -1: none */
static int load_sock = -1;

/* To be called where nothing is to be done */
static inline void give_way(void)
{
    if (is_shared) {
        sched_yield();
    }
}

static uint64_t features(void)
{
    return UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
}

/* The port of NPEMU_LINK is for the initiators only */
static void leave_port(void)
{
    const char *link = getenv("NPEMU_LINK");
    const char *port = (link == NULL) ? NULL : strstr(link, ",port=");
    char *text;

    if ((port != NULL) && (load_sock >= 0)) {
        CHECK(asprintf(&text, "%.*s%s", (int)(port - link), link,
                       strchrnul(port + 1, ',')) > 0, "asprintf: %m");
        setenv("NPEMU_LINK", text, 1);
        free(text);
    }
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

    leave_port();
    memset(memory, 1, TOTAL_BYTES);
    target_init(&target, sock, features(), memory, TOTAL_BYTES, 1);
    if (is_shared) {
        bind_to(PROBE_CPU);
    }
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
            } else {
                give_way();
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

/* @return A request for bytes at a place in the memory of both processes. */
static ucs_status_ptr_t post_bulk(const initiator_t *initiator, char *data,
                                  size_t place, size_t bytes)
{
    ucp_request_param_t param = {0};
    uint64_t address          = initiator->memory + place;

    data += place;
    if (!strcmp(bulk, "put") || is_shared) {
        return ucp_put_nbx(initiator->ep, data, bytes, address,
                           initiator->rkey, &param);
    } else if (!strcmp(bulk, "get")) {
        return ucp_get_nbx(initiator->ep, data, bytes, address,
                           initiator->rkey, &param);
    }
    return ucp_tag_send_nbx(initiator->ep, data, bytes, TAG_LARGE, &param);
}

static ucs_status_ptr_t post_large(run_t *run, unsigned i)
{
    return post_bulk(&run->initiator, run->data, i * run->bytes, run->bytes);
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

static void count_load(void)
{
    const char cmd = CMD_COUNT;

    if (load_sock >= 0) {
        send_all(load_sock, &cmd, 1);
    }
}

/* @return Megabytes per second of the large ones of the process on the same
 *         port, or of this one since the time begin. */
static double end_load(run_t *run, double begin)
{
    const char cmd = CMD_END;
    double rate    = (run->num_done * LARGE_BYTES) / (now_us() - begin);

    if (load_sock >= 0) {
        send_all(load_sock, &cmd, 1);
        recv_all(load_sock, &rate, sizeof(rate));
    }
    return rate;
}

static void measure_latency(run_t *run)
{
    double *values = malloc(MAX_VALUES * sizeof(*values));
    double start   = now_us(), begin = 0, now, from, rate;
    bool has_large = strcmp(bulk, "none") && !is_shared;
    size_t count   = 0;
    ucs_status_ptr_t small;

    CHECK(values != NULL, "malloc: %m");
    start_large(run, has_large ? NUM_LARGE : 0, LARGE_BYTES);
    do {
        from  = now_us();
        small = post_small(run);
        while (!is_done(&small)) {
            ucp_worker_progress(run->initiator.side.worker);
            repost(run);
            give_way();
        }
        now = now_us();
        if (begin == 0) {
            if (now - start > WARM_US) {
                begin = now;
                start_count(run);
                count_load();
            }
        } else if (count < MAX_VALUES) {
            values[count++] = now - from;
        }
    } while ((begin == 0) || (now - begin < MEASURED_US));
    rate = end_load(run, begin);
    sort_values(values, count);
    printf("p50_us %.2f p99_us %.2f values %zu mb_per_s %.1f\n",
           values[count / 2], values[count * 99 / 100], count, rate);
    free(values);
}

/* @return Megabytes per second of the large ones; *rate_p: small ones in a
 *         second. */
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

/* @return Milliseconds until a batch is done. */
static double time_batch(run_t *run, const initiator_t *to)
{
    double start = now_us();
    ucs_status_ptr_t batch[NUM_BATCH];
    unsigned i;

    for (i = 0; i < NUM_BATCH; ++i) {
        batch[i] = post_bulk(to, run->data, BATCH_LARGE + (i * BATCH_BYTES),
                             BATCH_BYTES);
    }
    for (i = 0; i < NUM_BATCH; ++i) {
        wait_for(&run->initiator.side, batch[i]);
    }
    return (now_us() - start) * 1e-3;
}

/* The same while a large one goes on; *rate_p: megabytes per second of all. */
static double time_beside(run_t *run, const initiator_t *to, double *rate_p)
{
    double start           = now_us();
    ucs_status_ptr_t large = post_bulk(&run->initiator, run->data, 0,
                                       BATCH_LARGE);
    double time;

    while (now_us() - start < HEAD_US) {
        ucp_worker_progress(run->initiator.side.worker);
    }
    CHECK(!is_done(&large), "the large one is done too early");
    time = time_batch(run, to);
    wait_for(&run->initiator.side, large);
    *rate_p = (BATCH_LARGE + (NUM_BATCH * BATCH_BYTES)) / (now_us() - start);
    return time;
}

static void measure_batch(run_t *run)
{
    initiator_t other = run->initiator;
    double alone, apart, same, rate, rate_same;

    initiator_connect(&other);
    time_beside(run, &other, &rate); /* Keys and connections */
    alone = time_batch(run, &other);
    apart = time_beside(run, &other, &rate);
    same  = time_beside(run, &run->initiator, &rate_same);
    printf("alone_ms %.2f apart_ms %.2f same_ms %.2f mb_per_s %.1f\n", alone,
           apart, same, rate);
    initiator_disconnect(&other);
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
    } else if (!strcmp(probe, "batch")) {
        measure_batch(&run);
    } else {
        measure_latency(&run);
    }
    start_large(&run, 0, 0);
    command(&run.initiator, CMD_END, &last, sizeof(last));
    initiator_disconnect(&run.initiator);
    initiator_cleanup(&run.initiator);
}


/* ---- another process on the port ---- */

/* What load_initiator() puts must be there when it ends */
static void load_target(int sock)
{
    char *memory = map_memory(TOTAL_BYTES);
    size_t bytes = strcmp(bulk, "port") ? 8 : NUM_LARGE * LARGE_BYTES;
    target_t target;
    size_t i;
    char cmd;

    leave_port();
    memset(memory, 1, TOTAL_BYTES);
    target_init(&target, sock, UCP_FEATURE_RMA, memory, TOTAL_BYTES, 1);
    while (recv(sock, &cmd, 1, MSG_DONTWAIT) != 1) {
        ucp_worker_progress(target.side.worker);
    }
    send_all(sock, &cmd, 1);
    recv_all(sock, &cmd, 1); /* Asleep: the puts need no CPU of it */
    for (i = 0; i < bytes; ++i) {
        CHECK(memory[i] == 2, "byte %zu is not what has been put", i);
    }
    target_cleanup(&target, 0);
}

/* Puts until it is told to end */
static void load_run(run_t *run)
{
    double begin = now_us(), rate;
    char cmd     = CMD_READY;
    ssize_t ret;

    start_large(run, strcmp(bulk, "port") ? 0 : NUM_LARGE, LARGE_BYTES);
    while (cmd != CMD_END) {
        ucp_worker_progress(run->initiator.side.worker);
        repost(run);
        ret = recv(load_sock, &cmd, 1, MSG_DONTWAIT);
        if (ret == 0) {
            cmd = CMD_END; /* The other process has failed */
        } else if ((ret == 1) && (cmd == CMD_COUNT)) {
            begin = now_us();
            start_count(run);
        }
    }
    rate = (run->num_done * LARGE_BYTES) / (now_us() - begin);
    start_large(run, 0, 0);
    send(load_sock, &rate, sizeof(rate), MSG_NOSIGNAL);
}

static void load_initiator(int sock, pid_t target)
{
    char cmd  = CMD_READY;
    run_t run = {};
    uint64_t last;

    initiator_init(&run.initiator, sock, target, UCP_FEATURE_RMA);
    initiator_connect(&run.initiator);
    bind_to(LOAD_CPU);
    run.data = map_memory(DATA_BYTES);
    memset(run.data, 2, DATA_BYTES);
    wait_for(&run.initiator.side, post_bulk(&run.initiator, run.data, 0, 8));
    command(&run.initiator, CMD_READY, &cmd, 1);
    send_all(load_sock, &cmd, 1);
    load_run(&run);
    command(&run.initiator, CMD_END, &last, sizeof(last));
    initiator_disconnect(&run.initiator);
    initiator_cleanup(&run.initiator);
}

/* @return The process that puts; it puts already. */
static pid_t start_load(void)
{
    int socks[2];
    pid_t child;
    char cmd;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0, "socketpair: %m");
    child = fork();
    CHECK(child >= 0, "fork: %m");
    load_sock = socks[child == 0];
    close(socks[child != 0]);
    if (child == 0) {
        exit(run_both(load_target, load_initiator));
    }
    recv_all(load_sock, &cmd, 1);
    return child;
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words != NULL; ++words) {
        if (!strcmp(word, *words)) {
            return true;
        }
    }
    return false;
}

static bool has_meaning(void)
{
    static const char *const probes[] = {"tag", "get", "add", NULL};
    static const char *const bulks[]  = {"put", "get", "tag", "port",
                                         "port-idle", "none", NULL};
    static const char *const apart[]  = {"flood", "batch", NULL};
    static const char *const rma[]    = {"put", "get", NULL};

    return (is_one_of(probe, probes) && is_one_of(bulk, bulks)) ||
           (is_one_of(probe, apart) && is_one_of(bulk, rma));
}

int main(int argc, char **argv)
{
    pid_t load = 0;
    int status, ret;

    probe = (argc == 3) ? argv[1] : "";
    bulk  = (argc == 3) ? argv[2] : "";
    if (!has_meaning()) {
        fprintf(stderr, "usage: prio_bench tag|get|add put|get|tag|port|"
                        "port-idle|none\n"
                        "       prio_bench flood|batch put|get\n");
        return 2;
    }

    is_shared = !strncmp(bulk, "port", 4);
    if (is_shared) {
        load = start_load();
    }
    ret = run_both(target_main, initiator_main);
    CHECK((load == 0) || ((waitpid(load, &status, 0) == load) &&
                          WIFEXITED(status) && (WEXITSTATUS(status) == 0)),
          "the other process on the port has failed");
    return ret;
}
