/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * As much of libucs as libnprdma_preload.so knows about, and what loads plugins
 * in UCX 1.22.
 */

#include <dlfcn.h>
#include <stdio.h>

const char *ucs_status_string(signed char status);
int fake_load(const char *plugin);

const char *ucs_status_string(signed char status)
{
    return (status == 0) ? "Success" : "Error";
}

/* Returns 0 on success */
int fake_load(const char *plugin)
{
    void *lib = dlopen(plugin, RTLD_LAZY | RTLD_LOCAL);
    signed char (*init)(void);

    init = (lib == NULL) ? NULL :
           (signed char (*)(void))dlsym(lib, "ucs_module_global_init");
    if (init == NULL) {
        fprintf(stderr, "fake_ucs: %s\n", dlerror());
        return 1;
    }
    if (init() != 0) {
        fprintf(stderr, "fake_ucs: the plugin does not want to stay\n");
        return 1;
    }
    return 0;
}
