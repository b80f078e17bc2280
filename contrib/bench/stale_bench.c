/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark of whether a message has the data of its buffer after the
 * addresses of the buffer got other pages. Between two messages both ranks
 * change what their buffer stands for:
 *
 *   libc       munmap() and mmap() of the C library
 *   raw        the same as system calls, which memory hooks do not see
 *   over       mmap(MAP_FIXED) over the buffer, a system call
 *   moved      mremap() of other pages into its place, a system call
 *   dropped    madvise(MADV_DONTNEED), a system call
 *   forked     fork(); the parent writes while the child has the old pages
 *   truncated  ftruncate() of the file that is mapped, to nothing and back
 *   dlmopen    libc's calls by another C library, loaded later
 *   control    nothing, and the second message is the first one again, as from
 *              old pages: half of the messages must be wrong
 *
 * stale_bench WAY[,WAY...] SIZE TURNS has two messages in each turn. For each
 * way it prints "way WAY right N wrong N refused N", as soon as it is done:
 * messages that had every byte, that had not, and that MPI refused.
 */

#include "bench.h"
#include "pattern.h"

#include <mpi.h>

#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* Of <linux/mman.h>, missing in glibc 2.36 */
#endif

/* Far from where the kernel maps what has no address, so that nothing gets
 * between munmap() and mmap(). Each way has its own addresses, which no
 * registration of another one covers. */
#define PLACE    0x300000000000
#define DISTANCE 0x40000000

typedef void *(*mmap_func_t)(void*, size_t, int, int, int, off_t);
typedef int (*munmap_func_t)(void*, size_t);

static int           rank;
static int           file = -1;
static pid_t         child;
static int           child_pipe[2];
static mmap_func_t   other_mmap;
static munmap_func_t other_munmap;

enum { RIGHT, WRONG, REFUSED, NUM_RESULTS };

#define ACCESS   (PROT_READ | PROT_WRITE)
#define ANYWHERE (MAP_PRIVATE | MAP_ANONYMOUS)
#define IN_PLACE (ANYWHERE | MAP_FIXED)

static void *raw_mmap(void *where, size_t size, int access, int flags,
                      int fd, off_t offset)
{
    return (void*)syscall(SYS_mmap, where, size, access, flags, fd, offset);
}

static void must_map(void *got, void *where)
{
    CHECK(got == where, "cannot map memory: %m");
}

static void by_libc(void *buffer, size_t size)
{
    munmap(buffer, size);
    must_map(mmap(buffer, size, ACCESS, IN_PLACE, -1, 0), buffer);
}

static void by_raw(void *buffer, size_t size)
{
    syscall(SYS_munmap, buffer, size);
    must_map(raw_mmap(buffer, size, ACCESS, IN_PLACE, -1, 0), buffer);
}

static void by_over(void *buffer, size_t size)
{
    must_map(raw_mmap(buffer, size, ACCESS, IN_PLACE, -1, 0), buffer);
}

static void by_moved(void *buffer, size_t size)
{
    char *other = raw_mmap(NULL, size, ACCESS, ANYWHERE, -1, 0);

    CHECK(other != MAP_FAILED, "cannot map memory: %m");
    memset(other, 7, size);
    must_map((void*)syscall(SYS_mremap, other, size, size,
                            MREMAP_MAYMOVE | MREMAP_FIXED, buffer), buffer);
}

static void by_dropped(void *buffer, size_t size)
{
    /* The emulated RNIC pins by mlock(), a device does not: its pages can be
     * dropped. Linux 5.18 has this for pages that are locked. */
    CHECK((syscall(SYS_madvise, buffer, size, MADV_DONTNEED) == 0) ||
          (syscall(SYS_madvise, buffer, size, MADV_DONTNEED_LOCKED) == 0),
          "cannot drop pages: %m");
}

/* The child holds the pages until the next turn */
static void end_child(void)
{
    if (child > 0) {
        close(child_pipe[1]);
        waitpid(child, NULL, 0);
        child = 0;
    }
}

static void by_forked(void *buffer, size_t size)
{
    char byte;

    (void)buffer;
    (void)size;
    end_child();
    CHECK(pipe(child_pipe) == 0, "cannot make a pipe: %m");
    child = fork();
    CHECK(child >= 0, "cannot fork: %m");
    if (child == 0) {
        close(child_pipe[1]);
        while (read(child_pipe[0], &byte, 1) < 0) {
        }
        _exit(0);
    }
    close(child_pipe[0]);
}

