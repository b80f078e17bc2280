/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_EDU_RDMA_H
#define NPRDMA_EDU_RDMA_H

struct pci_dev;

int nprdma_edu_rdma_init(void);
void nprdma_edu_rdma_exit(void);

/* For the one device that the driver has */
int nprdma_edu_rdma_add(struct pci_dev *pdev);
void nprdma_edu_rdma_remove(void);

#endif
