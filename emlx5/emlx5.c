/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* emlx5: emulated mlx5 functions for QEMU, see README.md here. */

#include "base/emlx5_log.h"
#include "bus/emlx5_loop.h"
#include "engine/emlx5_move.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char emlx5_usage[] =
"Usage: emlx5 [OPTION...] SOCKET...\n"
"\n"
"Emulated InfiniBand adapters (mlx5 virtual functions) for QEMU's\n"
"vfio-user-pci, one at each SOCKET. A switch joins them; their LIDs are 1, 2,\n"
"and so on.\n"
"\n"
"  --whole            a DMA is one transaction, rather than some of 64 to 256\n"
"                     bytes, and faster\n"
"  --delay US         longest pause between two transactions (0)\n"
"  --relaxed-writes   RDMA data may be overtaken by what is written after it:\n"
"                     what correct hardware never does unless it is asked to\n"
"  --chunk BYTES      of a message that are moved at once (4096)\n"
"  --seed N           of everything that is random (1)\n"
"  --verbose LEVEL    0 errors, 1 events (default), 2 commands, 3 requests,\n"
"                     4 DMA\n";

enum {
    EMLX5_OPT_WHOLE = 256, EMLX5_OPT_DELAY, EMLX5_OPT_RELAXED, EMLX5_OPT_CHUNK,
    EMLX5_OPT_SEED, EMLX5_OPT_VERBOSE
};

static const struct option emlx5_long_options[] = {
    {"whole", no_argument, NULL, EMLX5_OPT_WHOLE},
    {"delay", required_argument, NULL, EMLX5_OPT_DELAY},
    {"relaxed-writes", no_argument, NULL, EMLX5_OPT_RELAXED},
    {"chunk", required_argument, NULL, EMLX5_OPT_CHUNK},
    {"seed", required_argument, NULL, EMLX5_OPT_SEED},
    {"verbose", required_argument, NULL, EMLX5_OPT_VERBOSE},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0}
};

static emlx5_loop_t emlx5_loop;

static void emlx5_stop(int signal_number)
{
    (void)signal_number;
    emlx5_loop.stop = 1;
}

/* A number in a range; ends the program if it is none. */
static uint64_t emlx5_number(const char *name, const char *text, uint64_t min,
                             uint64_t max)
{
    unsigned long long value;
    char *end;

    errno = 0;
    value = strtoull(text, &end, 0);
    if ((errno != 0) || (end == text) || (*end != '\0') || (*text == '-') ||
        (value < min) || (value > max)) {
        fprintf(stderr, "emlx5: --%s %s: must be a number from %llu to %llu\n",
                name, text, (unsigned long long)min, (unsigned long long)max);
        exit(2);
    }
    return value;
}

static void emlx5_parse(int argc, char **argv, emlx5_dma_config_t *config,
                        uint32_t *chunk)
{
    int option;

    while ((option = getopt_long(argc, argv, "h", emlx5_long_options, NULL)) !=
           -1) {
        switch (option) {
        case EMLX5_OPT_WHOLE:
            config->min_tlp = 0;
            config->max_tlp = 0;
            break;
        case EMLX5_OPT_DELAY:
            config->delay_us = emlx5_number("delay", optarg, 0, 1000000);
            break;
        case EMLX5_OPT_RELAXED:
            config->relaxed_writes = 1;
            break;
        case EMLX5_OPT_CHUNK:
            *chunk = emlx5_number("chunk", optarg, 256, EMLX5_MAX_CHUNK);
            break;
        case EMLX5_OPT_SEED:
            config->seed = emlx5_number("seed", optarg, 0, UINT64_MAX);
            break;
        case EMLX5_OPT_VERBOSE:
            emlx5_log_level = emlx5_number("verbose", optarg, 0, EMLX5_LOG_DMA);
            break;
        case 'h':
            fputs(emlx5_usage, stdout);
            exit(0);
        default:
            fputs(emlx5_usage, stderr);
            exit(2);
        }
    }
}

/* Signals come only while the loop waits; see emlx5_loop.h. */
static void emlx5_catch_signals(void)
{
    struct sigaction action = {.sa_handler = emlx5_stop};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void emlx5_cleanup(emlx5_vfio_t *functions)
{
    unsigned i;

    for (i = 0; i < emlx5_loop.num_functions; ++i) {
        emlx5_vfio_cleanup(&functions[i]);
    }
    free(functions);
}

int main(int argc, char **argv)
{
    emlx5_dma_config_t config = {
        .min_tlp = 64, .max_tlp = EMLX5_DMA_TLP, .reorder_reads = 1, .seed = 1
    };
    uint32_t chunk = EMLX5_MAX_MTU;
    emlx5_vfio_t *functions;
    int i, count;

    emlx5_parse(argc, argv, &config, &chunk);
    count = argc - optind;
    if ((count < 1) || (count > EMLX5_MAX_FUNCTIONS)) {
        fputs(emlx5_usage, stderr);
        return 2;
    }
    setvbuf(stderr, NULL, _IOLBF, 0);
    functions = calloc(count, sizeof(*functions));
    if (functions == NULL) {
        emlx5_error("no memory");
        return 1;
    }
    emlx5_catch_signals();
    for (i = 0; i < count; ++i) {
        if (emlx5_vfio_init(&functions[i], &emlx5_loop, argv[optind + i],
                            &config, i + 1) != 0) {
            emlx5_cleanup(functions);
            return 1;
        }
        functions[i].hca.chunk = chunk;
        emlx5_loop_add(&emlx5_loop, &functions[i]);
        ++config.seed;
    }
    emlx5_loop_run(&emlx5_loop);
    emlx5_cleanup(functions);
    return 0;
}
