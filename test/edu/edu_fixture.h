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

/* A context and a region that is exported, on a device that was attached; the
 * region has so many pages */
void setup_region(fixture_t *f, size_t num_pages);

/* The same with NPAGES, and the device has imported it */
void setup(fixture_t *f);

/* 0 or the errno value; what it is, or why not, in @a why */
int attach(int ctx, const char *name, char *why, size_t size);

/* The descriptor */
int export(kmod_region_t *region);

/* 0 or the errno value; *@a arg, if not NULL, is what came back */
int import(int edu, int dmabuf, struct nprdma_edu_import *arg);

/* Offsets of a page in the windows, and of its state */
uint64_t in_r(size_t page);
uint64_t in_w(const fixture_t *f, size_t page);
uint64_t in_states(const fixture_t *f, size_t page);

/* A page's memory */
void *at(const fixture_t *f, size_t page);

/* Have the kernel take it */
void take_away(const fixture_t *f, size_t page);

/* Kernel memory that the user's contexts hold */
uint64_t user_bytes(int ctx);

/* Whoever has a dma-buf, or imported one, has the module: how many, and whether
 * nobody */
long long users_of_module(void);
int is_unused(void *unused);

#endif
