/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* For LD_PRELOAD: a kernel whose pages have 64 KiB, as far as sysconf() says */

#include <dlfcn.h>
#include <unistd.h>

long sysconf(int name)
{
    long (*next)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");

    return (name == _SC_PAGESIZE) ? 65536 : next(name);
}