static void by_truncated(void *buffer, size_t size)
{
    (void)buffer;
    CHECK((ftruncate(file, 0) == 0) && (ftruncate(file, size) == 0),
          "cannot truncate: %m");
}

static void by_dlmopen(void *buffer, size_t size)
{
    other_munmap(buffer, size);
    must_map(other_mmap(buffer, size, ACCESS, IN_PLACE, -1, 0), buffer);
}

static void by_control(void *buffer, size_t size)
{
    (void)buffer;
    (void)size;
}

static const struct {
    const char *name;
    void       (*change)(void *buffer, size_t size);
} ways[] = {
    {"libc", by_libc}, {"raw", by_raw}, {"over", by_over},
    {"moved", by_moved}, {"dropped", by_dropped}, {"forked", by_forked},
    {"truncated", by_truncated}, {"dlmopen", by_dlmopen},
    {"control", by_control},
};

static void load_library(void)
{
    void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);

    CHECK(library != NULL, "cannot load another C library: %s", dlerror());
    other_mmap   = (mmap_func_t)dlsym(library, "mmap");
    other_munmap = (munmap_func_t)dlsym(library, "munmap");
    CHECK(other_mmap && other_munmap, "another C library has no mmap()");
    CHECK(other_mmap != mmap, "the other C library is the same one");
}

static void *first_buffer(size_t way, size_t size)
{
    void *place = (void*)(PLACE + way * DISTANCE);
    int flags   = ANYWHERE;

    if (ways[way].change == by_truncated) {
        file = memfd_create("stale_bench", 0);
        CHECK((file >= 0) && (ftruncate(file, size) == 0),
              "cannot make a file: %m");
        flags = MAP_SHARED;
    }
    must_map(mmap(place, size, ACCESS, flags | MAP_FIXED_NOREPLACE, file, 0),
             place);
    return place;
}

static void end_buffer(void *buffer, size_t size)
{
    end_child();
    munmap(buffer, size);
    if (file >= 0) {
        close(file);
        file = -1;
    }
}

/* The receiver's buffer has other contents before. `written` is what the sender
 * writes, `number` what has to arrive. */
static void message(void *buffer, size_t size, int written, int number,
                    double *results)
{
    int status;

    if (rank == 0) {
        write_pattern(buffer, size, written);
        status = MPI_Send(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        results[REFUSED] += status != MPI_SUCCESS;
        return;
    }

    memset(buffer, 0xee, size);
    status = MPI_Recv(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD,
                      MPI_STATUS_IGNORE);
    if (status == MPI_SUCCESS) {
        ++results[is_pattern(buffer, size, number) ? RIGHT : WRONG];
    }
}

static void run(const char *name, size_t size, int turns)
{
    double mine[NUM_RESULTS] = {0}, all[NUM_RESULTS];
    int turn, next;
    void *buffer;
    size_t way;

    for (way = 0; strcmp(ways[way].name, name); ++way) {
        CHECK(way + 1 < sizeof(ways) / sizeof(*ways), "no way %s", name);
    }
    if (ways[way].change == by_dlmopen) {
        load_library();
    }
    buffer = first_buffer(way, size);
    for (turn = 0; turn < turns; ++turn) {
        message(buffer, size, 2 * turn, 2 * turn, mine);
        ways[way].change(buffer, size);
        next = 2 * turn + (ways[way].change != by_control);
        message(buffer, size, next, 2 * turn + 1, mine);
    }
    end_buffer(buffer, size);
    MPI_Reduce(mine, all, NUM_RESULTS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("way %s right %.0f wrong %.0f refused %.0f\n", name, all[RIGHT],
               all[WRONG], all[REFUSED]);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    size_t size = argc == 4 ? strtoull(argv[2], NULL, 0) : 0;
    int turns   = argc == 4 ? atoi(argv[3]) : 0;
    char *name, *rest = argv[1];

    CHECK((size >= 4096) && (size % 4096 == 0) && (size <= DISTANCE) &&
          (turns > 0), "say WAY[,WAY...], a multiple of 4096, and TURNS");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    while ((name = strsep(&rest, ",")) != NULL) {
        run(name, size, turns);
    }
    MPI_Finalize();
    return EXIT_SUCCESS;
}
