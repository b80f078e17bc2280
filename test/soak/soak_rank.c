/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "soak.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Batches between two comparisons of all windows */
#define SOAK_ROUND       128

/* Descriptors and mappings are counted after this many batches, when everything
 * has been used once */
#define SOAK_WARM_UP     64

/* Calls of progress without an event before the rank yields the CPU */
#define SOAK_IDLE        32

/* Sent to all other ranks first; the packed key is part of it */
typedef struct soak_card {
    uint64_t window;
    uint32_t address_length;
    uint32_t key_length;
    char     address[2048];
    char     key[512];
} soak_card_t;

void soak_fail(soak_rank_t *rank, const char *format, ...)
{
    char message[512];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    fprintf(stderr, "soak: rank %u: %s (seed %lu)\n", rank->me, message,
            (unsigned long)rank->config->seed);
    _exit(1);
}

void soak_status(soak_rank_t *rank, ucs_status_t status, const char *what)
{
    if (status != UCS_OK) {
        soak_fail(rank, "%s: %s", what, ucs_status_string(status));
    }
}

void soak_progress(soak_rank_t *rank)
{
    if (ucp_worker_progress(rank->worker) > 0) {
        rank->idle = 0;
    } else if (++rank->idle >= SOAK_IDLE) {
        /* There are more ranks than CPUs: let other ranks run */
        rank->idle = 0;
        sched_yield();
    }
    soak_answer_flags(rank);
}


/* ---- communication through the parent ---- */

void soak_gather(soak_rank_t *rank, const void *mine, size_t length, void *all)
{
    size_t total = length * rank->config->ranks, got = 0;
    uint64_t header = length;
    ssize_t ret;

    if ((send(rank->parent, &header, sizeof(header), MSG_NOSIGNAL) < 0) ||
        (send(rank->parent, mine, length, MSG_NOSIGNAL) != (ssize_t)length)) {
        soak_fail(rank, "the launcher is gone");
    }

    while (got < total) {
        ret = recv(rank->parent, (char*)all + got, total - got, MSG_DONTWAIT);
        if (ret > 0) {
            got += ret;
        } else if ((ret < 0) && (errno == EAGAIN)) {
            soak_progress(rank);
        } else {
            soak_fail(rank, "the launcher is gone");
        }
    }
}


/* ---- setting up ---- */

static void *soak_map(soak_rank_t *rank, size_t length)
{
    void *ptr = mmap(NULL, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (ptr == MAP_FAILED) {
        soak_fail(rank, "no memory: %m");
    }
    return ptr;
}

static void soak_open(soak_rank_t *rank)
{
    ucp_params_t params               = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_TAG |
                      UCP_FEATURE_AM
    };
    ucp_worker_params_t worker_params = {
        .field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE
    };
    ucp_config_t *config;

    if (dlopen(rank->config->component, RTLD_NOW | RTLD_GLOBAL) == NULL) {
        soak_fail(rank, "%s", dlerror());
    }
    soak_status(rank, ucp_config_read(NULL, NULL, &config), "configuration");
    soak_status(rank, ucp_init(&params, config, &rank->context), "ucp_init");
    ucp_config_release(config);
    soak_status(rank, ucp_worker_create(rank->context, &worker_params,
                                        &rank->worker), "worker");
}

static void soak_expose(soak_rank_t *rank, soak_card_t *card)
{
    size_t length               = (size_t)rank->config->ranks * SOAK_SEGMENT;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length     = length,
        .flags      = UCP_MEM_MAP_NONBLOCK
    };
    ucp_address_t *address;
    size_t address_length, key_length;
    void *key;

    rank->window   = soak_map(rank, length);
    params.address = rank->window;
    soak_status(rank, ucp_mem_map(rank->context, &params, &rank->memh),
                "mem_map");
    soak_status(rank, ucp_rkey_pack(rank->context, rank->memh, &key,
                                    &key_length), "rkey_pack");
    soak_status(rank, ucp_worker_get_address(rank->worker, &address,
                                             &address_length), "address");
    if ((address_length > sizeof(card->address)) ||
        (key_length > sizeof(card->key))) {
        soak_fail(rank, "address or key is longer than foreseen");
    }

    card->window         = (uintptr_t)rank->window;
    card->address_length = address_length;
    card->key_length     = key_length;
    memcpy(card->address, address, address_length);
    memcpy(card->key, key, key_length);
    ucp_worker_release_address(rank->worker, address);
    ucp_rkey_buffer_release(key);
}

static void soak_connect(soak_rank_t *rank)
{
    static soak_card_t card, cards[SOAK_MAX_RANKS];
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
    };
    soak_peer_t *peer;
    unsigned i;
    char none;

    soak_expose(rank, &card);
    soak_gather(rank, &card, sizeof(card), cards);
    for (i = 0; i < rank->config->ranks; ++i) {
        peer           = &rank->peers[i];
        params.address = (const ucp_address_t*)cards[i].address;
        peer->window   = cards[i].window + ((uint64_t)rank->me * SOAK_SEGMENT);
        peer->shadow   = calloc(1, SOAK_SEGMENT);
        soak_status(rank, ucp_ep_create(rank->worker, &params, &peer->ep),
                    "ep_create");
        soak_status(rank, ucp_ep_rkey_unpack(peer->ep, cards[i].key,
                                             &peer->rkey), "rkey_unpack");
    }
    rank->source     = soak_map(rank, SOAK_ARENA);
    rank->sink       = soak_map(rank, SOAK_ARENA);
    rank->tag_buffer = soak_map(rank, SOAK_MAX_LENGTH);
    soak_ops_init(rank);
    soak_gather(rank, &none, 1, cards);
}


