/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Starts ranks that put, get, do atomics, send and poll at random while pages
 * vanish (soak.h). Checks their results: every byte was right, pages vanished,
 * operations were repeated and used assists, and no resource has grown.
 */

#include "soak.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct soak_child {
    pid_t pid;
    int   fd;
} soak_child_t;

typedef struct soak_counter {
    const char *name;
    uint64_t   value;
} soak_counter_t;


static void soak_usage(FILE *out)
{
    fputs("Usage: soak [options] COMPONENT\n"
          "  -n RANKS    processes, 2 to 16 (4)\n"
          "  -t SECONDS  time (20)\n"
          "  -o COUNT    verified operations, of all ranks together, instead\n"
          "  -s SEED     do again what another run did (random)\n"
          "  -q          no page vanishes\n"
          "COMPONENT is libuct_nprdma.so.0. Variables UCX_NPRDMA_x of the "
          "environment prevail.\n", out);
}

/* These depend on the seed as well: the rendezvous scheme, and which pages
 * vanish */
static void soak_environment(const soak_config_t *config, unsigned me)
{
    static const char *schemes[] = {"auto", "get_zcopy", "put_zcopy"};
    char value[256];

    setenv("UCX_TLS", "nprdma", 1);
    setenv("UCX_NPRDMA_EMULATION", "yes", 0);
    setenv("UCX_RNDV_SCHEME", schemes[config->seed % 3], 0);
    setenv("UCX_RNDV_THRESH", "16k", 0);
    snprintf(value, sizeof(value), "file:%s/%%p", config->dir);
    setenv("UCX_NPRDMA_STATS", value, 1);
    if (!config->evicts) {
        return;
    }

    snprintf(value, sizeof(value),
             "reclaim:logical,reclaim_rate:2000,seed:%lu,fault_rate:0.002,"
             "fault_seed:%lu,fault_granule:256", (config->seed + me) | 1,
             (config->seed + me) | 1);
    setenv("UCX_NPRDMA_INJECT", value, 0);
}

static void soak_start(const soak_config_t *config, unsigned me,
                       soak_child_t *children)
{
    pid_t parent = getpid();
    unsigned i;
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) {
        perror("soak: socketpair");
        exit(1);
    }
    children[me].fd  = fds[0];
    children[me].pid = fork();
    if (children[me].pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) {
            _exit(1);
        }
        for (i = 0; i <= me; ++i) {
            close(children[i].fd);
        }
        soak_environment(config, me);
        exit(soak_rank_main(config, me, fds[1]));
    }
    close(fds[1]);
}

static int soak_receive(int fd, void *buffer, size_t length)
{
    return recv(fd, buffer, length, MSG_WAITALL) == (ssize_t)length;
}

/*
 * Serves the ranks' allgathers until they exit. Their last but one allgather
 * has their results, which the launcher recognizes by its length.
 */
static int soak_serve(const soak_config_t *config, soak_child_t *children,
                      soak_result_t *results)
{
    static char all[SOAK_MAX_RANKS * 8192];
    uint64_t length, expected;
    unsigned i;

    for (;;) {
        for (i = 0, expected = 0; i < config->ranks; ++i) {
            if (!soak_receive(children[i].fd, &length, sizeof(length))) {
                return i == 0; /* All exit at once, otherwise one has failed */
            }
            if (((i > 0) && (length != expected)) || (length > 8192) ||
                !soak_receive(children[i].fd, all + (i * length), length)) {
                return 0;
            }
            expected = length;
        }
        if (expected == sizeof(*results)) {
            memcpy(results, all, expected * config->ranks);
        }
        for (i = 0; i < config->ranks; ++i) {
            if (send(children[i].fd, all, expected * config->ranks,
                     MSG_NOSIGNAL) < 0) {
                return 0;
            }
        }
    }
}

static int soak_end(const soak_config_t *config, soak_child_t *children,
                    int good)
{
    unsigned i;
    int status;

    for (i = 0; i < config->ranks; ++i) {
        if (!good) {
            kill(children[i].pid, SIGKILL);
        }
        if ((waitpid(children[i].pid, &status, 0) != children[i].pid) ||
            !WIFEXITED(status) || (WEXITSTATUS(status) != 0)) {
            good = 0;
        }
        close(children[i].fd);
    }
    return good;
}


/* ---- verdict ---- */

