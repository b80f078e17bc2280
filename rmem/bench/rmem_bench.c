/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What calls of librmem cost. rmem_bench KIND SERVER TOKEN [ARGUMENT...]:
 *
 *   gather             messages of four lines, as the server stores them, next
 *                      to puts of 4 KiB and four puts of 64 bytes that another
 *                      process is polling for. p10 of microseconds of one
 *                      ("put", "puts", "message"), and of one of many that are
 *                      flushed together ("put_many", ...).
 *   amplify N SHARE [pages]
 *                      N lines change in one of SHARE pages that are read, in
 *                      random order: bytes that change and that are sent
 *   explicit           8 bytes at random places, a quarter of which is local:
 *                      microseconds by rmem_read() and by a window
 *   first              4 KiB of pages that the server has just stored, the
 *                      first and the second time
 *   pool BYTES [FILE]  4 KiB by the law of Zipf. FILE is the server's: a page
 *                      of it that was not in memory is a miss, and each miss
 *                      is next to a read by O_DIRECT of another such page.
 *   beside BYTES FILE  a line stored and acknowledged, alone and while another
 *                      session changes pages that are not in memory
 *   idle PID           milliseconds of CPU time of the server, the process PID,
 *                      in 10 s with 8 sessions
 *
 * Prints lines "FIELD VALUE ...".
 */

#include "rmem_load.h"
#include "ucp_side.h"

#include <fcntl.h>
#include <rmem.h>

#define MIB       (1ul << 20)
#define PAGE_SIZE 4096ul
#define LINE_SIZE 64ul
#define MAX_TIMES (1 << 18)

