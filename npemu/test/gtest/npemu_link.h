/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Tests of NPEMU_LINK: the variable, for the devices opened within a scope. */

#ifndef NPT_LINK_H
#define NPT_LINK_H

#include <cstdlib>

namespace npt {

class Link {
public:
    explicit Link(const char *value) { setenv("NPEMU_LINK", value, 1); }
    ~Link() { unsetenv("NPEMU_LINK"); }
    Link(const Link &) = delete;
};

/* At this rate a MiB takes a second, and what a test leaves on the wire would
 * take longer than the test may. */
constexpr const char *SLOW_FAIR = "1MB/s";
constexpr const char *SLOW_FIFO = "1MB/s,arb=fifo";
constexpr const char *SLOW_PRIO = "1MB/s,arb=prio";
constexpr size_t MIB            = 1 << 20;

} // namespace npt

#endif
