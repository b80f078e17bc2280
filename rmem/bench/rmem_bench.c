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
 *   idle N SECONDS     N sessions
 *
 * Prints lines "FIELD VALUE ...".
 */

#include "rmem_zipf.h"
#include "ucp_side.h"

#include <fcntl.h>
#include <rmem.h>
#include <signal.h>

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
        j        = random_number() % (i + 1);
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
        gather_one(rmem, kind, (random_number() % GATHER_PAGES) * PAGE_SIZE);
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
            offset = random_number() % pages * PAGE_SIZE;
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

/* A file, as the kernel has it in memory */
static struct {
    int    fd;
    size_t pages;
    char   *map;
} file;

static void open_file(const char *name, size_t bytes)
{
    file.fd    = open(name, O_RDONLY | O_DIRECT);
    file.pages = bytes / PAGE_SIZE;
    CHECK(file.fd >= 0, "%s: %m", name);
    CHECK(fsync(file.fd) == 0, "%s: %m", name);
    file.map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file.fd, 0);
    CHECK(file.map != MAP_FAILED, "%s: %m", name);
}

static bool is_here(size_t page)
{
    unsigned char here;

    CHECK(mincore(file.map + page * PAGE_SIZE, PAGE_SIZE, &here) == 0,
          "mincore: %m");
    return here & 1;
}

static double direct_read(void)
{
    size_t page = random_number() % file.pages;
    double start;

    while (is_here(page)) {
        page = random_number() % file.pages;
    }
    start = now_us();
    CHECK(pread(file.fd, buffer, PAGE_SIZE, page * PAGE_SIZE) == PAGE_SIZE,
          "O_DIRECT read: %m");
    return now_us() - start;
}

static void pool(size_t bytes, const char *name)
{
    enum { HIT, MISS, DIRECT };
    size_t pages = bytes / PAGE_SIZE;
    rmem_t *rmem = open_session(bytes, 0, 0);
    double *sums = zipf_sums(pages);
    double start, us, total = 0;
    unsigned i, ops = 60000;
    bool is_hit;
    size_t page;

    fill(rmem, pages);
    if (name != NULL) {
        open_file(name, bytes);
    }
    for (i = 0; i < 2 * ops; ++i) {
        page   = zipf(sums, pages);
        is_hit = (name == NULL) || is_here(page);
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

/* Stores until the process is killed, after a byte has come */
static void disturb(size_t bytes, int ready, int go)
{
    rmem_t *rmem = open_session(bytes, 0, 0);
    char byte    = 0;
    size_t page;

    fill(rmem, bytes / PAGE_SIZE);
    CHECK((write(ready, &byte, 1) == 1) && (read(go, &byte, 1) == 1),
          "the other process has gone");
    for (;;) {
        page = random_number() % (bytes / PAGE_SIZE);
        RMEM_CHECK(rmem_write(rmem, page * PAGE_SIZE, buffer, LINE_SIZE));
    }
}

static void beside(size_t bytes, const char *name)
{
    enum { ALONE, BESIDE, DIRECT };
    int ready[2], go[2], kind;
    double start, end;
    rmem_t *rmem;
    char byte;
    pid_t pid;

    CHECK((pipe(ready) == 0) && (pipe(go) == 0), "pipe: %m");
    pid = fork();
    CHECK(pid >= 0, "fork: %m");
    if (pid == 0) {
        disturb(bytes, ready[1], go[0]);
    }
    close(ready[1]);

    CHECK(read(ready[0], &byte, 1) == 1, "the other process has gone");
    rmem = open_session(PAGE_SIZE, 0, 0);
    open_file(name, bytes);
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
        if (kind == ALONE) {
            CHECK(write(go[1], &byte, 1) == 1, "the other process has gone");
            usleep(100000);
        }
    }
    CHECK(kill(pid, SIGKILL) == 0, "the other process has gone");
    waitpid(pid, NULL, 0);
    printf("alone %.3f beside %.3f beside_p99 %.3f direct %.3f\n",
           quantile(ALONE, 0.5), quantile(BESIDE, 0.5), quantile(BESIDE, 0.99),
           quantile(DIRECT, 0.5));
    rmem_close(rmem);
}

static void idle(unsigned count, unsigned seconds)
{
    rmem_t *sessions[64];
    unsigned i;

    CHECK(count <= 64, "too many sessions");
    for (i = 0; i < count; ++i) {
        sessions[i] = open_session(MIB, 0, 0);
        RMEM_CHECK(rmem_write(sessions[i], 0, buffer, PAGE_SIZE));
        RMEM_CHECK(rmem_flush(sessions[i]));
    }
    printf("ready\n");
    fflush(stdout);
    sleep(seconds);
    for (i = 0; i < count; ++i) {
        rmem_close(sessions[i]);
    }
}

int main(int argc, char **argv)
{
    const char *kind = (argc >= 4) ? argv[1] : "";
    uint64_t number  = (argc >= 5) ? strtoull(argv[4], NULL, 0) : 0;
    const char *last = (argc >= 6) ? argv[5] : NULL;

    server = argv[2];
    token  = argv[3];
    memset(buffer, 0x55, sizeof(buffer));
    if (!strcmp(kind, "gather")) {
        return run_both(gather_target, gather_initiator);
    } else if (!strcmp(kind, "amplify") && (number > 0) && (last != NULL)) {
        amplify(number, atoi(last), (argc > 6) ? RMEM_PAGES : 0);
    } else if (!strcmp(kind, "explicit")) {
        explicit_calls();
    } else if (!strcmp(kind, "first")) {
        first();
    } else if (!strcmp(kind, "pool") && (number > 0)) {
        pool(number, last);
    } else if (!strcmp(kind, "beside") && (number > 0) && (last != NULL)) {
        beside(number, last);
    } else if (!strcmp(kind, "idle") && (number > 0) && (last != NULL)) {
        idle(number, atoi(last));
    } else {
        fprintf(stderr, "usage: rmem_bench gather|amplify|explicit|first|pool|"
                        "beside|idle SERVER TOKEN [ARGUMENT...]\n");
        return 2;
    }
    return EXIT_SUCCESS;
}
