/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A region of this process on the device.
 */

#ifndef NPRDMA_TEST_EDU_FIXTURE_H
#define NPRDMA_TEST_EDU_FIXTURE_H

#include "edu.h"

#define NPAGES 1203

typedef struct {
    kmod_region_t     region;
    int               edu;
    int               dmabuf;
    uint64_t          signature;
    volatile uint64_t *words; /* the memory */
} fixture_t;

/* A context, an attached device, and an exported region with this many pages */
void setup_region(fixture_t *f, size_t num_pages);

/* The same with NPAGES, and the device has imported it */
void setup(fixture_t *f);

/* The device that the environment names, else the edu */
void device_name(int edu, char *name, size_t size);

/* @return 0 or the errno value. @a why gets the IOMMU, or the reason of the
 *         failure. */
int attach(int ctx, const char *name, char *why, size_t size);

/* @return The dma-buf's descriptor. */
int export(kmod_region_t *region);

/* @return 0 or the errno value; *@a arg, if not NULL, is what the call
 *         returned. */
int import(int edu, int dmabuf, struct nprdma_edu_import *arg);

/* Offsets of a page in the windows, and of its state */
uint64_t in_r(size_t page);
uint64_t in_w(const fixture_t *f, size_t page);
uint64_t in_states(const fixture_t *f, size_t page);

/* A page's memory */
void *at(const fixture_t *f, size_t page);

/* Let the kernel take the page */
void take_away(const fixture_t *f, size_t page);

/* Kernel memory that is accounted to the context's user */
uint64_t user_bytes(int ctx);

/* References of the module, one for each dma-buf and each import, and whether
 * there are none */
long long users_of_module(void);
int is_unused(void *unused);

#endif
