/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_record.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Milliseconds for a record, over all addresses */
#define NPRDMA_RECORD_TIMEOUT 5000

/* Of these for the connection to one address, and its greeting */
#define NPRDMA_RECORD_CONNECT 1500

/* Launchers say rank, size and job in different variables */
static const char *nprdma_record_ranks[] = {
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL
};
static const char *nprdma_record_sizes[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL
};
static const char *nprdma_record_jobs[]  = {
    "PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "SLURM_STEP_ID", NULL
};

/* ---- what a record says ---- */

static const char *nprdma_record_env(const char **names)
{
    const char *value = NULL;

    for (; (*names != NULL) && (value == NULL); ++names) {
        value = getenv(*names);
    }
    return value;
}

const char *nprdma_record_rank(void)
{
    return nprdma_record_env(nprdma_record_ranks);
}

/* The next part of a value, up to a slash. Returns NULL if it does not fit. */
static const char *
nprdma_record_part(const char *value, char *part, size_t size)
{
    size_t length = strcspn(value, "/");

    if ((length == 0) || (length >= size) || (value[length] != '/')) {
        return NULL;
    }
    memcpy(part, value, length);
    part[length] = '\0';
    return value + length + 1;
}

int nprdma_record_parse_run(const char *value, nprdma_record_run_t *run)
{
    char port[8];

    value = nprdma_record_part(value, run->proof, sizeof(run->proof));
    value = !value ? NULL : nprdma_record_part(value, run->token,
                                               sizeof(run->token));
    value = !value ? NULL : nprdma_record_part(value, run->boot,
                                               sizeof(run->boot));
    value = !value ? NULL : nprdma_record_part(value, run->name,
                                               sizeof(run->name));
    value = !value ? NULL : nprdma_record_part(value, port, sizeof(port));
    if ((value == NULL) || (strlen(value) >= sizeof(run->addresses))) {
        return 0;
    }

    strcpy(run->addresses, value);
    run->port = strtoul(port, NULL, 10);
    return (run->port <= 65535) &&
           (strlen(run->proof) == NPRDMA_RECORD_SECRET_LEN) &&
           (strlen(run->token) == NPRDMA_RECORD_SECRET_LEN);
}

static size_t nprdma_record_read(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t ret;

    if (fd < 0) {
        buffer[0] = '\0';
        return 0;
    }
    ret = read(fd, buffer, size - 1);
    close(fd);
    buffer[(ret > 0) ? ret : 0] = '\0';
    return (ret > 0) ? ret : 0;
}

void nprdma_record_boot_id(char *boot, size_t size)
{
    nprdma_record_read("/proc/sys/kernel/random/boot_id", boot, size);
    boot[strcspn(boot, "/\n")] = '\0';
    if (boot[0] == '\0') {
        snprintf(boot, size, "unknown");
    }
}

void nprdma_record_add(nprdma_record_t *record, const char *key,
                       const char *format, ...)
{
    size_t room = sizeof(record->text) - record->length -
                  sizeof(NPRDMA_RECORD_END "\n");
    char *line  = record->text + record->length;
    int length, more, total;
    va_list args;
    char *c;

    length = snprintf(line, room, "%s ", key);
    if ((size_t)length >= room) {
        return;
    }
    va_start(args, format);
    more = vsnprintf(line + length, room - length, format, args);
    va_end(args);
    total = length + more + 1;
    if ((more < 0) || ((size_t)total >= room)) {
        return;
    }

    for (c = line; c < line + length + more; ++c) {
        if (((unsigned char)*c < ' ') || (*c == 0x7f)) {
            *c = '?';
        }
    }
    line[length + more] = '\n';
    record->length     += total;
}

/* What a process is called in its records. The time of its start tells apart
 * processes that have the same number one after the other; exec() keeps both.
 */
static void nprdma_record_process(const char *boot, char *id, size_t size)
{
    char space[64] = "", stat[1024];
    const char *c;
    int field;

    nprdma_record_read("/proc/self/stat", stat, sizeof(stat));
    c = strrchr(stat, ')');
    for (field = 2; (c != NULL) && (field < 22); ++field) {
        c = strchr(c + 1, ' ');
    }
    field = readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    space[(field > 0) ? field : 0] = '\0';
    snprintf(id, size, "%d.%llu.%s.%s", (int)getpid(),
             (c == NULL) ? 0 : strtoull(c, NULL, 10), space, boot);
}

static void nprdma_record_add_env(nprdma_record_t *record, const char *key,
                                  const char **names)
{
    const char *value = nprdma_record_env(names);

    if (value != NULL) {
        nprdma_record_add(record, key, "%.200s", value);
    }
}

/* @return Whether the process belongs to a run; its boot id becomes that of
 *         this machine */
