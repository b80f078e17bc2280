/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory keys: what addresses a key stands for, and whose they are. */

#ifndef EMLX5_MKEY_H
#define EMLX5_MKEY_H

#include "object/emlx5_hca.h"

enum { EMLX5_MKC_SIZE = 64, EMLX5_OCTOWORD = 16 };

typedef enum {
    EMLX5_LOCAL_READ    = 1 << 0,
    EMLX5_LOCAL_WRITE   = 1 << 1,
    EMLX5_REMOTE_READ   = 1 << 2,
    EMLX5_REMOTE_WRITE  = 1 << 3,
    EMLX5_REMOTE_ATOMIC = 1 << 4
} emlx5_right_t;

typedef struct emlx5_mkey {
    emlx5_hca_t *hca;
    uint32_t    index;                   /* the key is index << 8 | variant */
    uint8_t     context[EMLX5_MKC_SIZE];
    uint8_t     *translation;            /* as the driver wrote it */
    uint32_t    octowords;               /* its size in 16 bytes */
} emlx5_mkey_t;

/** Makes a key from EMLX5_MKC_SIZE bytes of the command, with room for this
 * many octowords of its translation, whose first entries are in the list.
 * @return NULL if there is no number, or not so much memory. */
emlx5_mkey_t *emlx5_mkey_create(emlx5_hca_t *hca, const uint8_t *context,
                                uint32_t octowords, const void *list,
                                uint32_t bytes);

void emlx5_mkey_destroy(emlx5_mkey_t *mkey);

/** Changes entries of the translation. @return Where to put them, NULL if they
 * are outside of it. */
void *emlx5_mkey_entries(emlx5_mkey_t *mkey, uint64_t offset, uint64_t bytes);

/* Memory that a key is used for */
typedef struct {
    uint32_t key;
    uint32_t pd;
    uint32_t rights; /* all of these are needed: emlx5_right_t */
    uint64_t va;
    uint64_t length; /* bytes; 0 is always permitted */
    int      is_rdma; /* data of RDMA WRITE or READ: emlx5_dma_put() */
} emlx5_access_t;

/** Asks for memory: emlx5_dma_get() of its pieces. @return 0, or -1 if the key
 * does not permit it. Some of the memory may have been asked for, so
 * emlx5_dma_finish() has to be called in any case. */
int emlx5_mkey_get(emlx5_hca_t *hca, const emlx5_access_t *access, void *data);

/** Writes memory: emlx5_dma_put() of its pieces if they are data of RDMA
 * operations, emlx5_dma_write() otherwise. @return 0, or -1 if the key
 * does not permit it; a part may have been written then. */
int emlx5_mkey_put(emlx5_hca_t *hca, const emlx5_access_t *access,
                   const void *data);

/** Checks without any DMA. @return 0, or -1 if the key does not permit it. */
int emlx5_mkey_check(emlx5_hca_t *hca, const emlx5_access_t *access);

#endif
