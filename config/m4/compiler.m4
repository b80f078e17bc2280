# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

# NPRDMA_TRY_CFLAG(FLAG): appends FLAG to NPRDMA_CFLAGS if the compiler knows it
AC_DEFUN([NPRDMA_TRY_CFLAG], [
    AS_VAR_PUSHDEF([cache], [nprdma_cv_cflag_$1])
    AC_CACHE_CHECK([whether $CC takes $1], [cache], [
        nprdma_save_cflags=$CFLAGS
        CFLAGS="$CFLAGS -Werror $1"
        AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])],
            [AS_VAR_SET([cache], [yes])], [AS_VAR_SET([cache], [no])])
        CFLAGS=$nprdma_save_cflags])
    AS_VAR_IF([cache], [yes], [NPRDMA_CFLAGS="$NPRDMA_CFLAGS $1"])
    AS_VAR_POPDEF([cache])])

# NPRDMA_COMPILER: the dialect and the warnings all our C is compiled with, in
# NPRDMA_CFLAGS. gnu11, because in C23, which new compilers default to, UCX's
# ucs_empty_function() means (void).
AC_DEFUN([NPRDMA_COMPILER], [
    AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror],
        [warnings are errors @<:@default=no@:>@])], [], [enable_werror=no])
    NPRDMA_CFLAGS="-std=gnu11 -fvisibility=hidden -Wall -Wextra"
    # UCX's macros leave parameters unused and initialise by name
    NPRDMA_TRY_CFLAG([-Wno-unused-parameter])
    NPRDMA_TRY_CFLAG([-Wno-missing-field-initializers])
    NPRDMA_TRY_CFLAG([-Wmissing-prototypes])
    # Loops over page states and lines are the cost of large transfers. GCC
    # vectorises none at -O2 whose length it does not know.
    NPRDMA_TRY_CFLAG([-ftree-vectorize])
    NPRDMA_TRY_CFLAG([-fvect-cost-model=dynamic])
    AS_IF([test "x$enable_werror" = xyes],
        [NPRDMA_CFLAGS="$NPRDMA_CFLAGS -Werror"])
    AC_SUBST([NPRDMA_CFLAGS])])

# NPRDMA_DEBUG: --enable-debug. Without it the rules have no asserts.
AC_DEFUN([NPRDMA_DEBUG], [
    AC_ARG_ENABLE([debug], [AS_HELP_STRING([--enable-debug],
        [asserts of the rules @<:@default=no@:>@])], [], [enable_debug=no])
    AS_IF([test "x$enable_debug" != xno],
        [AC_DEFINE([NPRDMA_ENABLE_DEBUG], [1],
            [Asserts of the rules])])])

# NPRDMA_SANITIZERS: --enable-asan, --enable-ubsan, --enable-tsan. Programs that
# load the component must be built with the same ones (or preload their
# run-time library), which our own tests are.
AC_DEFUN([NPRDMA_SANITIZERS], [
    sanitizers=
    AC_ARG_ENABLE([asan], [AS_HELP_STRING([--enable-asan],
        [build with AddressSanitizer @<:@default=no@:>@])])
    AC_ARG_ENABLE([ubsan], [AS_HELP_STRING([--enable-ubsan],
        [build with UndefinedBehaviorSanitizer @<:@default=no@:>@])])
    AC_ARG_ENABLE([tsan], [AS_HELP_STRING([--enable-tsan],
        [build with ThreadSanitizer @<:@default=no@:>@])])
    AS_IF([test "x$enable_asan" = xyes && test "x$enable_tsan" = xyes],
        [AC_MSG_ERROR([--enable-asan and --enable-tsan exclude each other])])
    AS_IF([test "x$enable_asan" = xyes], [sanitizers="$sanitizers,address"])
    AS_IF([test "x$enable_ubsan" = xyes],
        [sanitizers="$sanitizers,undefined"])
    AS_IF([test "x$enable_tsan" = xyes], [sanitizers="$sanitizers,thread"])
    sanitizers=${sanitizers#,}
    NPRDMA_LDFLAGS=
    AS_IF([test -n "$sanitizers"], [
        NPRDMA_LDFLAGS="-fsanitize=$sanitizers"
        NPRDMA_CFLAGS="$NPRDMA_CFLAGS $NPRDMA_LDFLAGS -fno-omit-frame-pointer"
        AS_IF([test "x$enable_ubsan" = xyes], [
            NPRDMA_CFLAGS="$NPRDMA_CFLAGS -fno-sanitize-recover=undefined"])
        # GCC's does not see fences, and warns of each
        AS_IF([test "x$enable_tsan" = xyes],
            [NPRDMA_CFLAGS="$NPRDMA_CFLAGS -Wno-tsan"])])
    AC_SUBST([NPRDMA_LDFLAGS])])