static int nprdma_record_find_run(nprdma_record_run_t *run)
{
    const char *value = secure_getenv("NPRDMA_RUN");
    char boot[sizeof(run->boot)];

    if ((value == NULL) || !nprdma_record_parse_run(value, run)) {
        return 0;
    }

    nprdma_record_boot_id(boot, sizeof(boot));
    if (strcmp(boot, run->boot)) {
        run->name[0] = '\0'; /* a Unix socket and files of another machine */
        strcpy(run->boot, boot);
    }
    return 1;
}

int nprdma_record_begin(nprdma_record_t *record, const char *kind)
{
    static const char *pml[] = { "OMPI_MCA_pml", NULL };
    static const char *tls[] = { "UCX_TLS", NULL };
    char id[NPRDMA_RECORD_ID_MAX], host[256];

    if (!nprdma_record_find_run(&record->run)) {
        return 0;
    }

    record->length = 0;
    nprdma_record_add(record, "token", "%s", record->run.token);
    nprdma_record_add(record, "kind", "%s", kind);
    nprdma_record_process(record->run.boot, id, sizeof(id));
    nprdma_record_add(record, "process", "%s", id);
    nprdma_record_add(record, "pid", "%d", (int)getpid());
    if (gethostname(host, sizeof(host)) == 0) {
        host[sizeof(host) - 1] = '\0';
        nprdma_record_add(record, "host", "%s", host);
    }
    nprdma_record_add(record, "program", "%s", program_invocation_short_name);
    nprdma_record_add_env(record, "rank", nprdma_record_ranks);
    nprdma_record_add_env(record, "size", nprdma_record_sizes);
    nprdma_record_add_env(record, "job", nprdma_record_jobs);
    nprdma_record_add_env(record, "pml", pml);
    nprdma_record_add_env(record, "tls", tls);
    return 1;
}

void nprdma_record_add_sums(nprdma_record_t *record,
                            const nprdma_record_sums_t *sums)
{
#define NPRDMA_RECORD_SUM_ADD(_name) \
    nprdma_record_add(record, #_name, "%" PRIu64, sums->_name);
    NPRDMA_RECORD_FOREACH_SUM(NPRDMA_RECORD_SUM_ADD)
#undef NPRDMA_RECORD_SUM_ADD
}

int nprdma_record_file(void)
{
    char id[NPRDMA_RECORD_ID_MAX], path[512];
    nprdma_record_run_t run;
    int fd = -1;
    unsigned i;

    if (!nprdma_record_find_run(&run) || (run.name[0] == '\0')) {
        return -1;
    }

    nprdma_record_process(run.boot, id, sizeof(id));
    for (i = 0; (fd < 0) && ((i == 0) || (errno == EEXIST)); ++i) {
        snprintf(path, sizeof(path), "%s%s/%s.%u", NPRDMA_RECORD_DIR, run.name,
                 id, i);
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    }
    return fd;
}

/* ---- the line for people ---- */

/* Bytes with a binary unit, as "12.3 MiB" */
static const char *nprdma_record_bytes(uint64_t bytes, char *text, size_t size)
{
    static const char *units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB",
                                   "EiB" };
    double value               = bytes;
    unsigned unit              = 0;

    while (value >= 1024) {
        value /= 1024;
        ++unit;
    }
    snprintf(text, size, (unit == 0) ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return text;
}

void nprdma_record_line(const nprdma_record_sums_t *sums, char *line,
                        size_t size)
{
    char text[6][32], share[48] = "no zero copy";

    if (sums->slices > 0) {
        /* Cut off, not rounded: 100 % means that none was repaired */
        snprintf(share, sizeof(share), "%" PRIu64 ".%02u %% without repair",
                 sums->hits * 100 / sums->slices,
                 (unsigned)(sums->hits * 10000 / sums->slices % 100));
    }
#define NPRDMA_RECORD_TEXT(_i, _name) \
    nprdma_record_bytes(sums->_name, text[_i], sizeof(text[_i]))
    snprintf(line, size,
             "%" PRIu64 " operations, %s sent, %s received; %s; absent: %"
             PRIu64 " lines, %" PRIu64 " states, %" PRIu64 " local, %" PRIu64
             " small; repairs %" PRIu64 ".%03u ms; registered %s, populated "
             "%s, pinned %s; transport pinned %s",
             sums->operations, NPRDMA_RECORD_TEXT(0, bytes_sent),
             NPRDMA_RECORD_TEXT(1, bytes_received), share, sums->absent_lines,
             sums->absent_states, sums->absent_local, sums->absent_small,
             sums->repair_us / 1000, (unsigned)(sums->repair_us % 1000),
             NPRDMA_RECORD_TEXT(2, registered_bytes),
             NPRDMA_RECORD_TEXT(3, populated_bytes),
             NPRDMA_RECORD_TEXT(4, app_pinned_bytes),
             NPRDMA_RECORD_TEXT(5, pinned_bytes));
#undef NPRDMA_RECORD_TEXT
}

/* ---- sending ---- */

static int64_t nprdma_record_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec * 1000ll) + (now.tv_nsec / 1000000);
}

