/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Foreign and malformed packets to the wire-up queue pair of a live interface.
 * They must be ignored and counted, and the interface must still work. Usage:
 * foreign_packets COMPONENT [seed]
 */

#include "foreign_attacker.h"

#include <uct/api/uct.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FOREIGN_STATS "foreign_packets.stats"

/* Longer than the attack takes on the slowest machine */
#define FOREIGN_LIMIT_SEC 120

#define FOREIGN_AM_ID     5
#define FOREIGN_AM_HEADER 0x1122334455667788ul

#define CHECK(_cond, ...) \
    do { \
        if (!(_cond)) { \
            fprintf(stderr, "FAILED: %s: ", #_cond); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            return -1; \
        } \
    } while (0)

typedef struct {
    ucs_async_context_t *async;
    uct_worker_h        worker;
    uct_component_h     component;
    uct_md_h            md;
    uct_iface_h         iface;
    uct_iface_attr_t    attr;
    char                dev_name[UCT_DEVICE_NAME_MAX];
} foreign_uct_t;

typedef struct {
    pid_t pid;
    int   to;       /* the target's addresses are written here */
    int   from;     /* the tally comes from here */
} foreign_child_t;


/* The attacker must not inherit an open device, so it is started first. */
static int foreign_child_start(foreign_child_t *child, unsigned seed)
{
    foreign_target_t target;
    foreign_tally_t tally;
    int to[2], from[2];
    int ret;

    CHECK((pipe(to) == 0) && (pipe(from) == 0), "%s", strerror(errno));
    child->pid = fork();
    CHECK(child->pid >= 0, "%s", strerror(errno));
    if (child->pid > 0) {
        close(to[0]);
        close(from[1]);
        child->to   = to[1];
        child->from = from[0];
        return 0;
    }

    close(to[1]);
    close(from[0]);
    alarm(FOREIGN_LIMIT_SEC);
    ret = (read(to[0], &target, sizeof(target)) != sizeof(target)) ||
          foreign_attack(&target, seed, &tally) ||
          (write(from[1], &tally, sizeof(tally)) != sizeof(tally));
    _exit(ret ? EXIT_FAILURE : EXIT_SUCCESS);
}

static int foreign_find_component(foreign_uct_t *uct, const char *path)
{
    uct_component_attr_t attr = {
        .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME
    };
    uct_component_h *list;
    unsigned count, i;

    CHECK(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL, "%s", dlerror());
    CHECK(uct_query_components(&list, &count) == UCS_OK, "no components");
    for (i = 0; (i < count) && (uct->component == NULL); ++i) {
        if ((uct_component_query(list[i], &attr) == UCS_OK) &&
            !strcmp(attr.name, "nprdma")) {
            uct->component = list[i];
        }
    }
    uct_release_component_list(list);
    CHECK(uct->component != NULL, "it is not in %s", path);
    return 0;
}

static int foreign_open_md(foreign_uct_t *uct)
{
    uct_component_attr_t attr = {
        .field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES |
                      UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT
    };
    uct_md_resource_desc_t resources[16];
    uct_tl_resource_desc_t *tls;
    uct_md_config_t *config;
    ucs_status_t status;
    unsigned num_tls;

    attr.md_resources      = resources;
    attr.md_resource_count = 0;
    CHECK(uct_component_query(uct->component, &attr) == UCS_OK, "no MDs");
    CHECK(attr.md_resource_count > 0, "no device");
    CHECK(uct_md_config_read(uct->component, NULL, NULL, &config) == UCS_OK,
          "bad configuration");
    status = uct_md_open(uct->component, resources[0].md_name, config,
                         &uct->md);
    uct_config_release(config);
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));

    status = uct_md_query_tl_resources(uct->md, &tls, &num_tls);
    CHECK((status == UCS_OK) && (num_tls > 0), "no transport");
    strcpy(uct->dev_name, tls[0].dev_name);
    uct_release_tl_resource_list(tls);
    return 0;
}

static int foreign_open_iface(foreign_uct_t *uct)
{
    uct_iface_params_t params = {
        .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE |
                      UCT_IFACE_PARAM_FIELD_DEVICE,
        .open_mode  = UCT_IFACE_OPEN_MODE_DEVICE,
        .mode       = {.device = {.tl_name = "nprdma",
                                  .dev_name = uct->dev_name}}
    };
    uct_iface_config_t *config;
    ucs_status_t status;

    CHECK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK,
                                   &uct->async) == UCS_OK, "async");
    CHECK(uct_worker_create(uct->async, UCS_THREAD_MODE_SINGLE,
                            &uct->worker) == UCS_OK, "worker");
    CHECK(uct_md_iface_config_read(uct->md, "nprdma", NULL, NULL,
                                   &config) == UCS_OK, "bad configuration");
    status = uct_iface_open(uct->md, uct->worker, &params, config,
                            &uct->iface);
    uct_config_release(config);
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    CHECK(uct_iface_query(uct->iface, &uct->attr) == UCS_OK, "query");
    uct_iface_progress_enable(uct->iface, UCT_PROGRESS_SEND |
                              UCT_PROGRESS_RECV);
    return 0;
}

static void foreign_close(foreign_uct_t *uct)
{
    uct_iface_close(uct->iface);
    uct_md_close(uct->md);
    uct_worker_destroy(uct->worker);
    ucs_async_context_destroy(uct->async);
}

