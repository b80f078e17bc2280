/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_TEST_MEMD_H_
#define RMEM_TEST_MEMD_H_

/* A server of its own for a test: nprdma-memd at a port that is free */

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>


class memd {
public:
    explicit memd(const char *size = "1G", const char *pool = nullptr)
    {
        char directory[] = "/tmp/rmem.XXXXXX";
        char line[256]   = "";
        int  fds[2];

        EXPECT_NE(nullptr, mkdtemp(directory));
        m_directory = directory;
        m_token     = m_directory + "/token";
        EXPECT_EQ(0, system(("umask 077; head -c 32 /dev/urandom >" +
                             m_token).c_str()));
        EXPECT_EQ(0, pipe(fds));
        m_pid = fork();
        if (m_pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            dup2(fds[1], 1);
            execl(RMEM_TEST_MEMD, RMEM_TEST_MEMD, "--size", size, "--listen",
                  "127.0.0.1:0", "--token", m_token.c_str(),
                  pool ? "--pool" : nullptr, pool, nullptr);
            _exit(127);
        }
        close(fds[1]);

        FILE *out = fdopen(fds[0], "r");
        char *at  = fgets(line, sizeof(line), out) ? strstr(line, "port ") :
                    nullptr;
        EXPECT_NE(nullptr, at) << "nprdma-memd says '" << line << "'";
        m_where = "127.0.0.1:" + std::to_string(at ? atoi(at + 5) : 1);
        fclose(out);
    }

    ~memd()
    {
        kill(SIGKILL);
        EXPECT_EQ(0, system(("rm -r " + m_directory).c_str()));
    }

    /* SIGKILL: returns when it is gone; SIGSTOP: when it is stopped */
    void kill(int sig)
    {
        if (m_pid > 0) {
            ::kill(m_pid, sig);
            if ((sig == SIGKILL) || (sig == SIGSTOP)) {
                waitpid(m_pid, nullptr, WUNTRACED);
            }
            m_pid = (sig == SIGKILL) ? -1 : m_pid;
        }
    }

    const char *where() const
    {
        return m_where.c_str();
    }

    const char *token() const
    {
        return m_token.c_str();
    }

private:
    std::string m_directory, m_token, m_where;
    pid_t       m_pid = -1;
};

#endif
