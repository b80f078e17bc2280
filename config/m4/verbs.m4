# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

# NPRDMA_VERBS: --with-verbs[=DIR] / --without-verbs. The headers of libibverbs
# are needed in any case, the emulated RNIC speaks them; the library itself is
# opened at run time, so that the component also loads where it is missing.
# Defines NPRDMA_WITH_VERBS to 1 if real devices are to be used at all.
AC_DEFUN([NPRDMA_VERBS], [
    AC_ARG_WITH([verbs], [AS_HELP_STRING([--with-verbs@<:@=DIR@:>@],
        [use real RDMA devices through libibverbs, opened at run time; its
         headers are in DIR/include. --without-verbs: emulated RNIC only
         @<:@default=yes@:>@])], [], [with_verbs=yes])
    VERBS_CPPFLAGS=
    AS_CASE([$with_verbs],
        [yes|no], [],
        [VERBS_CPPFLAGS="-I$with_verbs/include"])
    nprdma_save_cppflags=$CPPFLAGS
    CPPFLAGS="$CPPFLAGS $VERBS_CPPFLAGS"
    AC_CHECK_DECL([ibv_reg_mr_iova2], [], [AC_MSG_ERROR([
    infiniband/verbs.h of rdma-core 28 or later not found: install
    libibverbs-dev, or say --with-verbs=DIR for the headers in DIR/include])],
        [[#include <infiniband/verbs.h>]])
    CPPFLAGS=$nprdma_save_cppflags
    AS_IF([test "x$with_verbs" = xno],
        [with_verbs_text="no (emulated RNIC only)"
         AC_DEFINE([NPRDMA_WITH_VERBS], [0],
            [1 if real devices are used through libibverbs.so.1])],
        [with_verbs_text="yes (libibverbs.so.1, opened at run time)"
         AC_DEFINE([NPRDMA_WITH_VERBS], [1])])
    AC_SUBST([VERBS_CPPFLAGS])])