static ucs_status_t foreign_am_cb(void *arg, void *data, size_t length,
                                  unsigned flags)
{
    uint64_t header;

    (void)flags;
    if (length == sizeof(header)) {
        memcpy(&header, data, sizeof(header));
        *(int*)arg += (header == FOREIGN_AM_HEADER);
    }
    return UCS_OK;
}

static int foreign_expired(time_t begin)
{
    return time(NULL) > begin + FOREIGN_LIMIT_SEC;
}

/* The interface connects to itself and sends a message. */
static int foreign_check_works(foreign_uct_t *uct,
                               const foreign_target_t *target)
{
    uct_ep_params_t params = {
        .field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
                      UCT_EP_PARAM_FIELD_IFACE_ADDR,
        .iface      = uct->iface,
        .dev_addr   = (const uct_device_addr_t*)&target->dev,
        .iface_addr = (const uct_iface_addr_t*)&target->iface
    };
    int received           = 0;
    time_t begin           = time(NULL);
    ucs_status_t status;
    uct_ep_h ep;

    CHECK(uct_iface_set_am_handler(uct->iface, FOREIGN_AM_ID, foreign_am_cb,
                                   &received, 0) == UCS_OK, "handler");
    CHECK(uct_ep_create(&params, &ep) == UCS_OK, "endpoint");
    while (((status = uct_ep_am_short(ep, FOREIGN_AM_ID, FOREIGN_AM_HEADER,
                                      NULL, 0)) == UCS_ERR_NO_RESOURCE) &&
           !foreign_expired(begin)) {
        uct_worker_progress(uct->worker);
    }
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    while (!received && !foreign_expired(begin)) {
        uct_worker_progress(uct->worker);
    }
    CHECK(received == 1, "received %d messages", received);
    uct_ep_destroy(ep);
    return 0;
}

/* Progress until the attacker has finished */
static int foreign_child_wait(foreign_child_t *child, foreign_uct_t *uct,
                              foreign_tally_t *tally)
{
    pid_t pid;
    int status;

    do {
        uct_worker_progress(uct->worker);
        pid = waitpid(child->pid, &status, WNOHANG);
    } while (pid == 0);
    CHECK((pid == child->pid) && WIFEXITED(status) &&
          (WEXITSTATUS(status) == 0), "attacker ended with 0x%x", status);
    CHECK(read(child->from, tally, sizeof(*tally)) == sizeof(*tally),
          "no tally");
    return 0;
}

static long foreign_counter(const char *name)
{
    FILE *file = fopen(FOREIGN_STATS, "r");
    char line[256], found[128];
    long value, result = -1;

    while ((file != NULL) && (fgets(line, sizeof(line), file) != NULL)) {
        if ((sscanf(line, "%127s %ld", found, &value) == 2) &&
            !strcmp(found, name)) {
            result = value;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return result;
}

/* On a failure the counters are printed */
static void foreign_print_counters(void)
{
    FILE *file = fopen(FOREIGN_STATS, "r");
    char line[256];

    while ((file != NULL) && (fgets(line, sizeof(line), file) != NULL)) {
        fputs(line, stderr);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static int foreign_check_counters(const foreign_tally_t *tally)
{
    long malformed = foreign_counter("cm_malformed");
    long stale     = foreign_counter("cm_stale");

    printf("%lu malformed and %lu oversized packets sent, %ld counted; at most "
           "%lu stale ones sent, %ld counted\n", tally->malformed,
           tally->oversized, malformed, tally->stale, stale);
    CHECK((malformed >= (long)tally->malformed) &&
          (malformed <= (long)(tally->malformed + tally->oversized)),
          "see above");
    CHECK((stale > 0) && (stale <= (long)tally->stale), "see above");
    return 0;
}

int main(int argc, char **argv)
{
    unsigned seed     = (argc > 2) ? strtoul(argv[2], NULL, 0) : 1;
    foreign_uct_t uct = {};
    foreign_target_t target;
    foreign_child_t child;
    foreign_tally_t tally;
    int failed;

    if (argc < 2) {
        fprintf(stderr, "Usage: %s COMPONENT [seed]\n", argv[0]);
        return EXIT_FAILURE;
    }
    if (foreign_child_start(&child, seed)) {
        return EXIT_FAILURE;
    }

    unlink(FOREIGN_STATS);
    setenv("UCX_NPRDMA_STATS", "file:" FOREIGN_STATS, 1);
    setenv("UCX_NPRDMA_EMULATION", "yes", 1);
    if (foreign_find_component(&uct, argv[1]) || foreign_open_md(&uct) ||
        foreign_open_iface(&uct)) {
        return EXIT_FAILURE;
    }

    if ((uct.attr.device_addr_len != sizeof(target.dev)) ||
        (uct.attr.iface_addr_len != sizeof(target.iface)) ||
        uct_iface_get_device_address(uct.iface,
                                     (uct_device_addr_t*)&target.dev) ||
        uct_iface_get_address(uct.iface, (uct_iface_addr_t*)&target.iface)) {
        fprintf(stderr, "FAILED: cannot get the addresses\n");
        return EXIT_FAILURE;
    }

    failed = (write(child.to, &target, sizeof(target)) != sizeof(target)) ||
             foreign_child_wait(&child, &uct, &tally) ||
             foreign_check_works(&uct, &target);
    foreign_close(&uct);
    if (failed || foreign_check_counters(&tally)) {
        foreign_print_counters();
        return EXIT_FAILURE;
    }
    unlink(FOREIGN_STATS);
    printf("PASSED\n");
    return EXIT_SUCCESS;
}