static void soak_read_counters(const char *path, soak_counter_t *counters,
                               size_t count)
{
    FILE *file = fopen(path, "r");
    char line[256], name[128];
    unsigned long value;
    size_t i;

    while ((file != NULL) && (fgets(line, sizeof(line), file) != NULL)) {
        if (sscanf(line, "%127s %lu", name, &value) != 2) {
            continue;
        }
        for (i = 0; i < count; ++i) {
            if (strcmp(name, counters[i].name) == 0) {
                counters[i].value += value;
            }
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

/* Adds up the counters of all ranks, and removes their files */
static void soak_counters(const soak_config_t *config, soak_counter_t *counters,
                          size_t count)
{
    DIR *dir = opendir(config->dir);
    char path[512];
    struct dirent *entry;

    while ((dir != NULL) && ((entry = readdir(dir)) != NULL)) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s", config->dir, entry->d_name);
            soak_read_counters(path, counters, count);
            unlink(path);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(config->dir);
}

static int soak_require(int condition, const char *what)
{
    if (!condition) {
        printf("soak: FAILED: %s\n", what);
    }
    return condition;
}

static int soak_judge_ranks(const soak_config_t *config,
                            const soak_result_t *results, double seconds)
{
    soak_result_t sum = {0};
    uint64_t total;
    unsigned i;
    int good = 1;

    for (i = 0; i < config->ranks; ++i) {
        sum.puts    += results[i].puts;
        sum.gets    += results[i].gets;
        sum.atomics += results[i].atomics;
        sum.tags    += results[i].tags;
        sum.ams     += results[i].ams;
        sum.flags   += results[i].flags;
        sum.remaps  += results[i].remaps;
        sum.bytes   += results[i].bytes;
        /* A few are created late, for regions of memory that was mapped
         * again */
        good &= soak_require(results[i].fds_end <= results[i].fds_begin + 8,
                             "descriptors have leaked");
        good &= soak_require(results[i].maps_end <= results[i].maps_begin + 64,
                             "mappings have leaked");
        good &= soak_require(results[i].locked_kb <= 4096,
                             "more is pinned than bounce buffers");
    }

    total = sum.puts + sum.gets + sum.atomics + sum.tags + sum.ams + sum.flags;
    printf("soak: %lu operations verified in %.1f s (%.0f/s, %.1f MB/s): "
           "%lu puts, %lu gets, %lu atomics, %lu tags, %lu ams, %lu flags; "
           "%lu remaps\n", (unsigned long)total, seconds, total / seconds,
           sum.bytes / seconds * 1e-6, (unsigned long)sum.puts,
           (unsigned long)sum.gets, (unsigned long)sum.atomics,
           (unsigned long)sum.tags, (unsigned long)sum.ams,
           (unsigned long)sum.flags, (unsigned long)sum.remaps);
    return good & soak_require((sum.puts > 0) && (sum.gets > 0) &&
                               (sum.atomics > 0) && (sum.tags > 0) &&
                               (sum.ams > 0) && (sum.flags > 0),
                               "some kind of operation did not happen");
}

static int soak_judge_counters(const soak_config_t *config)
{
    soak_counter_t counters[] = {
        {"nic_put", 0}, {"nic_get", 0}, {"nic_hits", 0}, {"redone_slices", 0},
        {"assist_populate", 0}, {"suspect_lines", 0}, {"suspect_states", 0},
        {"suspect_local", 0}, {"assist_fetch", 0}, {"assist_store", 0}
    };
    size_t count = sizeof(counters) / sizeof(counters[0]), i;
    int good     = 1;

    soak_counters(config, counters, count);
    printf("soak:");
    for (i = 0; i < count; ++i) {
        printf(" %s %lu", counters[i].name, (unsigned long)counters[i].value);
        /* The last two are rare, and do not occur in each short run */
        if ((i < 3) || (config->evicts && (i < count - 2))) {
            good &= (counters[i].value > 0);
        }
    }
    printf("\n");
    return soak_require(good, "what was to be shown did not happen: see the "
                        "counters that are 0");
}

static int soak_run(soak_config_t *config)
{
    soak_child_t children[SOAK_MAX_RANKS];
    soak_result_t results[SOAK_MAX_RANKS] = {{0}};
    double start                          = soak_now();
    unsigned i;
    int good;

    for (i = 0; i < config->ranks; ++i) {
        soak_start(config, i, children);
    }
    good  = soak_serve(config, children, results);
    good  = soak_end(config, children, good);
    good &= soak_judge_ranks(config, results, soak_now() - start);
    good &= soak_judge_counters(config);
    printf("soak: %s (seed %lu)\n", good ? "passed" : "FAILED",
           (unsigned long)config->seed);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    soak_config_t config = {
        .ranks   = 4,
        .seconds = 20,
        .evicts  = 1,
        .dir     = "/tmp/nprdma-soak.XXXXXX"
    };
    struct timespec ts;
    int option;

    clock_gettime(CLOCK_REALTIME, &ts);
    config.seed = ((uint64_t)ts.tv_nsec << 16) ^ ts.tv_sec;
    config.seed %= 1000000000;
    while ((option = getopt(argc, argv, "n:t:o:s:qh")) != -1) {
        switch (option) {
        case 'n': config.ranks      = atoi(optarg);            break;
        case 't': config.seconds    = atof(optarg);            break;
        case 'o': config.operations = strtoull(optarg, NULL, 0); break;
        case 's': config.seed       = strtoull(optarg, NULL, 0); break;
        case 'q': config.evicts     = 0;                       break;
        case 'h': soak_usage(stdout); return 0;
        default:  soak_usage(stderr); return 2;
        }
    }
    if ((optind != argc - 1) || (config.ranks < 2) ||
        (config.ranks > SOAK_MAX_RANKS) || (mkdtemp(config.dir) == NULL)) {
        soak_usage(stderr);
        return 2;
    }

    config.component   = argv[optind];
    config.operations /= config.ranks;
    printf("soak: %u ranks, seed %lu\n", config.ranks,
           (unsigned long)config.seed);
    fflush(stdout);
    return soak_run(&config);
}