#define RMEM_CHECK(_call) \
    do { \
        int _status = (_call); \
        CHECK(_status == RMEM_OK, "%s: %s", #_call, rmem_strerror(_status)); \
    } while (0)

static const char *server, *token;
static double times[8][MAX_TIMES];
static size_t num_times[8];
static char buffer[PAGE_SIZE] __attribute__((aligned(4096)));

static uint32_t *permutation(uint32_t count)
{
    uint32_t *order = malloc(count * sizeof(*order));
    uint32_t i, j;

    for (i = 0; i < count; ++i) {
        j        = lrand48() % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

static rmem_t *open_session(size_t bytes, size_t cache, unsigned flags)
{
    rmem_params_t params = {
        .size        = sizeof(params),
        .bytes       = bytes,
        .cache_bytes = cache,
        .token_file  = token,
        .flags       = flags
    };
    rmem_t *rmem;

    RMEM_CHECK(rmem_open(server, &params, &rmem));
    return rmem;
}

static void *map(rmem_t *rmem)
{
    void *base;

    RMEM_CHECK(rmem_map(rmem, &base));
    return base;
}

static void add_time(unsigned kind, double us)
{
    CHECK(num_times[kind] < MAX_TIMES, "too many values");
    times[kind][num_times[kind]++] = us;
}

/* Of those of a kind that are not slower; 0 if there is none */
static double quantile(unsigned kind, double share)
{
    sort_values(times[kind], num_times[kind]);
    return num_times[kind] ? times[kind][(size_t)(share * num_times[kind])] : 0;
}

static double mean(unsigned kind)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < num_times[kind]; ++i) {
        sum += times[kind][i];
    }
    return num_times[kind] ? sum / num_times[kind] : 0;
}

static void fill(rmem_t *rmem, size_t pages)
{
    size_t i;

    for (i = 0; i < pages; ++i) {
        *(uint64_t*)buffer = i;
        RMEM_CHECK(rmem_write(rmem, i * PAGE_SIZE, buffer, PAGE_SIZE));
    }
    RMEM_CHECK(rmem_flush(rmem));
}


/* ---- gather ---- */

enum { PUT, PUTS, MESSAGE, GATHER_KINDS };

#define GATHER_PAGES 1024u
#define GATHER_MANY  64u

/* Polls while the initiator puts, and else leaves its CPU to the server */
static void gather_target(void)
{
    char *memory = map_plain(GATHER_PAGES * PAGE_SIZE);
    char cmd     = 'p';

    memset(memory, 1, GATHER_PAGES * PAGE_SIZE);
    target_open(UCP_FEATURE_RMA, memory, GATHER_PAGES * PAGE_SIZE);
    while (cmd != 'e') {
        if (recv(side.sock, &cmd, 1, (cmd == 'p') ? MSG_DONTWAIT : 0) == 1) {
            if (cmd != 'e') {
                send_all(&cmd, 1);
            }
        } else {
            progress_some();
        }
    }
    target_close(0);
}

static void put(uint64_t offset, size_t length)
{
    wait_for(ucp_put_nbx(side.ep, buffer, length, side.memory + offset,
                         side.rkey, &no_param));
}

static void gather_one(rmem_t *rmem, unsigned kind, uint64_t offset)
{
    unsigned i;

    if (kind == PUT) {
        put(offset, PAGE_SIZE);
    } else if (kind == PUTS) {
        for (i = 0; i < 4; ++i) {
            put(offset + 1024 * i, LINE_SIZE);
        }
    } else {
        RMEM_CHECK(rmem_write(rmem, offset, buffer, 4 * LINE_SIZE));
    }
}

static void gather_flush(rmem_t *rmem, unsigned kind)
{
    if (kind == MESSAGE) {
        RMEM_CHECK(rmem_flush(rmem));
    } else {
        wait_for(ucp_ep_flush_nbx(side.ep, &no_param));
    }
}

/* How many are flushed together */
static void gather_turn(rmem_t *rmem, unsigned kind, unsigned many)
{
    double start = now_us();
    unsigned i;

    for (i = 0; i < many; ++i) {
        gather_one(rmem, kind, (lrand48() % GATHER_PAGES) * PAGE_SIZE);
    }
    gather_flush(rmem, kind);
    add_time(kind + GATHER_KINDS * (many > 1), (now_us() - start) / many);
}

static void gather_initiator(void)
{
    unsigned turn, kind, i;
    uint64_t last;
    rmem_t *rmem;
    char answer;

    initiator_open(UCP_FEATURE_RMA);
    rmem = open_session(GATHER_PAGES * PAGE_SIZE, 0, 0);
    fill(rmem, GATHER_PAGES);
    for (turn = 0; turn < 30; ++turn) {
        for (kind = 0; kind < GATHER_KINDS; ++kind) {
            command((kind == MESSAGE) ? 's' : 'p', &answer, 1);
            for (i = 0; i < 200; ++i) {
                gather_turn(rmem, kind, 1);
            }
            for (i = 0; i < 10; ++i) {
                gather_turn(rmem, kind, GATHER_MANY);
            }
        }
    }
    printf("put %.3f puts %.3f message %.3f put_many %.3f puts_many %.3f "
           "message_many %.3f\n", quantile(0, 0.1), quantile(1, 0.1),
           quantile(2, 0.1), quantile(3, 0.1), quantile(4, 0.1),
           quantile(5, 0.1));
    rmem_close(rmem);
    command('e', &last, sizeof(last));
    initiator_close();
}


/* ---- a window ---- */

static void amplify(unsigned lines, unsigned share, unsigned flags)
{
    size_t pages    = 8192;
    rmem_t *rmem    = open_session(pages * PAGE_SIZE, 8 * MIB, flags);
    char *base      = map(rmem);
    uint32_t *order = permutation(pages);
    uint64_t before = 0, changed = 0;
    unsigned turn, line;
    rmem_stats_t stats;
    char *page;
    size_t i;

    for (turn = 0; turn < 3; ++turn) {
        for (i = 0; i < pages; ++i) {
            page = base + order[i] * PAGE_SIZE;
            if (turn == 0) {
                memset(page, 1, PAGE_SIZE);
                continue;
            }
            CHECK(*(volatile char*)page != 0, "wrong data");
            for (line = 0; (i % share == 0) && (line < lines); ++line) {
                page[(line * 37 + order[i]) % 64 * LINE_SIZE + 8] += 1;
                changed += (turn > 1) * LINE_SIZE;
            }
        }
        RMEM_CHECK(rmem_flush(rmem));
        if (turn == 1) {
            rmem_stats(rmem, &stats);
            before = stats.sent_bytes;
        }
    }
    rmem_stats(rmem, &stats);
    printf("sent %.0f changed %.0f\n", (double)(stats.sent_bytes - before),
           (double)changed);
    rmem_close(rmem);
}

/* The median of blocks, in which what one access costs another one is */
static void explicit_calls(void)
{
    size_t pages   = 16384;
    rmem_t *window = open_session(pages * PAGE_SIZE, pages * PAGE_SIZE / 4, 0);
    rmem_t *calls  = open_session(pages * PAGE_SIZE, 0, 0);
    char *base     = map(window);
    unsigned block, i, count = 400;
    uint64_t offset, *place;
    double start;

    fill(calls, pages);
    for (i = 0; i < pages; ++i) {
        *(uint64_t*)(base + i * PAGE_SIZE) = i;
    }
    place = (uint64_t*)buffer;
    for (block = 0; block < 200; ++block) {
        start = now_us();
        for (i = 0; i < count; ++i) {
            offset = lrand48() % pages * PAGE_SIZE;
            if (block % 2) {
                RMEM_CHECK(rmem_read(calls, offset, buffer, LINE_SIZE));
            } else {
                *place = *(volatile uint64_t*)(base + offset);
            }
            CHECK(*place == offset / PAGE_SIZE, "wrong data");
        }
        add_time(block % 2, (now_us() - start) / count);
    }
    printf("window %.3f call %.3f\n", quantile(0, 0.5), quantile(1, 0.5));
    rmem_close(calls);
    rmem_close(window);
}


/* ---- reads of what the server has ---- */

static void first(void)
{
    unsigned pages  = 4096;
    rmem_t *rmem    = open_session(pages * PAGE_SIZE, 0, 0);
    uint32_t *order = permutation(pages);
    unsigned turn, i;
    double start;

    for (i = 0; i < pages; ++i) {
        RMEM_CHECK(rmem_write(rmem, order[i] * PAGE_SIZE, buffer, PAGE_SIZE));
    }
    RMEM_CHECK(rmem_flush(rmem));
    usleep(10000); /* The server sleeps */
    for (turn = 0; turn < 2; ++turn) {
        for (i = 0; i < pages; ++i) {
            start = now_us();
            RMEM_CHECK(rmem_read(rmem, order[pages - 1 - i] * PAGE_SIZE, buffer,
                                 PAGE_SIZE));
            add_time(turn, now_us() - start);
        }
    }
    printf("first %.3f second %.3f first_mean %.3f second_mean %.3f\n",
           quantile(0, 0.5), quantile(1, 0.5), mean(0), mean(1));
    rmem_close(rmem);
}

/* The server's, as the kernel has it in memory */
static const char *file_name;
static size_t file_bytes;
static char *file_map;
static int file_fd;

static void open_file(void)
{
    file_fd = open(file_name, O_RDONLY | O_DIRECT);
    CHECK((file_fd >= 0) && (fsync(file_fd) == 0), "%s: %m", file_name);
    file_map = mmap(NULL, file_bytes, PROT_READ, MAP_SHARED, file_fd, 0);
    CHECK(file_map != MAP_FAILED, "%s: %m", file_name);
}

static bool is_here(size_t page)
{
    unsigned char here;

    CHECK(mincore(file_map + page * PAGE_SIZE, PAGE_SIZE, &here) == 0,
          "mincore: %m");
    return here & 1;
}

static double direct_read(void)
{
    double start;
    size_t page;

    do {
        page = lrand48() % (file_bytes / PAGE_SIZE);
    } while (is_here(page));
    start = now_us();
    CHECK(pread(file_fd, buffer, PAGE_SIZE, page * PAGE_SIZE) == PAGE_SIZE,
          "O_DIRECT read: %m");
    return now_us() - start;
}

static void pool(void)
{
    enum { HIT, MISS, DIRECT };
    size_t pages = file_bytes / PAGE_SIZE;
    rmem_t *rmem = open_session(file_bytes, 0, 0);
    double *sums = zipf_sums(pages);
    double start, us, total = 0;
    unsigned i, ops = 60000;
    bool is_hit;
    size_t page;

    fill(rmem, pages);
    if (file_name != NULL) {
        open_file();
    }
    for (i = 0; i < 2 * ops; ++i) {
        page   = zipf(sums, pages);
        is_hit = (file_name == NULL) || is_here(page);
        start  = now_us();
        RMEM_CHECK(rmem_read(rmem, page * PAGE_SIZE, buffer, PAGE_SIZE));
        us = now_us() - start;
        CHECK(*(uint64_t*)buffer == page, "wrong data");
        if (i < ops) {
            continue; /* The kernel finds out what is used often */
        }
        total += us;
        add_time(is_hit ? HIT : MISS, us);
        if (!is_hit) {
            add_time(DIRECT, direct_read());
        }
    }
    printf("hit %.3f hit_mean %.3f miss %.3f miss_mean %.3f direct %.3f "
           "direct_mean %.3f mean %.3f hits %.4f\n", quantile(HIT, 0.5),
           mean(HIT), quantile(MISS, 0.5), mean(MISS), quantile(DIRECT, 0.5),
           mean(DIRECT), total / ops, (double)num_times[HIT] / ops);
    free(sums);
    rmem_close(rmem);
}


/* ---- sessions beside each other ---- */

/* Stores to cold pages between two bytes of the initiator */
static void beside_target(void)
{
    rmem_t *rmem = open_session(file_bytes, 0, 0);
    size_t pages = file_bytes / PAGE_SIZE;
    char byte    = 0;

    fill(rmem, pages);
    send_all(&byte, 1);
    CHECK(recv(side.sock, &byte, 1, 0) == 1, "the other process has gone");
    while (recv(side.sock, &byte, 1, MSG_DONTWAIT) != 1) {
        RMEM_CHECK(rmem_write(rmem, lrand48() % pages * PAGE_SIZE, buffer,
                              LINE_SIZE));
    }
    rmem_close(rmem);
}

static void beside_initiator(void)
{
    enum { ALONE, BESIDE, DIRECT };
    double start, end;
    rmem_t *rmem;
    char byte;
    int kind;

    CHECK(recv(side.sock, &byte, 1, 0) == 1, "the other process has gone");
    rmem = open_session(PAGE_SIZE, 0, 0);
    open_file();
    for (kind = ALONE; kind <= BESIDE; ++kind) {
        end = now_us() + 3e6;
        while (now_us() < end) {
            start = now_us();
            RMEM_CHECK(rmem_write(rmem, 0, buffer, LINE_SIZE));
            RMEM_CHECK(rmem_flush(rmem));
            add_time(kind, now_us() - start);
            if ((kind == ALONE) && (num_times[DIRECT] < 300)) {
                add_time(DIRECT, direct_read());
            }
            usleep(2000);
        }
        send_all(&byte, 1);
        usleep(100000);
    }
    printf("alone %.3f beside %.3f beside_p99 %.3f direct %.3f\n",
           quantile(ALONE, 0.5), quantile(BESIDE, 0.5), quantile(BESIDE, 0.99),
           quantile(DIRECT, 0.5));
    rmem_close(rmem);
}

static void idle(pid_t pid)
{
    rmem_t *session;
    double cpu;
    int i;

    for (i = 0; i < 8; ++i) {
        session = open_session(MIB, 0, 0);
        RMEM_CHECK(rmem_write(session, 0, buffer, PAGE_SIZE));
        RMEM_CHECK(rmem_flush(session));
    }
    usleep(500000);
    cpu = cpu_us(pid);
    sleep(10);
    printf("ms %.3f\n", (cpu_us(pid) - cpu) * 1e-3);
}

int main(int argc, char **argv)
{
    const char *kind = (argc >= 4) ? argv[1] : "";
    uint64_t number  = (argc >= 5) ? strtoull(argv[4], NULL, 0) : 0;

    server     = argv[2];
    token      = argv[3];
    file_bytes = number;
    file_name  = (argc >= 6) ? argv[5] : NULL;
    memset(buffer, 0x55, sizeof(buffer));
    if (!strcmp(kind, "gather")) {
        return run_both(gather_target, gather_initiator);
    } else if (!strcmp(kind, "amplify") && (number > 0) && (argc >= 6)) {
        amplify(number, atoi(argv[5]), (argc > 6) ? RMEM_PAGES : 0);
    } else if (!strcmp(kind, "explicit")) {
        explicit_calls();
    } else if (!strcmp(kind, "first")) {
        first();
    } else if (!strcmp(kind, "pool") && (number > 0)) {
        pool();
    } else if (!strcmp(kind, "beside") && (number > 0) && (argc >= 6)) {
        return run_both(beside_target, beside_initiator);
    } else if (!strcmp(kind, "idle") && (number > 0)) {
        idle(number);
    } else {
        fprintf(stderr, "usage: rmem_bench gather|amplify|explicit|first|pool|"
                        "beside|idle SERVER TOKEN [ARGUMENT...]\n");
        return 2;
    }
    return EXIT_SUCCESS;
}
