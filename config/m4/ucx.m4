# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

# NPRDMA_UCX: finds the installed UCX and its internal headers, and checks that
# the two agree.
# --with-ucx-src=DIR: a source tree of exactly the installed version; without
# it the tree that contrib/ucx-headers has made from the source package.
# Sets UCX_CPPFLAGS, UCX_LIBS, UCP_CPPFLAGS, UCP_LIBS, UCX_VERSION, UCX_BUILD
# (which libnprdma_preload.so looks for) and the macros NPRDMA_UCX_*.
AC_DEFUN([NPRDMA_UCX], [
    AC_ARG_WITH([ucx-src], [AS_HELP_STRING([--with-ucx-src=DIR],
        [UCX source tree of the installed version, for internal headers
         @<:@default: the source package, fetched by contrib/ucx-headers@:>@])],
        [], [with_ucx_src=])

    PKG_CHECK_EXISTS([ucx], [], [AC_MSG_ERROR([
    pkg-config does not find UCX: install libucx-dev and ucx-utils, or set
    PKG_CONFIG_PATH to its lib/pkgconfig])])
    ucx_version=`$PKG_CONFIG --modversion ucx`
    ucx_libdir=`$PKG_CONFIG --variable=libdir ucx`
    AC_MSG_CHECKING([for internal headers of UCX $ucx_version])
    AS_IF([test -n "$with_ucx_src"], [
        ucx_inc=`pwd`/ucx-include
        ucx_inc=`PKG_CONFIG="$PKG_CONFIG" $srcdir/contrib/ucx-headers \
            --source "$with_ucx_src" --output "$ucx_inc"` ||
            AC_MSG_ERROR([cannot use the UCX source tree $with_ucx_src])
    ], [
        ucx_inc=${NPRDMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nprdma}
        ucx_inc=$ucx_inc/ucx-$ucx_version/include
        AS_IF([test ! -f "$ucx_inc/ucx_config.h"], [AC_MSG_ERROR([
    not found in $ucx_inc.
    Run $srcdir/contrib/ucx-headers, which fetches them from the
    distribution's source package, or say --with-ucx-src=DIR for a source
    tree of UCX $ucx_version.])])])
    AC_MSG_RESULT([$ucx_inc])

    # As headers of the system: warnings are for our own code
    UCX_CPPFLAGS="-isystem $ucx_inc"
    UCX_LIBS="-L$ucx_libdir -luct -lucs -lucm"
    # What applications have of it, which remote memory is
    UCP_CPPFLAGS=`$PKG_CONFIG --cflags-only-I ucx`
    UCP_LIBS="-L$ucx_libdir -lucp -lucs"
    AM_CONDITIONAL([WITH_UCX_SRC], [test -n "$with_ucx_src"])
    AC_SUBST([UCX_SRC], ["$with_ucx_src"])
    AC_SUBST([UCX_CPPFLAGS])
    AC_SUBST([UCX_LIBS])
    AC_SUBST([UCP_CPPFLAGS])
    AC_SUBST([UCP_LIBS])
    AC_SUBST([UCX_LIBDIR], [$ucx_libdir])
    AC_SUBST([UCX_VERSION], [$ucx_version])
    AC_DEFINE_UNQUOTED([NPRDMA_UCX_VERSION], ["$ucx_version"],
        [The UCX version this is built for])
    NPRDMA_UCX_ABI
    ucx_build=`AS_ECHO(["$ucx_version"]) |
        $SED 's/^\(@<:@0-9@:>@*\.@<:@0-9@:>@*\.@<:@0-9@:>@*\).*/\1/'`
    AC_SUBST([UCX_BUILD], [$ucx_build])
    NPRDMA_UCX_PLUGIN])

