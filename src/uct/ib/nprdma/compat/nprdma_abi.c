/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_abi.h"

#include <uct/base/uct_iface.h>
#include <ucs/debug/log.h>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>

#ifdef ENABLE_STATS
#  error nprdma does not support a UCX with statistics (--enable-stats)
#endif

typedef void (*uct_nprdma_ucp_version_func_t)(unsigned *major, unsigned *minor,
                                              unsigned *release);

/* What uct_nprdma_abi_reason() returns */
static char uct_nprdma_abi_text[400];

/* @return 0 */
__attribute__((format(printf, 1, 2)))
static int uct_nprdma_abi_refuse(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(uct_nprdma_abi_text, sizeof(uct_nprdma_abi_text), format, args);
    va_end(args);
    ucs_error("%s", uct_nprdma_abi_text);
    return 0;
}

const char *uct_nprdma_abi_reason(void)
{
    return uct_nprdma_abi_text;
}

/* There may be two UCX in a process.
 *
 * @return Whether the library of an address was linked with another one than
 *         that whose symbols we see. */
static int uct_nprdma_abi_is_other(const void *address)
{
    static const char name[] = "ucs_status_string";
    void *symbol             = NULL;
    Dl_info info;
    void *lib;

    if (dladdr(address, &info) != 0) {
        lib    = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        symbol = (lib == NULL) ? NULL : dlsym(lib, name);
    }
    return (symbol != NULL) && (symbol != dlsym(RTLD_DEFAULT, name));
}

/* All that we call must be of the UCX in which we are registered */
static int uct_nprdma_abi_check_binding(void)
{
    Dl_info info;

    if (!uct_nprdma_abi_is_other(uct_nprdma_abi_text) ||
        (dladdr((const void*)ucs_status_string, &info) == 0)) {
        return 1;
    }

    return uct_nprdma_abi_refuse(
            "nprdma was built for UCX " NPRDMA_UCX_VERSION " and cannot be "
            "used here: %s of another UCX comes before it", info.dli_fname);
}

/* @return Size of a symbol in the loaded library, or 0 if it is unknown. */
static size_t uct_nprdma_abi_symbol_size(const char *name)
{
    void *address = dlsym(RTLD_DEFAULT, name);
    ElfW(Sym) *symbol;
    Dl_info info;

    if ((address == NULL) || uct_nprdma_abi_is_other(address) ||
        (dladdr1(address, &info, (void**)&symbol, RTLD_DL_SYMENT) == 0) ||
        (symbol == NULL) || (info.dli_saddr != address)) {
        return 0;
    }

    return symbol->st_size;
}

static int uct_nprdma_abi_check_size(const char *what, const char *symbol,
                                     size_t expected)
{
    size_t size = uct_nprdma_abi_symbol_size(symbol);

    if ((size == 0) || (size == expected)) {
        return 1; /* unknown or equal */
    }

    return uct_nprdma_abi_refuse(
            "nprdma was built for UCX " NPRDMA_UCX_VERSION " and cannot be "
            "used here: the %s has %zu bytes in the running libuct, %zu were "
            "expected; rebuild nprdma for the installed UCX",
            what, size, expected);
}

/* Only libucp has a version; a program that uses UCT alone does not load it, or
 * what is visible here is that of another UCX */
static int uct_nprdma_abi_check_version(void)
{
    uct_nprdma_ucp_version_func_t get_version;
    unsigned major, minor, release, built_major, built_minor;

    get_version = (uct_nprdma_ucp_version_func_t)dlsym(RTLD_DEFAULT,
                                                       "ucp_get_version");
    if ((get_version == NULL) ||
        uct_nprdma_abi_is_other((const void*)get_version) ||
        (sscanf(NPRDMA_UCX_VERSION, "%u.%u", &built_major, &built_minor) !=
         2)) {
        return 1;
    }

    get_version(&major, &minor, &release);
    if ((major == built_major) && (minor == built_minor)) {
        return 1;
    }

    return uct_nprdma_abi_refuse(
            "nprdma was built for UCX " NPRDMA_UCX_VERSION " and cannot be "
            "used with UCX %u.%u.%u; rebuild nprdma for the installed UCX",
            major, minor, release);
}

/* UCX's statistics add members to interfaces and endpoints, while the tables
 * keep their size. A libucs without statistics does not have this function. */
static int uct_nprdma_abi_check_stats(void)
{
    void *address = dlsym(RTLD_DEFAULT, "ucs_stats_node_alloc");

    if ((address == NULL) || uct_nprdma_abi_is_other(address)) {
        return 1;
    }

    return uct_nprdma_abi_refuse(
            "nprdma was built for UCX " NPRDMA_UCX_VERSION " without "
            "statistics and cannot be used here: the running libucs was "
            "built with --enable-stats, which nprdma does not support");
}

int uct_nprdma_abi_is_compatible(void)
{
    return uct_nprdma_abi_check_binding() &&
           uct_nprdma_abi_check_version() && uct_nprdma_abi_check_stats() &&
           uct_nprdma_abi_check_size("component table", "uct_tcp_component",
                                     sizeof(uct_component_t)) &&
           uct_nprdma_abi_check_size("transport table", "uct_self_tl",
                                     sizeof(uct_tl_t)) &&
           uct_nprdma_abi_check_size("internal operations table",
                                     "uct_base_iface_internal_ops",
                                     sizeof(uct_iface_internal_ops_t));
}
