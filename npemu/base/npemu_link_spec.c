/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_link_spec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NPEMU_LINK_RATE_MIN    1e6  /* bytes per second */
#define NPEMU_LINK_RATE_MAX    1e12
#define NPEMU_LINK_LATENCY_MAX 1e9  /* ns */

typedef struct {
    const char *name;
    double     factor;
} npemu_link_unit_t;

static const npemu_link_unit_t npemu_link_rates[] = {
    {"MB/s", 1e6},       {"GB/s", 1e9},      {"Mb/s", 1e6 / 8},
    {"Gb/s", 1e9 / 8},   {NULL, 0}
};

static const npemu_link_unit_t npemu_link_times[] = {
    {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}
};

/* Parse a number with a unit. Returns 1, or 0 if it is not valid. */
static int npemu_link_quantity(const char *text, const npemu_link_unit_t *unit,
                               double min, double max, uint64_t *value)
{
    double number;
    char *end;

    number = strtod(text, &end);
    for (; (unit->name != NULL) && strcmp(unit->name, end); ++unit) {
    }
    number *= unit->factor;
    if ((text[0] < '0') || (text[0] > '9') || (unit->name == NULL) ||
        !(number >= min) || !(number <= max)) {
        return 0;
    }

    *value = (uint64_t)(number + 0.5);
    return 1;
}

static int npemu_link_port(const char *text, uint32_t *port)
{
    unsigned long value;
    char *end;

    if ((text[0] < '1') || (text[0] > '9')) {
        return 0;
    }

    value = strtoul(text, &end, 10);
    *port = (uint32_t)value;
    return (*end == '\0') && (value <= NPEMU_LINK_PORTS);
}

static int npemu_link_arb(const char *text, uint32_t *arb)
{
    static const char *names[] = {[NPEMU_ARB_FAIR] = "fair",
                                  [NPEMU_ARB_FIFO] = "fifo",
                                  [NPEMU_ARB_PRIO] = "prio"};

    for (*arb = NPEMU_ARB_FAIR; *arb <= NPEMU_ARB_PRIO; ++*arb) {
        if (!strcmp(text, names[*arb])) {
            return 1;
        }
    }
    return 0;
}

/* Parse one item; the first is the rate. Returns 1, or 0 if it is not valid. */
static int npemu_link_item(const char *item, int is_first,
                           npemu_link_spec_t *spec)
{
    if (is_first) {
        return npemu_link_quantity(item, npemu_link_rates, NPEMU_LINK_RATE_MIN,
                                   NPEMU_LINK_RATE_MAX, &spec->rate);
    } else if (!strncmp(item, "latency=", 8)) {
        return npemu_link_quantity(item + 8, npemu_link_times, 0,
                                   NPEMU_LINK_LATENCY_MAX, &spec->latency_ns);
    } else if (!strncmp(item, "port=", 5)) {
        return npemu_link_port(item + 5, &spec->port);
    } else if (!strncmp(item, "arb=", 4)) {
        return npemu_link_arb(item + 4, &spec->arb);
    }
    return 0;
}

int npemu_link_spec_parse(const char *text, npemu_link_spec_t *spec,
                          char *item, size_t size)
{
    int is_first = 1;
    size_t length;

    memset(spec, 0, sizeof(*spec));
    for (;; is_first = 0, text += length + 1) {
        length = strcspn(text, ",");
        memcpy(item, text, (length < size) ? length : size - 1);
        item[(length < size) ? length : size - 1] = '\0';
        if ((length >= size) || !npemu_link_item(item, is_first, spec)) {
            memset(spec, 0, sizeof(*spec));
            return EINVAL;
        }

        if (text[length] == '\0') {
            return 0;
        }
    }
}

void npemu_link_spec_speed(uint64_t rate, uint8_t *width, uint8_t *speed)
{
    /* active_width and its lanes; of equal ones the first is taken */
    static const struct {
        uint8_t width;
        uint8_t lanes;
    } widths[] = {{2, 4}, {1, 1}, {16, 2}, {4, 8}, {8, 12}};
    /* Gbit/s of a lane without the line code, by the bit of active_speed: SDR,
     * DDR, QDR, FDR10, FDR, EDR, HDR, NDR */
    static const double speeds[] = {2, 4, 8, 10, 13.64, 25, 50, 100};
    double gbits                 = rate * 8e-9;
    double best                  = 0;
    double value, ratio;
    unsigned i, j;

    for (i = 0; i < sizeof(widths) / sizeof(widths[0]); ++i) {
        for (j = 0; j < sizeof(speeds) / sizeof(speeds[0]); ++j) {
            value = widths[i].lanes * speeds[j];
            ratio = (value < gbits) ? value / gbits : gbits / value;
            if (ratio > best) {
                best   = ratio;
                *width = widths[i].width;
                *speed = 1 << j;
            }
        }
    }
}
