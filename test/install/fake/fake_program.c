/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * fake_program [PLUGIN]: calls what programs call first in UCT, after it has
 * loaded PLUGIN as UCX 1.22 loads plugins.
 */

#include <dlfcn.h>
#include <stdio.h>

signed char uct_query_components(void ***components_p, unsigned *number_p);

int main(int argc, char **argv)
{
    signed char (*init)(void);
    void **components;
    unsigned number;
    void *plugin;

    if (argc > 1) {
        plugin = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
        init   = (plugin == NULL) ? NULL :
                 (signed char (*)(void))dlsym(plugin, "ucs_module_global_init");
        if (init == NULL) {
            fprintf(stderr, "fake_program: %s\n", dlerror());
            return 1;
        }
        if (init() != 0) {
            fprintf(stderr, "fake_program: the plugin does not want to stay\n");
            return 1;
        }
    }
    return uct_query_components(&components, &number) != 0;
}
