/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_REFUSE_H_
#define NPRDMA_TEST_REFUSE_H_

#include <cstddef>
#include <vector>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* From here on these system calls fail with this errno value, in this thread,
 * in threads that it starts, and in programs that they execute.
 * @return Whether it could be done */
inline bool refuse(const std::vector<long> &calls, int error)
{
    std::vector<struct sock_filter> program;

    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                               offsetof(struct seccomp_data, nr)));
    for (auto call : calls) {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call,
                                   0, 1));
        program.push_back(BPF_STMT(BPF_RET | BPF_K,
                                   SECCOMP_RET_ERRNO | (unsigned)error));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));

    struct sock_fprog prog = {(unsigned short)program.size(), program.data()};
    return (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) &&
           (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
}

#endif
