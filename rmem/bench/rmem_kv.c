/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * rmem_kv PATH redis|memcached PID KEYS OPERATIONS: a client of a server of
 * keys and values at a socket. It sets all keys to values of 1000 bytes, and
 * then gets them by the law of Zipf, or sets them again, one time in ten; one
 * operation at a time. All values are checked. Prints the median, the 99th
 * percentile and the mean of the microseconds of an operation, and how much CPU
 * time an operation took in the process PID. As many operations as are measured
 * come before.
 */

#include "rmem_load.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define VALUE    1000
#define MAX_SIZE (VALUE + 64)

static int      sock, is_redis;
static char     answer[MAX_SIZE + 1];
static unsigned *versions;

/* Waits for an answer of a length */
static void ask(const char *request, size_t length, size_t expected)
{
    size_t done = 0;
    ssize_t got;

    CHECK(write(sock, request, length) == (ssize_t)length, "write: %m");
    while (done < expected) {
        got = read(sock, answer + done, MAX_SIZE - done);
        CHECK(got > 0, "the server has gone");
        done        += got;
        answer[done] = '\0';
    }
    CHECK(done == expected, "wrong answer: %.60s", answer);
}

static void value_of(unsigned key, char *value)
{
    memset(value, 'a' + (key + versions[key]) % 26, VALUE);
    value[sprintf(value, "%09u", key)] = 'x';
}

static void set(unsigned key)
{
    char request[MAX_SIZE], value[VALUE + 1] = "", name[16];
    const char *done = is_redis ? "+OK\r\n" : "STORED\r\n";
    int length       = sprintf(name, "k%u", key);

    value_of(key, value);
    length = is_redis ? sprintf(request,
                                "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n",
                                length, name, VALUE, value) :
             sprintf(request, "set %s 0 0 %d\r\n%s\r\n", name, VALUE, value);
    ask(request, length, strlen(done));
    CHECK(!strcmp(answer, done), "wrong answer: %.60s", answer);
}

static void get(unsigned key)
{
    char request[64], head[64], value[VALUE], name[16];
    int length, head_length;

    length      = sprintf(name, "k%u", key);
    head_length = is_redis ? sprintf(head, "$%d\r\n", VALUE) :
                  sprintf(head, "VALUE %s 0 %d\r\n", name, VALUE);
    length      = is_redis ? sprintf(request,
                                     "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", length,
                                     name) :
                  sprintf(request, "get %s\r\n", name);
    ask(request, length, head_length + VALUE + (is_redis ? 2 : 7));
    value_of(key, value);
    CHECK(!memcmp(answer, head, head_length) &&
          !memcmp(answer + head_length, value, VALUE), "wrong value of %s",
          name);
}

int main(int argc, char **argv)
{
    unsigned keys = (argc == 6) ? atoi(argv[4]) : 0;
    unsigned num  = (argc == 6) ? atoi(argv[5]) : 0;
    pid_t pid     = (argc == 6) ? atoi(argv[3]) : 0;
    double *times = malloc(num * sizeof(*times)), *sums;
    double start, cpu = 0, total = 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unsigned i, key;

    CHECK((num > 0) && (keys > 0), "usage: rmem_kv PATH redis|memcached "
          "PID KEYS OPERATIONS");
    is_redis = !strcmp(argv[2], "redis");
    strncpy(address.sun_path, argv[1], sizeof(address.sun_path) - 1);
    sock = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(connect(sock, (void*)&address, sizeof(address)) == 0, "%s: %m",
          argv[1]);

    sums     = zipf_sums(keys);
    versions = calloc(keys, sizeof(*versions));
    for (i = 0; i < keys; ++i) {
        set(i);
    }
    for (i = 0; i < 2 * num; ++i) {
        if (i == num) {
            cpu = cpu_us(pid);
        }
        key   = zipf(sums, keys);
        start = now_us();
        if (drand48() < 0.1) {
            ++versions[key];
            set(key);
        } else {
            get(key);
        }
        if (i >= num) {
            times[i - num] = now_us() - start;
            total         += times[i - num];
        }
    }
    cpu = cpu_us(pid) - cpu;
    sort_values(times, num);
    printf("p50 %.3f p99 %.3f mean %.3f cpu %.3f\n", times[num / 2],
           times[num / 100 * 99], total / num, cpu / num);
    return EXIT_SUCCESS;
}
