/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A slab of memory that others get from, as stores of key-value pairs have it.
 * slab_bench BYTES USED: a process exports BYTES of untouched memory, then
 * writes the first USED of them. Another one gets these twice, in pieces of
 * 1 MiB; the contents are checked. Prints "export_us", the microseconds of
 * ucp_mem_map() and ucp_rkey_pack(), "resident_mb", by how many MiB these and
 * UCX itself made the process larger, and "first_us" and "second_us" of all
 * gets.
 */

#include "ucp_side.h"

#define PIECE  (1ul << 20)
#define WINDOW 8

static size_t length, used;

static void target_main(void)
{
    char *memory = map_memory(length);
    double answer[2];
    long before;
    size_t i;
    char cmd;

    before = resident_bytes();
    target_open(UCP_FEATURE_RMA, memory, length);
    answer[0] = side.export_us;
    answer[1] = (resident_bytes() - before) / 1048576.0;
    for (i = 0; i < used; i += sizeof(i)) {
        *(size_t*)(memory + i) = i;
    }
    send_all(answer, sizeof(answer));
    while (recv(side.sock, &cmd, 1, MSG_DONTWAIT) != 1) {
        progress_some();
    }
    target_close(0);
}

/* Microseconds */
static double get_all(char *buffer)
{
    ucs_status_ptr_t requests[WINDOW] = {NULL};
    double start                      = now_us();
    size_t i, end = used / PIECE;
    char *piece;

    for (i = 0; i < end + WINDOW; ++i) {
        piece = buffer + (i % WINDOW) * PIECE;
        wait_for(requests[i % WINDOW]);
        CHECK((i < WINDOW) || (*(size_t*)piece == (i - WINDOW) * PIECE),
              "wrong data");
        requests[i % WINDOW] = (i >= end) ? NULL :
                ucp_get_nbx(side.ep, piece, PIECE, side.memory + i * PIECE,
                            side.rkey, &no_param);
    }
    return now_us() - start;
}

static void initiator_main(void)
{
    char *buffer = map_memory(WINDOW * PIECE);
    double answer[2], first;
    uint64_t last;

    memset(buffer, 0x55, WINDOW * PIECE);
    initiator_open(UCP_FEATURE_RMA);
    recv_all(answer, sizeof(answer));
    first = get_all(buffer);
    printf("export_us %.1f resident_mb %.2f first_us %.0f second_us %.0f\n",
           answer[0], answer[1], first, get_all(buffer));
    command('e', &last, sizeof(last));
    initiator_close();
}

int main(int argc, char **argv)
{
    length = (argc == 3) ? strtoull(argv[1], NULL, 0) : 0;
    used   = (argc == 3) ? strtoull(argv[2], NULL, 0) : 0;
    CHECK((used >= WINDOW * PIECE) && (used <= length),
          "usage: slab_bench BYTES USED, 8 MiB or more");
    return run_both(target_main, initiator_main);
}
