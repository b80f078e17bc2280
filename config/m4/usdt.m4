# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

# NPRDMA_USDT: --enable-usdt / --disable-usdt. Probes for tracers need a header
# only, no library.
AC_DEFUN([NPRDMA_USDT], [
    AC_ARG_ENABLE([usdt], [AS_HELP_STRING([--enable-usdt],
        [static probes for bpftrace, perf and SystemTap; needs sys/sdt.h
         @<:@default=if it is there@:>@])], [], [enable_usdt=auto])
    AS_IF([test "x$enable_usdt" != xno], [
        AC_CHECK_HEADER([sys/sdt.h], [nprdma_usdt=yes], [nprdma_usdt=no])
        AS_IF([test "$enable_usdt$nprdma_usdt" = yesno], [AC_MSG_ERROR([
    sys/sdt.h not found: install systemtap-sdt-dev (Debian) or
    systemtap-sdt-devel (Fedora)])])],
        [nprdma_usdt=no])
    AS_IF([test $nprdma_usdt = yes],
        [AC_DEFINE([NPRDMA_WITH_USDT], [1],
            [1 if there are static probes for tracers])])])
