/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * fake_program [PLUGIN]: calls what programs call first in UCT, after libucs
 * has loaded PLUGIN as UCX 1.22 loads plugins.
 */

int fake_load(const char *plugin);
signed char uct_query_components(void ***components_p, unsigned *number_p);

int main(int argc, char **argv)
{
    void **components;
    unsigned number;

    if ((argc > 1) && (fake_load(argv[1]) != 0)) {
        return 1;
    }
    return uct_query_components(&components, &number) != 0;
}
