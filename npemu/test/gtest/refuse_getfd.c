/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* refuse_getfd COMMAND...: runs COMMAND where pidfd_getfd() does not exist, as
 * in Linux before 5.6. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    };
    struct sock_fprog program = {sizeof(code) / sizeof(*code), code};

    if (argc < 2) {
        fprintf(stderr, "usage: refuse_getfd COMMAND...\n");
        return 2;
    }

    if ((prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) ||
        (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)) {
        perror("refuse_getfd: seccomp");
        return 2;
    }
    if ((syscall(SYS_pidfd_getfd, -1, -1, 0) != -1) || (errno != ENOSYS)) {
        fprintf(stderr, "refuse_getfd: the filter has no effect\n");
        return 2;
    }

    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 2;
}
