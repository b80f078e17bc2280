/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A call that attaches a device does not touch a function that is not for RDMA,
 * and its waits for one that is are few, and end with a signal. A process holds
 * the lock of a function by nprdma_hold.ko, which may take any time.
 */

#include "edu.h"

#include <glob.h>
#include <sys/prctl.h>

#define HOLD     "/sys/module/nprdma_hold/parameters/lock"
#define MAX_USER 4

/* A process that attaches a device. Its exit status is the errno value. */
typedef struct {
    uid_t user;
    char  name[32];
    pid_t pid;
    int   status; /* -1: it has not ended */
} caller_t;

static void on_signal(int number)
{
    (void)number;
}

static void attach_as_user(void *arg)
{
    const caller_t *caller  = arg;
    struct sigaction action = {.sa_handler = on_signal};
    struct nprdma_ioc_check_device device;
    int ret;

    CHECK_OK(setresuid(caller->user, caller->user, caller->user));
    CHECK_OK(sigaction(SIGUSR1, &action, NULL));
    ret = check_named(kmod_open(), caller->name, &device);
    CHECK((ret == 0) == (strstr(device.why, "Intel VT-d") != NULL), "%s",
          device.why);
    /* Nothing is told about the IOMMU of any other function */
    CHECK((ret != EOPNOTSUPP) || (device.device == 0), "%#x", device.device);
    _exit(ret);
}

static void call(caller_t *caller, uid_t user, const char *name)
{
    caller->user   = user;
    caller->status = -1;
    snprintf(caller->name, sizeof(caller->name), "%s", name);
    caller->pid = kmod_fork(attach_as_user, caller);
}

/* Whether the process sleeps in a function of this name */
static int waits_in(const caller_t *caller, const char *function)
{
    char path[64], name[64] = "";
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/wchan", (int)caller->pid);
    file = fopen(path, "r");
    CHECK(file != NULL, "%s: %m", path);
    fgets(name, sizeof(name), file);
    fclose(file);
    return strncmp(name, function, strlen(function)) == 0;
}

static void be_holder(void *name)
{
    /* Whatever fails, else the guest could not end */
    CHECK_OK(prctl(PR_SET_PDEATHSIG, SIGKILL));
    kmod_write_file(HOLD, name);
}

static int holds(void *arg)
{
    return waits_in(arg, "nprdma_hold_set");
}

static caller_t hold(char *name)
{
    caller_t holder = {.pid = kmod_fork(be_holder, name)};

    CHECK(kmod_await(holds, &holder), "the lock of %s", name);
    return holder;
}

static void release(const caller_t *holder)
{
    CHECK_OK(kill(holder->pid, SIGKILL));
    CHECK_EQ(kmod_wait(holder->pid), 1000 + SIGKILL);
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

static int waits_for_device(void *arg)
{
    return waits_in(arg, "nprdma_device_check");
}

static int has_ended_or_waits(void *arg)
{
    return has_ended(arg) || waits_for_device(arg);
}

static int waits_at_all(void *arg)
{
    return waits_in(arg, "nprdma_");
}

static void end(caller_t *caller, int status)
{
    CHECK(kmod_await(has_ended, caller), "it does not end");
    CHECK_EQ(caller->status, status);
}

/* A function with a driver that has no RDMA device, one of virtio's, is refused
 * while its lock is held, and as well when it is not */
KMOD_CASE(attach, foreign)
{
    caller_t caller, holder;
    glob_t paths;
    char *name;

    CHECK_OK(glob("/sys/bus/pci/drivers/virtio-pci/0000:*", 0, NULL, &paths));
    name = strrchr(paths.gl_pathv[0], '/') + 1;
    CHECK_OK(chmod(NPRDMA_DEVICE_PATH, 0666));
    holder = hold(name);
    call(&caller, 1000, name);
    CHECK(kmod_await(has_ended_or_waits, &caller));
    release(&holder);
    CHECK(caller.status >= 0, "it waits for the lock of %s", name);
    CHECK_EQ(caller.status, EOPNOTSUPP);
    call(&caller, 1000, name);
    end(&caller, EOPNOTSUPP);
}

/* Of each user one process waits for the device. All end with a signal while
 * its lock is held, and succeed when it is not. */
KMOD_CASE(attach, waits)
{
    caller_t callers[MAX_USER], other, holder;
    int edu = edu_open(), count = 0;
    char name[32];
    int i;

    edu_name(edu, name, sizeof(name));
    CHECK_OK(chmod(NPRDMA_DEVICE_PATH, 0666));
    holder = hold(name);
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
        CHECK_OK(kill(callers[i].pid, (i % 2) ? SIGKILL : SIGUSR1));
        end(&callers[i], (i % 2) ? 1000 + SIGKILL : EINTR);
    }
    release(&holder);
    end(&other, 0);
    call(&callers[0], 1000, name);
    end(&callers[0], 0);
}
