/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Environment and arguments of the command that nprdma-run starts.
 */

#ifndef NPRDMA_RUN_LAUNCH_H_
#define NPRDMA_RUN_LAUNCH_H_

/**
 * Prepare the environment of this process for the command. If the command is
 * Open MPI's mpirun, options -x are inserted that pass the variables to remote
 * ranks, except where mca_base_env_list is used, with which mpirun refuses -x.
 *
 * @param [in] argv     Command and its arguments, with NULL at the end.
 * @param [in] witness  Library to preload.
 * @param [in] run      Value of NPRDMA_RUN.
 *
 * @return New arguments, allocated once as a whole except for the strings; NULL
 *         if there is no memory.
 */
char **nprdma_run_launch_prepare(char **argv, const char *witness,
                                 const char *run);

#endif
