/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Runs the cases that are linked into a program */

#include "kmod_test.h"

static kmod_case_t *kmod_cases;

void kmod_add_case(kmod_case_t *self)
{
    kmod_case_t **end = &kmod_cases;

    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = self;
}

static void kmod_run_case(void *arg)
{
    ((const kmod_case_t*)arg)->run();
}

/* Limits that cases change, and that others must find as they were */
static const char *const kmod_limits[] = {
    PARAMETER "max_user_regions", PARAMETER "max_user_bytes",
    PARAMETER "max_total_bytes", PARAMETER "max_user_iova_bytes",
    PARAMETER "max_total_iova_bytes"
};

#define KMOD_NUM_LIMITS (sizeof(kmod_limits) / sizeof(kmod_limits[0]))

static int kmod_run(kmod_case_t *test)
{
    long long limits[KMOD_NUM_LIMITS];
    int status;
    size_t i;

    for (i = 0; i < KMOD_NUM_LIMITS; ++i) {
        limits[i] = kmod_read_number(kmod_limits[i], "");
    }
    printf("RUN  %s.%s\n", test->group, test->name);
    status = kmod_wait(kmod_fork(kmod_run_case, test));
    for (i = 0; i < KMOD_NUM_LIMITS; ++i) {
        kmod_write_number(kmod_limits[i], limits[i]);
    }
    if (status >= 1000) {
        printf("killed by signal %d\n", status - 1000);
    }
    printf("%s %s.%s\n", (status == 0) ? "OK  " :
           (status == KMOD_SKIPPED) ? "SKIP" : "FAIL", test->group, test->name);
    fflush(stdout);
    return (status != 0) && (status != KMOD_SKIPPED);
}

static int kmod_is_selected(const kmod_case_t *test, const char *word)
{
    size_t length = strlen(test->group);

    return (strncmp(word, test->group, length) == 0) &&
           ((word[length] == '\0') ||
            ((word[length] == '.') && !strcmp(word + length + 1, test->name)));
}

/* PROGRAM GROUP[.CASE]... */
int main(int argc, char **argv)
{
    int failed = 0, count, i;
    kmod_case_t *test;

    /* These would disturb all tests where there are several memory nodes or
     * fragmented memory */
    kmod_write_file("/proc/sys/kernel/numa_balancing", "0");
    kmod_write_file("/proc/sys/vm/compaction_proactiveness", "0");
    for (i = 1; i < argc; ++i) {
        for (test = kmod_cases, count = 0; test != NULL; test = test->next) {
            if (kmod_is_selected(test, argv[i])) {
                failed += kmod_run(test);
                ++count;
            }
        }
        if (count == 0) {
            printf("no test %s\n", argv[i]);
            ++failed;
        }
    }
    return (failed > 0) || (argc == 1);
}
