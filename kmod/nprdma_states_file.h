/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_STATES_FILE_H
#define NPRDMA_STATES_FILE_H

struct file;
struct nprdma_kregion;

struct file *nprdma_states_file(struct nprdma_kregion *region);

#endif
