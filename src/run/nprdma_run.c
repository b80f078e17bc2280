/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * nprdma-supervisor WITNESS require|warn COMMAND...: runs a command, and judges
 * by the records of its processes whether their data went over nprdma. For
 * nprdma-run(1), which sets the environment.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_run_job.h"
#include "nprdma_run_launch.h"
#include "nprdma_run_pages.h"
#include "nprdma_run_server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

/* Exit status of nprdma-run itself; as of env(1), timeout(1) and others */
#define NPRDMA_RUN_FAILED        125
#define NPRDMA_RUN_CANNOT_EXEC   126
#define NPRDMA_RUN_NO_COMMAND    127

/* Variable that names a run; it has another value in the command */
#define NPRDMA_RUN_VARIABLE      "NPRDMA_RUN"

/* Variable of the transport; "summary" asks for the line of the job, too */
#define NPRDMA_RUN_STATS         "UCX_NPRDMA_STATS"

/* Milliseconds that late records get after the command has ended */
#define NPRDMA_RUN_LINGER_MS     50

/* Signals that are passed on to the command */
static const int nprdma_run_signals[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM,
                                          SIGUSR1, SIGUSR2, SIGALRM, SIGCONT };

#define NPRDMA_RUN_NUM_SIGNALS \
    (sizeof(nprdma_run_signals) / sizeof(nprdma_run_signals[0]))

/* In the child. The parent may have ended before prctl() */
__attribute__((noreturn)) static void
nprdma_run_exec(char **argv, const sigset_t *mask, pid_t parent)
{
    int error;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
        _exit(NPRDMA_RUN_FAILED);
    }
    sigprocmask(SIG_SETMASK, mask, NULL);
    execvp(argv[0], argv);
    error = errno;
    fprintf(stderr, "nprdma-run: error: cannot run %s: %s\n", argv[0],
            strerror(error));
    _exit((error == ENOENT) ? NPRDMA_RUN_NO_COMMAND : NPRDMA_RUN_CANNOT_EXEC);
}

/* Signals of the terminal have reached the command, too: it is in the same
 * process group. mpirun takes a second SIGINT for impatience. */
static void nprdma_run_pass_on(pid_t child, const struct signalfd_siginfo *info)
{
    if (info->ssi_code != SI_KERNEL) {
        kill(child, (int)info->ssi_signo);
    }
}

/* Returns the command's status as wait() has it */
static int nprdma_run_wait(nprdma_run_server_t *server, int signals,
                           pid_t child)
{
    struct signalfd_siginfo info;
    int status;
    pid_t ret;

    for (;;) {
        if (nprdma_run_server_serve(server, signals, -1) != 1) {
            continue;
        }
        if (read(signals, &info, sizeof(info)) != sizeof(info)) {
            continue;
        }
        if (info.ssi_signo != SIGCHLD) {
            nprdma_run_pass_on(child, &info);
            continue;
        }
        /* As process 1 of a container there are children of others */
        while ((ret = waitpid(-1, &status, WNOHANG)) > 0) {
            if (ret == child) {
                return status;
            }
        }
    }
}

/* Senders wait for an answer, so all records of processes that have ended are
 * here, or in the queues */
static void nprdma_run_linger(nprdma_run_server_t *server)
{
    int i;

    for (i = 0; (i < 10000) && (nprdma_run_server_serve(
                                        server, -1, NPRDMA_RUN_LINGER_MS) >= 0);
         ++i) {
    }
}

/* Ends as the command has ended */
static int nprdma_run_status(int status)
{
    struct rlimit no_core = {};
    sigset_t mask;

    if (!WIFSIGNALED(status)) {
        return WEXITSTATUS(status);
    }

    setrlimit(RLIMIT_CORE, &no_core); /* The command has dumped its own */
    signal(WTERMSIG(status), SIG_DFL);
    sigemptyset(&mask);
    sigaddset(&mask, WTERMSIG(status));
    fflush(NULL);
    kill(getpid(), WTERMSIG(status));
    sigprocmask(SIG_UNBLOCK, &mask, NULL);
    return 128 + WTERMSIG(status); /* Process 1 survives its signals */
}

