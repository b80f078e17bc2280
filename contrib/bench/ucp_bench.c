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

static void compute_one_second(void)
{
    double end = now_us() + 1e6;

    while (now_us() < end) {
    }
}

/* Serves until told to end; shows its memory for put */
static void target_main(int sock, int has_endpoint)
{
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
    };
    static uint64_t memory[MAX_WORDS] __attribute__((aligned(4096)));
    ucp_request_param_t param = {0};
    uint64_t address = (uintptr_t)memory;
    ucp_address_t *worker_address;
    ucp_mem_h memh;
    size_t length;
    void *rkey;
    void *peer_address;
    ucp_ep_h back = NULL;
    side_t side;
    char cmd;

    side_init(&side, sock, sysconf(_SC_NPROCESSORS_ONLN) > 1);
    map.address = memory;
    map.length  = sizeof(memory);
    UCP_CHECK(ucp_worker_get_address(side.worker, &worker_address, &length));
    send_blob(sock, worker_address, length);
    UCP_CHECK(ucp_mem_map(side.context, &map, &memh));
    UCP_CHECK(ucp_rkey_pack(side.context, memh, &rkey, &length));
    send_blob(sock, rkey, length);
    ucp_rkey_buffer_release(rkey);

    /* An endpoint back, as most programs have one: UCP polls no interface that
     * it has not sent or received anything on */
    peer_address = recv_blob(sock);
    if (has_endpoint) {
        back = make_ep(&side, peer_address);
        wait_for(&side, ucp_ep_flush_nbx(back, &param));
    }
    send_all(sock, &address, sizeof(address));

    for (cmd = 0; cmd != CMD_END;) {
        progress_some(&side);
        if (recv(sock, &cmd, 1, MSG_DONTWAIT) != 1) {
            continue;
        }
        if (cmd == CMD_COMPUTE) {
            send_all(sock, &cmd, 1);
            compute_one_second();
        }
    }

    if (has_endpoint) {
        close_ep(&side, back);
    }
    free(peer_address);
    send_all(sock, &memory[0], sizeof(memory[0]));
    ucp_mem_unmap(side.context, memh);
    ucp_worker_release_address(side.worker, worker_address);
    side_cleanup(&side);
}

static void put_flush(side_t *side, ucp_ep_h ep, ucp_rkey_h rkey,
                      uint64_t remote, uint64_t value, int words)
{
    static uint64_t data[MAX_WORDS];
    ucp_request_param_t param = {0};

    data[0] = data[words - 1] = value;
    wait_for(side, ucp_put_nbx(ep, data, words * sizeof(*data), remote, rkey,
                               &param));
    wait_for(side, ucp_ep_flush_nbx(ep, &param));
}

