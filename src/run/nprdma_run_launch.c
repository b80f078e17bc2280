/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_run_launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *nprdma_run_launchers[] = {
    "mpirun", "mpiexec", "orterun", "prterun", "oshrun", "shmemrun",
    "mpirun.openmpi", "mpiexec.openmpi", NULL
};

#define NPRDMA_RUN_ENV_LIST "OMPI_MCA_mca_base_env_list"

/* Whether what a program prints for --version names Open MPI; MPICH's mpirun
 * passes the whole environment and does not know -x */
static int nprdma_run_asks_openmpi(const char *program)
{
    char text[1024] = "";
    size_t length   = 0;
    int fds[2];
    ssize_t ret;
    pid_t pid;

    if (pipe(fds) < 0) {
        return 0;
    }
    pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        execlp(program, program, "--version", (char*)NULL);
        _exit(127);
    }
    close(fds[1]);
    while ((pid > 0) && (length < sizeof(text) - 1) &&
           ((ret = read(fds[0], text + length, sizeof(text) - 1 - length)) >
            0)) {
        length += ret;
    }
    close(fds[0]);
    if (pid > 0) {
        waitpid(pid, NULL, 0);
    }
    text[length] = '\0';
    return strstr(text, "Open MPI") || strstr(text, "OpenRTE") ||
           strstr(text, "PRRTE") || strstr(text, "prterun");
}

static int nprdma_run_is_openmpi(const char *program)
{
    const char *slash  = strrchr(program, '/');
    const char *name   = (slash == NULL) ? program : slash + 1;
    const char **known = nprdma_run_launchers;

    while ((*known != NULL) && strcmp(*known, name)) {
        ++known;
    }
    return (*known != NULL) && nprdma_run_asks_openmpi(program);
}

/* Variables that remote ranks need: ours, and the user's settings of UCX and of
 * the emulated RNIC. Returns the length of the name, or 0. */
static size_t nprdma_run_is_ours(const char *variable)
{
    static const char *prefixes[] = { "UCX_", "NPEMU_", "NPRDMA_", NULL };
    size_t length                 = strcspn(variable, "=");
    const char **prefix;

    if ((length == 10) && !strncmp(variable, "LD_PRELOAD", 10)) {
        return length;
    }
    for (prefix = prefixes; *prefix != NULL; ++prefix) {
        if (!strncmp(variable, *prefix, strlen(*prefix))) {
            return length;
        }
    }
    return 0;
}

/* Whether the user's own -x sets or passes a variable */
static int nprdma_run_has_x(char **argv, const char *variable, size_t length)
{
    for (; *argv != NULL; ++argv) {
        if (!strcmp(*argv, "-x") && (argv[1] != NULL) &&
            !strncmp(argv[1], variable, length) &&
            ((argv[1][length] == '=') || (argv[1][length] == '\0'))) {
            return 1;
        }
    }
    return 0;
}

static int nprdma_run_has_argument(char **argv, const char *argument)
{
    for (; *argv != NULL; ++argv) {
        if (!strcmp(*argv, argument)) {
            return 1;
        }
    }
    return 0;
}

/* Open MPI refuses -x beside its other way to pass variables. Returns whether
 * the user uses the other way; if by the environment, adds ours there. */
static int nprdma_run_add_to_list(char **argv)
{
    const char *list = getenv(NPRDMA_RUN_ENV_LIST);
    size_t length, size;
    char **variable, *text;

    if (nprdma_run_has_argument(argv, "mca_base_env_list")) {
        fprintf(stderr, "nprdma-run: warning: mca_base_env_list on the command "
                "line: ranks on other hosts get nothing of nprdma-run\n");
        return 1;
    }
    if (list == NULL) {
        return 0;
    }

    size = strlen(list) + 1;
    for (variable = environ; *variable != NULL; ++variable) {
        size += nprdma_run_is_ours(*variable) + 1;
    }
    text = malloc(size);
    if (text == NULL) {
        return 1;
    }
    strcpy(text, list);
    for (variable = environ; *variable != NULL; ++variable) {
        length = nprdma_run_is_ours(*variable);
        if (length > 0) {
            sprintf(text + strlen(text), ";%.*s", (int)length, *variable);
        }
    }
    setenv(NPRDMA_RUN_ENV_LIST, text, 1);
    free(text);
    return 1;
}

char **nprdma_run_launch_prepare(char **argv, const char *witness,
                                 const char *run)
{
    const char *preload = getenv("LD_PRELOAD");
    size_t count = 1, num_variables = 0, length;
    char **arguments, **variable, *text;
    char **to;

    if (asprintf(&text, "%s%s%s", witness, preload ? ":" : "",
                 preload ? preload : "") < 0) {
        return NULL;
    }

    /* mpirun --version is asked without the witness */
    length = nprdma_run_is_openmpi(argv[0]);
    setenv("LD_PRELOAD", text, 1);
    setenv("NPRDMA_RUN", run, 1);
    free(text);
    length = length && !nprdma_run_add_to_list(argv);

    for (; argv[count] != NULL; ++count) {
    }
    for (variable = environ; *variable != NULL; ++variable) {
        ++num_variables;
    }
    arguments = calloc(count + (2 * num_variables) + 1, sizeof(*arguments));
    if (arguments == NULL) {
        return NULL;
    }

    to    = arguments;
    *to++ = argv[0];
    for (variable = environ; length && (*variable != NULL); ++variable) {
        size_t name = nprdma_run_is_ours(*variable);

        if ((name == 0) || nprdma_run_has_x(argv, *variable, name)) {
            continue;
        }
        *to   = "-x";
        to[1] = strndup(*variable, name);
        if (to[1] == NULL) {
            free(arguments);
            return NULL;
        }
        to += 2;
    }
    memcpy(to, argv + 1, (count - 1) * sizeof(*to));
    return arguments;
}