/* Block what the loop reads. The descriptor, or -1. */
static int nprdma_run_block_signals(sigset_t *old_mask)
{
    sigset_t mask;
    size_t i;

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (i = 0; i < NPRDMA_RUN_NUM_SIGNALS; ++i) {
        sigaddset(&mask, nprdma_run_signals[i]);
    }
    signal(SIGCHLD, SIG_DFL); /* It may have been ignored */
    sigprocmask(SIG_BLOCK, &mask, old_mask);
    return signalfd(-1, &mask, SFD_CLOEXEC);
}

/* Returns nonzero if the command has been started and has ended */
static int nprdma_run_serve(nprdma_run_server_t *server, const char *witness,
                            char **argv, int *status)
{
    pid_t child, parent = getpid();
    sigset_t mask;
    int signals;

    argv    = nprdma_run_launch_prepare(argv, witness,
                                        nprdma_run_server_value(server));
    signals = nprdma_run_block_signals(&mask);
    child   = ((argv == NULL) || (signals < 0)) ? -1 : fork();
    if (child < 0) {
        fprintf(stderr, "nprdma-run: error: cannot start the command: %s\n",
                strerror(errno));
        return 0;
    }
    if (child == 0) {
        nprdma_run_exec(argv, &mask, parent);
    }

    *status = nprdma_run_wait(server, signals, child);
    nprdma_run_linger(server);
    return 1;
}

/* Returns whether the job is good. `outer` is NPRDMA_RUN of this process. */
static int nprdma_run_judge(const nprdma_run_job_t *job, int is_required,
                            const char *outer)
{
    const char *stats = getenv(NPRDMA_RUN_STATS);
    int is_good;

    if ((stats != NULL) && !strcmp(stats, "summary")) {
        nprdma_run_job_print(job);
    }
    is_good = nprdma_run_job_judge(job, is_required ? "error" : "warning");
    if (outer != NULL) {
        setenv(NPRDMA_RUN_VARIABLE, outer, 1);
        nprdma_run_job_report(job, is_good);
    }
    return is_good;
}

static int nprdma_run_command(nprdma_run_job_t *job, const char *witness,
                              int is_required, const char *outer, char **argv)
{
    nprdma_run_server_t *server = nprdma_run_server_create(job);
    int status, is_good, has_run;

    if (server == NULL) {
        return NPRDMA_RUN_FAILED;
    }

    nprdma_run_pages_create(nprdma_run_server_name(server));
    has_run = nprdma_run_serve(server, witness, argv, &status);
    nprdma_run_pages_take(nprdma_run_server_name(server), job);
    nprdma_run_server_destroy(server);
    if (!has_run) {
        return NPRDMA_RUN_FAILED;
    }

    is_good = nprdma_run_judge(job, is_required, outer);
    if (is_required && !is_good && (status == 0)) {
        return NPRDMA_RUN_FAILED;
    }
    return nprdma_run_status(status);
}

int main(int argc, char **argv)
{
    const char *run = getenv(NPRDMA_RUN_VARIABLE);
    nprdma_run_job_t *job;
    char *outer;
    int ret;

    if ((argc < 4) || (strcmp(argv[2], "require") && strcmp(argv[2], "warn"))) {
        fprintf(stderr, "nprdma-run: error: this program is part of "
                "nprdma-run(1)\n");
        return NPRDMA_RUN_FAILED;
    }

    job = nprdma_run_job_create();
    if (job == NULL) {
        fprintf(stderr, "nprdma-run: error: no memory\n");
        return NPRDMA_RUN_FAILED;
    }

    /* The environment is about to change */
    outer = (run == NULL) ? NULL : strdup(run);
    ret   = nprdma_run_command(job, argv[1], !strcmp(argv[2], "require"),
                               outer, argv + 3);
    free(outer);
    nprdma_run_job_destroy(job);
    return ret;
}