# NPRDMA_ABI_SIZE(WHAT, MACRO, TYPE, HEADER, SYMBOLS): defines MACRO to the size
# of the first of SYMBOLS, a variable of type TYPE, in the installed libuct, and
# fails unless the headers give TYPE the same size.
AC_DEFUN([NPRDMA_ABI_SIZE], [
    AC_MSG_CHECKING([size of $1 in the installed libuct and in the headers])
    abi_size=
    for abi_sym in $5; do
        abi_size=`$AWK -v s=$abi_sym 'NF == 4 && $[]4 == s { print $[]2; exit }' \
            conftest.uct`
        AS_IF([test -n "$abi_size"], [break])
    done
    AS_IF([test -z "$abi_size"], [
        AC_MSG_RESULT([unknown])
        AC_MSG_ERROR([none of "$5" in $ucx_libdir/libuct.a or libuct.so])])
    abi_size=`printf %d 0x$abi_size`
    AC_COMPILE_IFELSE([AC_LANG_SOURCE([[
        #include "ucx_config.h"
        #include <$4>
        char same_size[sizeof($3) == $abi_size ? 1 : -1];]])],
        [AC_MSG_RESULT([$abi_size])],
        [AC_MSG_RESULT([$abi_size, but not in the headers])
         AC_MSG_ERROR([
    $3 has another size in the UCX headers in $ucx_inc
    than in the installed libuct: the headers are not of the installed UCX
    $ucx_version. Use the source of exactly that build (--with-ucx-src=DIR).])])
    AC_DEFINE_UNQUOTED([$2], [$abi_size],
        [sizeof($3) in the UCX this is built for])])

# NPRDMA_UCX_ABI: checks the ABI of UCX when nprdma is built
AC_DEFUN([NPRDMA_UCX_ABI], [
    nprdma_save_cppflags=$CPPFLAGS
    CPPFLAGS="-DHAVE_CONFIG_H $UCX_CPPFLAGS $VERBS_CPPFLAGS $CPPFLAGS"
    AC_CHECK_HEADER([uct/base/uct_iface.h], [], [AC_MSG_ERROR([
    the UCX headers in $ucx_inc do not compile; see config.log])],
        [#include "ucx_config.h"])
    # Static objects still have names in libuct.a, and in a shared library that
    # is not stripped; what is exported is in the shared library anyway
    for abi_nm in "-S $ucx_libdir/libuct.a" "-S $ucx_libdir/libuct.so" \
                  "-SD $ucx_libdir/libuct.so"; do
        $NM --defined-only $abi_nm 2>>config.log || :
    done >conftest.uct
    AS_IF([grep -w uct_self_iface_ops conftest.uct >/dev/null], [
        NPRDMA_ABI_SIZE([the component table], [NPRDMA_UCX_COMPONENT_SIZE],
            [uct_component_t], [uct/base/uct_component.h],
            [uct_self_component])
        NPRDMA_ABI_SIZE([the interface operations], [NPRDMA_UCX_OPS_SIZE],
            [uct_iface_ops_t], [uct/base/uct_iface.h], [uct_self_iface_ops])
        NPRDMA_ABI_SIZE([the internal operations],
            [NPRDMA_UCX_INTERNAL_OPS_SIZE], [uct_iface_internal_ops_t],
            [uct/base/uct_iface.h],
            [uct_self_iface_internal_ops uct_base_iface_internal_ops])
        NPRDMA_ABI_SIZE([the transport table], [NPRDMA_UCX_TL_SIZE],
            [uct_tl_t], [uct/base/uct_iface.h], [uct_self_tl])
    ], [AC_MSG_ERROR([
    no $ucx_libdir/libuct.a to check the headers against (it is in libucx-dev),
    and libuct.so is stripped])])
    NPRDMA_ABI_STATS
    CPPFLAGS=$nprdma_save_cppflags])

# NPRDMA_ABI_STATS: with statistics interfaces and endpoints have another size,
# which no table shows
AC_DEFUN([NPRDMA_ABI_STATS], [
    AC_MSG_CHECKING([for a libucs without statistics])
    AS_IF([$NM -D --defined-only "$ucx_libdir/libucs.so" 2>>config.log |
           grep -w ucs_stats_node_alloc >/dev/null], [
        AC_MSG_RESULT([no])
        AC_MSG_ERROR([
    the UCX in $ucx_libdir was built with --enable-stats, which nprdma does not
    support])])
    AC_MSG_RESULT([yes])])

# NPRDMA_UCX_PLUGIN: UCX 1.22 and later load components by themselves from
# UCX_PLUGIN_PATH; older ones need our preload stub
AC_DEFUN([NPRDMA_UCX_PLUGIN], [
    AC_MSG_CHECKING([whether UCX loads components by itself])
    AS_IF([grep -q PLUGIN_PATH "$ucx_libdir/libucs.so"],
        [ucx_plugin=yes
         ucx_plugin_text="loaded by UCX itself (UCX_PLUGIN_PATH)"],
        [ucx_plugin=no
         ucx_plugin_text="loaded by the preload stub"])
    AC_MSG_RESULT([$ucx_plugin])
    AC_SUBST([UCX_PLUGIN], [$ucx_plugin])])
