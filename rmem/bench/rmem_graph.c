/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * rmem_graph pr|bfs VERTICES [FILE]: PageRank, or a search in breadth, over a
 * graph with 16 edges at each vertex on average, which lead to some vertices
 * much more often than to others. It knows nothing of remote memory. With FILE
 * its arrays are a mapping of that file. Prints microseconds of time ("us") and
 * of CPU time ("cpu_us") since the arrays are there, and a sum over the result.
 */

#include "rmem_load.h"

#include <string.h>

#define DEGREE 16u
#define TURNS  3
#define FAR    UINT32_MAX

static uint32_t num_vertices;

/* Of CSR: the edges of v begin at starts[v] */
static uint64_t *starts;
static uint32_t *edges;

static uint64_t hash(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* In the order of the memory, as a file of edges is loaded */
static void make_graph(void)
{
    uint64_t count = 0, i;
    double place;
    uint32_t v;

    for (v = 0; v < num_vertices; ++v) {
        starts[v] = count;
        count    += hash(v) % (2 * DEGREE - 1) + 1;
        count     = (count < (uint64_t)num_vertices * DEGREE) ? count :
                    (uint64_t)num_vertices * DEGREE;
        for (i = starts[v]; i < count; ++i) {
            place    = (hash(i + ((uint64_t)1 << 40)) >> 11) * 0x1p-53;
            edges[i] = hash((uint64_t)(place * place * num_vertices)) %
                       num_vertices;
        }
    }
    starts[num_vertices] = count;
}

static double page_rank(double *ranks, double *shares)
{
    uint32_t v, degree;
    double sum = 0;
    uint64_t i;
    int turn;

    for (v = 0; v < num_vertices; ++v) {
        ranks[v] = 1.0 / num_vertices;
    }
    for (turn = 0; turn < TURNS; ++turn) {
        for (v = 0; v < num_vertices; ++v) {
            degree    = starts[v + 1] - starts[v];
            shares[v] = ranks[v] / (degree ? degree : 1);
        }
        for (v = 0; v < num_vertices; ++v) {
            sum = 0;
            for (i = starts[v]; i < starts[v + 1]; ++i) {
                sum += shares[edges[i]];
            }
            ranks[v] = 0.15 / num_vertices + 0.85 * sum;
        }
    }
    for (v = 0, sum = 0; v < num_vertices; ++v) {
        sum += ranks[v];
    }
    return sum;
}

static double search(uint32_t *distances, uint32_t *queue, uint32_t root)
{
    uint32_t head = 0, tail = 0, v;
    double sum    = 0;
    uint64_t i;

    memset(distances, 0xff, num_vertices * sizeof(*distances));
    distances[root] = 0;
    queue[tail++]   = root;
    while (head < tail) {
        v    = queue[head++];
        sum += distances[v];
        for (i = starts[v]; i < starts[v + 1]; ++i) {
            if (distances[edges[i]] == FAR) {
                distances[edges[i]] = distances[v] + 1;
                queue[tail++]       = edges[i];
            }
        }
    }
    return sum;
}

int main(int argc, char **argv)
{
    int is_search = (argc > 1) && !strcmp(argv[1], "bfs");
    double start, cpu, sum, *first;
    size_t n, bytes;

    n = num_vertices = (argc > 2) ? strtoul(argv[2], NULL, 0) : 0;
    CHECK((n > 0) && (is_search || !strcmp(argv[1], "pr")),
          "usage: rmem_graph pr|bfs VERTICES [FILE]");
    bytes = (n + 1) * sizeof(*starts) + 2 * n * sizeof(*first) +
            n * DEGREE * sizeof(*edges);
    starts = new_memory(bytes, argv[3]);
    first  = (double*)(starts + n + 1);
    edges  = (uint32_t*)(first + 2 * n);
    start  = now_us();
    cpu    = cpu_us(0);
    make_graph();
    sum = is_search ? search((void*)first, (void*)(first + n), hash(1) % n) :
          page_rank(first, first + n);
    printf("us %.0f cpu_us %.0f sum %.9g\n", now_us() - start, cpu_us(0) - cpu,
           sum);
    return EXIT_SUCCESS;
}