/* ---- resources that must not grow ---- */

static uint64_t soak_count_fds(void)
{
    DIR *dir       = opendir("/proc/self/fd");
    uint64_t count = 0;

    while ((dir != NULL) && (readdir(dir) != NULL)) {
        ++count;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static uint64_t soak_count_maps(void)
{
    FILE *file     = fopen("/proc/self/maps", "r");
    uint64_t count = 0;
    int c;

    while ((file != NULL) && ((c = getc(file)) != EOF)) {
        count += (c == '\n');
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

static uint64_t soak_locked_kb(void)
{
    FILE *file       = fopen("/proc/self/status", "r");
    unsigned long kb = 0;
    char line[256];

    while ((file != NULL) && (fgets(line, sizeof(line), file) != NULL) &&
           (sscanf(line, "VmLck: %lu", &kb) != 1)) {
    }
    if (file != NULL) {
        fclose(file);
    }
    return kb;
}


/* ---- main program ---- */

/* Compares the owner's view of a segment with the writer's copy of it */
static void soak_compare(soak_rank_t *rank)
{
    uint32_t mine[SOAK_MAX_RANKS][2] = {{0}};
    uint32_t all[SOAK_MAX_RANKS][SOAK_MAX_RANKS][2];
    const char *segment;
    unsigned i;

    for (i = 0; i < rank->config->ranks; ++i) {
        segment    = rank->peers[i].shadow;
        mine[i][0] = soak_crc(segment, SOAK_COUNTERS * 8);
        mine[i][1] = soak_crc(segment + SOAK_WORDS, SOAK_SEGMENT - SOAK_WORDS);
    }
    soak_gather(rank, mine, sizeof(mine), all);
    for (i = 0; i < rank->config->ranks; ++i) {
        segment = rank->window + ((size_t)i * SOAK_SEGMENT);
        if ((soak_crc(segment, SOAK_COUNTERS * 8) != all[i][rank->me][0]) ||
            (soak_crc(segment + SOAK_WORDS, SOAK_SEGMENT - SOAK_WORDS) !=
             all[i][rank->me][1])) {
            soak_fail(rank, "the memory that rank %u writes is not what it has "
                      "written", i);
        }
    }
    /* No rank writes again before all have compared */
    soak_gather(rank, &i, sizeof(i), all);
}

static uint64_t soak_verified(const soak_result_t *result)
{
    return result->puts + result->gets + result->atomics + result->tags +
           result->ams + result->flags;
}

static void soak_work(soak_rank_t *rank)
{
    double end = soak_now() + rank->config->seconds;
    uint8_t more[SOAK_MAX_RANKS];
    unsigned i, batch, count;
    uint8_t mine;

    for (batch = 0, count = 1; count > 0; ++batch) {
        soak_batch(rank);
        if (batch == SOAK_WARM_UP) {
            rank->result.fds_begin  = soak_count_fds();
            rank->result.maps_begin = soak_count_maps();
        }
        if ((batch % SOAK_ROUND) != (SOAK_ROUND - 1)) {
            continue;
        }

        soak_compare(rank);
        mine = (rank->config->operations > 0) ?
               (soak_verified(&rank->result) < rank->config->operations) :
               (soak_now() < end);
        soak_gather(rank, &mine, 1, more);
        for (i = 0, count = 0; i < rank->config->ranks; ++i) {
            count += more[i];
        }
    }
    soak_ops_finish(rank);
    soak_compare(rank);
    rank->result.fds_end   = soak_count_fds();
    rank->result.maps_end  = soak_count_maps();
    rank->result.locked_kb = soak_locked_kb();
}

static void soak_close(soak_rank_t *rank)
{
    soak_result_t all[SOAK_MAX_RANKS];
    ucs_status_ptr_t closing;
    unsigned i;

    /* No rank exits while another one may still need it */
    soak_gather(rank, &rank->result, sizeof(rank->result), all);
    soak_ops_cleanup(rank);
    for (i = 0; i < rank->config->ranks; ++i) {
        ucp_rkey_destroy(rank->peers[i].rkey);
        closing = ucp_ep_close_nb(rank->peers[i].ep, UCP_EP_CLOSE_MODE_FLUSH);
        while (UCS_PTR_IS_PTR(closing) &&
               (ucp_request_check_status(closing) == UCS_INPROGRESS)) {
            ucp_worker_progress(rank->worker);
        }
        if (UCS_PTR_IS_PTR(closing)) {
            ucp_request_free(closing);
        }
        free(rank->peers[i].shadow);
    }
    soak_gather(rank, &i, sizeof(i), all);
    soak_status(rank, ucp_mem_unmap(rank->context, rank->memh), "mem_unmap");
    ucp_worker_destroy(rank->worker);
    ucp_cleanup(rank->context);
}

int soak_rank_main(const soak_config_t *config, unsigned me, int parent)
{
    static soak_rank_t rank;

    rank.config       = config;
    rank.me           = me;
    rank.parent       = parent;
    rank.random.state = config->seed + ((uint64_t)me << 56);
    soak_open(&rank);
    soak_connect(&rank);
    soak_work(&rank);
    soak_close(&rank);
    return 0;
}
