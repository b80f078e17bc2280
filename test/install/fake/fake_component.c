/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A component that says from which file it was loaded. */

#include <dlfcn.h>
#include <stdio.h>

static int fake_component_variable;

__attribute__((constructor)) static void fake_component_load(void)
{
    Dl_info info;

    if (dladdr(&fake_component_variable, &info)) {
        printf("loaded %s\n", info.dli_fname);
    }
}
