/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * rmem_client ADDRESS:PORT TOKEN-FILE BYTES TIMEOUT-MS
 *
 * A session that a test controls. Prints the status of rmem_open(), then reads
 * commands, and prints a line for each: the status, and the number of calls of
 * on_error.
 *   w OFFSET LENGTH SEED  write, bytes that SEED chooses
 *   r OFFSET LENGTH SEED  read; status 1 if it is not what SEED has written, or
 *                         zeros for 0
 *   f                     flush
 *   d OFFSET LENGTH       discard
 *   x COUNT SEED          that number of random calls, compared with a copy
 *   s                     read in a child of fork()
 *   m                     messages sent
 */

#include "rmem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CALL = 600000, DIFFERS = 1 };

static rmem_t *rmem;
static unsigned num_errors;
static unsigned char *copy; /* Of all bytes, by command x */
static size_t bytes;

static void on_error(int status, void *arg)
{
    ++num_errors;
}

static void fill(unsigned char *data, size_t length, unsigned seed)
{
    unsigned long value = seed * 0x9e3779b97f4a7c15ul;
    size_t i;

    for (i = 0; i < length; ++i) {
        value   = value * 6364136223846793005ul + 1442695040888963407ul;
        data[i] = seed ? value >> 56 : 0;
    }
}

static int write_seed(size_t offset, size_t length, unsigned seed)
{
    unsigned char *data = malloc(length + 1);
    int status;

    fill(data, length, seed);
    status = rmem_write(rmem, offset, data, length);
    memset(data, 0xee, length); /* It may be used again */
    free(data);
    return status;
}

static int read_seed(size_t offset, size_t length, unsigned seed)
{
    unsigned char *data = malloc(length + 1), *expected = malloc(length + 1);
    int status;

    fill(expected, length, seed);
    memset(data, 0xdd, length);
    status = rmem_read(rmem, offset, data, length);
    if ((status == RMEM_OK) && memcmp(data, expected, length)) {
        status = DIFFERS;
    }
    free(data);
    free(expected);
    return status;
}

static int random_call(unsigned char *data, unsigned *seed)
{
    size_t length = (rand_r(seed) % 4) ? rand_r(seed) % 300 :
                    rand_r(seed) % MAX_CALL;
    size_t offset = (((size_t)rand_r(seed) << 20) ^ rand_r(seed)) % bytes;
    int status;

    length = (length < bytes - offset) ? length : bytes - offset;
    switch (rand_r(seed) % 8) {
    case 0:
        status = rmem_discard(rmem, (void*)offset, length);
        if (((offset + 4095) & ~4095ul) < ((offset + length) & ~4095ul)) {
            memset(copy + ((offset + 4095) & ~4095ul), 0,
                   ((offset + length) & ~4095ul) - ((offset + 4095) & ~4095ul));
        }
        return status;
    case 1:
        return rmem_flush(rmem);
    case 2: case 3: case 4:
        status = rmem_read(rmem, offset, data, length);
        return ((status == RMEM_OK) && memcmp(data, copy + offset, length)) ?
               DIFFERS : status;
    default:
        fill(copy + offset, length, rand_r(seed) | 1);
        return rmem_write(rmem, offset, copy + offset, length);
    }
}

static int random_calls(unsigned count, unsigned seed)
{
    unsigned char *data = malloc(MAX_CALL);
    int status          = RMEM_OK;

    if (copy == NULL) {
        copy = calloc(1, bytes);
    }
    while ((status == RMEM_OK) && (count-- > 0)) {
        status = random_call(data, &seed);
    }
    free(data);
    return status;
}

/* Returns the status of a call in a child */
static int read_in_child(void)
{
    pid_t pid = fork();
    int status;
    char byte;

    if (pid == 0) {
        status = rmem_read(rmem, 0, &byte, 1);
        rmem_close(rmem);
        _exit(-status);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? -WEXITSTATUS(status) : DIFFERS;
}

static int execute(char command, const size_t *args)
{
    rmem_stats_t stats;

    switch (command) {
    case 'w':
        return write_seed(args[0], args[1], args[2]);
    case 'r':
        return read_seed(args[0], args[1], args[2]);
    case 'f':
        return rmem_flush(rmem);
    case 'd':
        return rmem_discard(rmem, (void*)args[0], args[1]);
    case 'x':
        return random_calls(args[0], args[1]);
    case 's':
        return read_in_child();
    default:
        rmem_stats(rmem, &stats);
        return (int)stats.messages;
    }
}

int main(int argc, char **argv)
{
    rmem_params_t params = {
        .size       = sizeof(params),
        .token_file = argv[2],
        .on_error   = on_error
    };
    char line[128], command;
    size_t args[3];
    int status;

    bytes             = strtoul(argv[3], NULL, 0);
    params.bytes      = bytes;
    params.timeout_ms = atoi(argv[4]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    status = rmem_open(argv[1], &params, &rmem);
    printf("%d 0\n", status);
    if (status != RMEM_OK) {
        return 0;
    }

    while (fgets(line, sizeof(line), stdin) != NULL) {
        memset(args, 0, sizeof(args));
        sscanf(line, "%c %zu %zu %zu", &command, &args[0], &args[1], &args[2]);
        status = execute(command, args);
        printf("%d %u\n", status, num_errors);
    }
    rmem_close(rmem);
    free(copy);
    return 0;
}
