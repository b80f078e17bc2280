/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "config.h"

#include "uct/ib/nprdma/service/nprdma_service.h"
#include "uct/ib/nprdma/service/nprdma_service_types.h"

/* One more connection while a put is executed that counts some of them */
ucs_status_t settle(unsigned num_accepted, unsigned counted)
{
    uct_nprdma_service_t service = { .num_accepted = num_accepted,
                                     .changing     = (2 * counted) + 1 };

    return uct_nprdma_service_settle(&service, &num_accepted);
}
