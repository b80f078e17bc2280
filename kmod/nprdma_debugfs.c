// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include "nprdma_debugfs.h"
#include "nprdma_ctx.h"
#include "nprdma_kregions.h"
#include "nprdma_limits.h"

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

static struct dentry *nprdma_debugfs;

/* Regions of all users, their pages and events */
static int contexts_show(struct seq_file *seq, void *unused)
{
	nprdma_ctxs_show(seq, nprdma_kregions_show);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(contexts);

/* Memory and regions of users, and their limits */
static int limits_show(struct seq_file *seq, void *unused)
{
	nprdma_limits_show(seq);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(limits);

/* Errors are ignored: the module works without debugfs */
void nprdma_debugfs_init(void)
{
	nprdma_debugfs = debugfs_create_dir("nprdma", NULL);
	debugfs_create_file("contexts", 0400, nprdma_debugfs, NULL,
			    &contexts_fops);
	debugfs_create_file("limits", 0400, nprdma_debugfs, NULL,
			    &limits_fops);
}

void nprdma_debugfs_exit(void)
{
	debugfs_remove_recursive(nprdma_debugfs);
}
