/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A call that attaches a device does not touch a function that is not for RDMA,
 * and its waits for one that is are few, and end with a signal. nprdma_hold.ko
 * holds the lock of a function, which may take any time.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "edu_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOLD     "/sys/module/nprdma_hold/parameters/lock"
#define MAX_USER 4

/* A process that attaches a device. Its exit status is the errno value. */
typedef struct {
    pid_t pid;
    int   status; /* -1: it has not ended */
} caller_t;


static void hold(const char *name)
{
    CHECK_EQ(kmod_write_file(HOLD, name), 0);
}

static void on_signal(int number)
{
    (void)number;
}

static int attach_as(uid_t user, const char *name)
{
    struct nprdma_ioc_attach_device arg = {.size = sizeof(arg)};
    struct sigaction action             = {.sa_handler = on_signal};
    int ret;

    CHECK(setresuid(user, user, user) == 0, "%m");
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0, "%m");
    snprintf(arg.name, sizeof(arg.name), "%s", name);
    ret = kmod_call(kmod_open(), NPRDMA_IOC_ATTACH_DEVICE, &arg);
    CHECK((ret == 0) == (strstr(arg.why, "Intel VT-d") != NULL), "%s",
          arg.why);
    /* Nothing is told about the IOMMU of any other function */
    CHECK((ret != EOPNOTSUPP) || (arg.device == 0), "%#x", arg.device);
    return ret;
}

static void call(caller_t *caller, uid_t user, const char *name)
{
    caller->status = -1;
    caller->pid    = fork();
    CHECK(caller->pid >= 0, "%m");
    if (caller->pid == 0) {
        _exit(attach_as(user, name));
    }
}

/* Whether the process sleeps in a function of this name */
static int waits_in(const caller_t *caller, const char *function)
{
    char path[64], name[64];
    ssize_t size;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/wchan", (int)caller->pid);
    fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s: %m", path);
    size = read(fd, name, sizeof(name) - 1);
    close(fd);
    name[(size > 0) ? size : 0] = '\0';
    return strncmp(name, function, strlen(function)) == 0;
}

static int has_ended(void *arg)
{
    caller_t *caller = arg;
    int status;

    if (waitpid(caller->pid, &status, WNOHANG) != caller->pid) {
        return 0;
    }
    caller->status = WIFEXITED(status) ? WEXITSTATUS(status) :
                                         1000 + WTERMSIG(status);
    return 1;
}

static int has_ended_or_waits(void *arg)
{
    return has_ended(arg) || waits_in(arg, "nprdma_device_check");
}

static int waits_for_device(void *arg)
{
    return waits_in(arg, "nprdma_device_check");
}

static int waits_at_all(void *arg)
{
    return waits_in(arg, "nprdma_");
}

/* A function with a driver that has no RDMA device: one of virtio's */
static void foreign_name(char *name, size_t size)
{
    DIR *dir = opendir("/sys/bus/pci/drivers/virtio-pci");
    struct dirent *entry;

    CHECK(dir != NULL, "%m");
    do {
        entry = readdir(dir);
        CHECK(entry != NULL, "no virtio function");
    } while (strncmp(entry->d_name, "0000:", 5) != 0);
    snprintf(name, size, "%s", entry->d_name);
    closedir(dir);
}

static void end(caller_t *caller, int status)
{
    CHECK(kmod_await(has_ended, caller), "it does not end");
    CHECK_EQ(caller->status, status);
}

/* It is refused while its lock is held, and as well when it is not */
static void test_foreign(void)
{
    caller_t caller;
    char name[300];

    foreign_name(name, sizeof(name));
    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    hold(name);
    call(&caller, 1000, name);
    CHECK(kmod_await(has_ended_or_waits, &caller));
    hold("none");
    CHECK(caller.status >= 0, "it waits for the lock of %s", name);
    CHECK_EQ(caller.status, EOPNOTSUPP);

    call(&caller, 1000, name);
    end(&caller, EOPNOTSUPP);
}

/* Of each user one process waits for the device. All end with a signal while
 * its lock is held, and succeed when it is not. */
static void test_waits(void)
{
    caller_t callers[MAX_USER], other;
    int edu = edu_open(), count = 0;
    char name[32];
    int i;

    edu_name(edu, name, sizeof(name));
    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    hold(name);
    for (i = 0; i < MAX_USER; ++i) {
        call(&callers[i], 1000, name);
    }
    for (i = 0; i < MAX_USER; ++i) {
        CHECK(kmod_await(waits_at_all, &callers[i]));
    }
    for (i = 0; i < MAX_USER; ++i) {
        count += waits_for_device(&callers[i]);
    }
    CHECK_EQ(count, 1);
    call(&other, 1001, name);
    CHECK(kmod_await(waits_for_device, &other), "the other user is kept out");

    for (i = 0; i < MAX_USER; ++i) {
        CHECK(kill(callers[i].pid, (i % 2) ? SIGKILL : SIGUSR1) == 0, "%m");
        end(&callers[i], (i % 2) ? 1000 + SIGKILL : EINTR);
    }
    hold("none");
    end(&other, 0);
    call(&callers[0], 1000, name);
    end(&callers[0], 0);
}

int main(int argc, char **argv)
{
    static const kmod_case_t cases[] = {
        {"foreign", test_foreign},
        {"waits",   test_waits},
        {NULL,      NULL}
    };
    int ret = kmod_main(cases, argc, argv);

    /* Whatever has failed; else the guest could not end */
    hold("none");
    return ret;
}
