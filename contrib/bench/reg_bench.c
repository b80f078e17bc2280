/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What registering memory with a UCT memory domain costs:
 *
 *   reg_bench COMPONENT DEVICE covered BYTES  a buffer that was registered
 *                  before, and is in use: the cost of another registration
 *   reg_bench COMPONENT DEVICE first BYTES    untouched memory, in a place
 *                  where nothing has been registered, as soon as it is mapped
 *
 * Prints the microseconds of uct_md_mem_reg() and uct_md_mem_dereg() together,
 * and of uct_md_mkey_pack() between them for `first`: nprdma makes a region
 * with the first key. The median of many, but one alone for `first`, as a
 * second one would find what the first has left.
 */

#include "bench.h"

#include <uct/api/uct.h>

#include <string.h>

#define PAGE_SIZE 4096
#define NUM_TURNS 20001
#define MAX_KEY   256

#define UCT_CHECK(_call) \
    do { \
        ucs_status_t _status = (_call); \
        CHECK(_status == UCS_OK, "%s", ucs_status_string(_status)); \
    } while (0)

static uct_md_h open_md(const char *component_name, const char *device)
{
    uct_component_attr_t attr = {
        .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME
    };
    uct_component_h *components;
    uct_md_config_t *config;
    unsigned num_components, i;
    uct_md_h md = NULL;

    UCT_CHECK(uct_query_components(&components, &num_components));
    for (i = 0; (i < num_components) && (md == NULL); ++i) {
        UCT_CHECK(uct_component_query(components[i], &attr));
        if (strcmp(attr.name, component_name) == 0) {
            UCT_CHECK(uct_md_config_read(components[i], NULL, NULL, &config));
            UCT_CHECK(uct_md_open(components[i], device, config, &md));
            uct_config_release(config);
        }
    }

    uct_release_component_list(components);
    CHECK(md != NULL, "there is no such component");
    return md;
}

static double reg_dereg(uct_md_h md, void *memory, size_t length, int pack)
{
    double start = now_us();
    char key[MAX_KEY];
    uct_mem_h memh;

    UCT_CHECK(uct_md_mem_reg(md, memory, length, UCT_MD_MEM_ACCESS_ALL, &memh));
    if (pack) {
        UCT_CHECK(uct_md_mkey_pack(md, memh, key));
    }
    UCT_CHECK(uct_md_mem_dereg(md, memh));
    return now_us() - start;
}

/* The median of many; another registration stays meanwhile */
static double covered(uct_md_h md, size_t length)
{
    static double times[NUM_TURNS];
    void *memory = map_memory(length);
    uct_mem_h memh;
    int i;

    UCT_CHECK(uct_md_mem_reg(md, memory, length, UCT_MD_MEM_ACCESS_ALL, &memh));
    for (i = 0; i < NUM_TURNS; ++i) {
        times[i] = reg_dereg(md, memory, length, 0);
    }
    UCT_CHECK(uct_md_mem_dereg(md, memh));
    return median(times, NUM_TURNS);
}

static double first(uct_md_h md, size_t length)
{
    static char elsewhere[PAGE_SIZE];
    double result;
    void *memory;

    /* Else code that runs for the first time would take most of the time */
    reg_dereg(md, elsewhere, sizeof(elsewhere), 1);

    memory = map_memory(length);
    result = reg_dereg(md, memory, length, 1);
    munmap(memory, length);
    return result;
}

int main(int argc, char **argv)
{
    size_t length    = (argc == 5) ? strtoull(argv[4], NULL, 0) : 0;
    const char *kind = (length > 0) ? argv[3] : "";
    double us;
    uct_md_h md;

    if (strcmp(kind, "covered") && strcmp(kind, "first")) {
        fprintf(stderr, "usage: reg_bench COMPONENT DEVICE covered|first "
                        "BYTES\n");
        return 2;
    }

    md = open_md(argv[1], argv[2]);
    us = (kind[0] == 'f') ? first(md, length) : covered(md, length);
    printf("us %.4f\n", us);
    uct_md_close(md);
    return EXIT_SUCCESS;
}