/* The target closes its endpoint, which takes progress on both sides */
static void wait_for_end(side_t *side, uint64_t *seen)
{
    while (recv(side->sock, seen, sizeof(*seen), MSG_DONTWAIT) !=
           sizeof(*seen)) {
        ucp_worker_progress(side->worker);
    }
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

static void put_main(side_t *side, ucp_ep_h ep, ucp_rkey_h rkey,
                     uint64_t remote, int computing, int words)
{
    int count     = computing ? 400 : 20000;
    double *times = calloc(count, sizeof(*times));
    double start, began;
    uint64_t value, seen;
    char cmd = CMD_COMPUTE;
    int i, done;

    for (value = 1; value <= 200; ++value) {
        put_flush(side, ep, rkey, remote, value, words);
    }
    if (computing) {
        send_all(side->sock, &cmd, 1);
        recv_all(side->sock, &cmd, 1);
    }

    /* Only while the target certainly computes */
    began = now_us();
    for (i = 0; (i < count) && (!computing || (now_us() < began + 0.8e6));
         ++i, ++value) {
        while (computing && (now_us() < began + i * COMPUTING_INTERVAL_US)) {
        }
        start = now_us();
        put_flush(side, ep, rkey, remote, value, words);
        times[i] = now_us() - start;
    }

    done = i;
    cmd  = CMD_END;
    send_all(side->sock, &cmd, 1);
    wait_for_end(side, &seen);
    CHECK(seen == value - 1, "the target's memory has another value");
    sort_values(times, done);
    printf("median_us %.3f p99_us %.3f max_us %.3f gap_us %.3f puts %d\n",
           times[done / 2], times[(done * 99) / 100], times[done - 1],
           longest_gap_us(), done);
    free(times);
}

static void connect_main(side_t *side, const ucp_address_t *address, int count)
{
    ucp_request_param_t param = {0};
    ucp_ep_h *eps             = calloc(count, sizeof(*eps));
    ucs_status_ptr_t *req     = calloc(count, sizeof(*req));
    char cmd                  = CMD_END;
    double start, end;
    uint64_t seen;
    int i;

    start = now_us();
    for (i = 0; i < count; ++i) {
        eps[i] = make_ep(side, address);
        req[i] = ucp_ep_flush_nbx(eps[i], &param);
    }
    for (i = 0; i < count; ++i) {
        wait_for(side, req[i]);
    }
    end = now_us();
    for (i = 0; i < count; ++i) {
        close_ep(side, eps[i]);
    }

    send_all(side->sock, &cmd, 1);
    wait_for_end(side, &seen);
    printf("us_per_endpoint %.2f total_us %.1f endpoints %d\n",
           (end - start) / count, end - start, count);
    free(req);
    free(eps);
}

static void initiator_main(int sock, const char *kind, int count)
{
    void *address, *packed;
    ucp_address_t *own;
    size_t length;
    ucp_rkey_h rkey;
    uint64_t remote;
    ucp_ep_h ep;
    side_t side;

    side_init(&side, sock, 0);
    address = recv_blob(sock);
    packed  = recv_blob(sock);
    UCP_CHECK(ucp_worker_get_address(side.worker, &own, &length));
    send_blob(sock, own, length);
    ucp_worker_release_address(side.worker, own);
    while (recv(sock, &remote, sizeof(remote), MSG_DONTWAIT) !=
           sizeof(remote)) {
        ucp_worker_progress(side.worker);
    }

    if (strcmp(kind, "connect") == 0) {
        connect_main(&side, address, count);
    } else {
        ep = make_ep(&side, address);
        UCP_CHECK(ucp_ep_rkey_unpack(ep, packed, &rkey));
        put_main(&side, ep, rkey, remote, strcmp(kind, "put-computing") == 0,
                 count / sizeof(uint64_t));
        ucp_rkey_destroy(rkey);
        close_ep(&side, ep);
    }

    free(packed);
    free(address);
    side_cleanup(&side);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    int is_connect   = (strcmp(kind, "connect") == 0);
    int count        = argc > 2 ? atoi(argv[2]) : (int)sizeof(uint64_t);
    int max          = is_connect ? 1 << 20 : MAX_WORDS * sizeof(uint64_t);
    int socks[2], status;
    pid_t child;

    if ((strcmp(kind, "put-polling") && strcmp(kind, "put-listening") &&
         strcmp(kind, "put-computing") && !is_connect) || (count > max) ||
        (count < (is_connect ? 1 : (int)sizeof(uint64_t))) ||
        (!is_connect && (count % sizeof(uint64_t)))) {
        fprintf(stderr, "usage: ucp_bench put-polling [BYTES] | put-listening "
                        "[BYTES] |\n       put-computing [BYTES] | connect "
                        "ENDPOINTS\n");
        return 2;
    }

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0, "socketpair");
    child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        close(socks[0]);
        target_main(socks[1], strcmp(kind, "put-listening") != 0);
        exit(EXIT_SUCCESS);
    }

    close(socks[1]);
    initiator_main(socks[0], kind, count);
    CHECK((waitpid(child, &status, 0) == child) && (status == 0),
          "the target process failed");
    return EXIT_SUCCESS;
}