/* Returns whether the descriptor is ready before the deadline */
static int nprdma_record_wait(int fd, short events, int64_t deadline)
{
    struct pollfd poll_fd = { .fd = fd, .events = events };
    int64_t left;
    int ret;

    do {
        left = deadline - nprdma_record_now();
        if (left <= 0) {
            return 0;
        }
        ret = poll(&poll_fd, 1, (int)left);
    } while ((ret < 0) && (errno == EINTR));
    return ret > 0;
}

/* Whether the peer sends exactly this */
static int nprdma_record_expect(int fd, const char *text, int64_t deadline)
{
    size_t length = strlen(text), done = 0;
    char buffer[64];
    ssize_t ret;

    while (done < length) {
        if (!nprdma_record_wait(fd, POLLIN, deadline)) {
            return 0;
        }
        ret = recv(fd, buffer, length - done, 0);
        if ((ret < 0) && ((errno == EAGAIN) || (errno == EINTR))) {
            continue;
        }
        if ((ret <= 0) || memcmp(buffer, text + done, ret)) {
            return 0;
        }
        done += ret;
    }
    return 1;
}

static int nprdma_record_write(int fd, const char *data, size_t length,
                               int64_t deadline)
{
    ssize_t ret;

    while (length > 0) {
        if (!nprdma_record_wait(fd, POLLOUT, deadline)) {
            return 0;
        }
        ret = send(fd, data, length, MSG_NOSIGNAL);
        if ((ret < 0) && ((errno == EAGAIN) || (errno == EINTR))) {
            continue;
        }
        if (ret <= 0) {
            return 0;
        }
        data   += ret;
        length -= ret;
    }
    return 1;
}

/* Returns whether the record has arrived */
static int nprdma_record_send_to(const nprdma_record_t *record,
                                 const struct sockaddr *address,
                                 socklen_t length, int64_t deadline)
{
    int64_t first = nprdma_record_now() + NPRDMA_RECORD_CONNECT;
    char greeting[64];
    int fd, done;

    first = (first < deadline) ? first : deadline;
    fd    = socket(address->sa_family,
                   SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return 0;
    }

    snprintf(greeting, sizeof(greeting), NPRDMA_RECORD_GREETING "%s\n",
             record->run.proof);
    done = (connect(fd, address, length) == 0) || (errno == EINPROGRESS);
    done = done && nprdma_record_expect(fd, greeting, first) &&
           nprdma_record_write(fd, record->text, record->length, deadline) &&
           nprdma_record_expect(fd, NPRDMA_RECORD_ACK, deadline);
    close(fd);
    return done;
}

static int nprdma_record_send_unix(const nprdma_record_t *record,
                                   int64_t deadline)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length              = strlen(record->run.name);

    if ((length == 0) || (length >= sizeof(address.sun_path))) {
        return 0;
    }
    /* An abstract name: a zero byte, then the name */
    memcpy(address.sun_path + 1, record->run.name, length);
    return nprdma_record_send_to(record, (struct sockaddr*)&address,
                                 offsetof(struct sockaddr_un, sun_path) + 1 +
                                 length, deadline);
}

static int nprdma_record_send_tcp(const nprdma_record_t *record,
                                  const char *text, int64_t deadline)
{
    struct sockaddr_in6 ip6 = { .sin6_family = AF_INET6,
                                .sin6_port   = htons(record->run.port) };
    struct sockaddr_in ip   = { .sin_family = AF_INET,
                                .sin_port   = htons(record->run.port) };

    if (inet_pton(AF_INET, text, &ip.sin_addr) == 1) {
        return nprdma_record_send_to(record, (struct sockaddr*)&ip, sizeof(ip),
                                     deadline);
    }
    return (inet_pton(AF_INET6, text, &ip6.sin6_addr) == 1) &&
           nprdma_record_send_to(record, (struct sockaddr*)&ip6, sizeof(ip6),
                                 deadline);
}

void nprdma_record_send(nprdma_record_t *record)
{
    int64_t deadline = nprdma_record_now() + NPRDMA_RECORD_TIMEOUT;
    int error        = errno;
    char *next       = record->run.addresses;
    int done;
    char *address;

    memcpy(record->text + record->length, NPRDMA_RECORD_END "\n",
           sizeof(NPRDMA_RECORD_END));
    record->length += sizeof(NPRDMA_RECORD_END);
    done            = nprdma_record_send_unix(record, deadline);
    while (!done && ((address = strsep(&next, ",")) != NULL)) {
        done = nprdma_record_send_tcp(record, address, deadline);
    }
    errno = error;
}
