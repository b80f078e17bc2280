/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A program that uses UCT without UCP: prints the names of the components. */

#include <uct/api/uct.h>

#include <stdio.h>

int main(void)
{
    uct_component_h *components;
    unsigned count, i;

    if (uct_query_components(&components, &count) != UCS_OK) {
        return 1;
    }

    for (i = 0; i < count; ++i) {
        uct_component_attr_t attr = {
            .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME
        };

        if (uct_component_query(components[i], &attr) == UCS_OK) {
            printf("%s\n", attr.name);
        }
    }
    uct_release_component_list(components);
    return 0;
}
