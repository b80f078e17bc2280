# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause
"""Lines *.stale: whether messages have the data of their buffers after the
addresses of the buffers got other pages, in nine ways. policies.stale is on the
emulated NIC, which accesses memory by address. The others are in guests, on
devices that hold the very pages that they pinned: softroce.stale on soft-RoCE,
where nprdma copies, and windows.stale on an emulated mlx5 adapter, where it has
zero copy by the kernel module's windows. There the cache of registrations must
be wrong after system calls that its hooks do not see, or the benchmark would
prove nothing. softroce.short and windows.short have that control and nprdma
alone, for the tests.
"""

import collections
import glob
import os
import re

import device
import kernel
from measure import Row, one_turn
from probes import MIB, attempt, need_variable, unlimited_memlock
from session import CONTESTANTS, BenchError, field_of
from stats import value

# The proposals that doc/memory.md describes, and nprdma
PROPOSALS = ("rcache", "direct", "never-return", "bounded", "pool", "nprdma")

# What changes what an address stands for, as stale_bench names it: title and
# more environment
WAYS = {
    "libc": ("munmap and mmap of the C library", {}),
    "raw": ("munmap and mmap as system calls", {}),
    "over": ("mmap over it as a system call", {}),
    "moved": ("mremap of others into place as a system call", {}),
    "dropped": ("MADV_DONTNEED as a system call", {}),
    "forked": ("fork, then writing", {}),
    "truncated": ("truncation of the mapped file", {}),
    "dlmopen": ("munmap and mmap of another C library", {}),
    # Open MPI's hooks in the place of UCX's
    "unhooked": ("munmap and mmap, hooks cut off",
                 {"OMPI_MCA_opal_common_ucx_opal_mem_hooks": "1"}),
}

# A new mapping at the address, which no hook of the C library's functions sees
UNSEEN = ("raw", "over", "moved")

# Where it runs, by the group of the line:
#   title    for tables
#   turns    of stale_bench, two messages each
#   size     of a message, bytes
#   right    contestants that may not be wrong
#   moves    the counters of nprdma of which one shows that it moved the data
#   prepare  function of the session
#   seconds  that a run may take
Place = collections.namedtuple("Place", "title turns size right moves prepare "
                               "seconds")
ALWAYS_RIGHT = ("malloc-keep", "lazy-unmap")
IN_ZERO_COPY = ("nic_get", "nic_put")
IN_COPIES = ("get", "put")


def prepare_rxe(_session):
    """soft-RoCE, without the kernel module."""
    if not os.path.exists("/sys/class/infiniband/rxe0"):
        kernel.must("sh", "-c", '. "$NPRDMA_SRC/test/guest/lib.sh"; rxe_up')


def prepare_mlx5(session):
    """An adapter and the kernel module."""
    if not kernel.is_loaded("mlx5_ib"):
        device.prepare(session)


PLACES = {
    "policies": Place("the emulated NIC", 20, MIB, ALWAYS_RIGHT, IN_ZERO_COPY,
                      unlimited_memlock, 60),
    "softroce": Place("soft-RoCE", 5, 65536, ("nprdma", *ALWAYS_RIGHT),
                      IN_COPIES, prepare_rxe, 150),
    "windows": Place("mlx5", 5, 65536, ("nprdma", *ALWAYS_RIGHT), IN_ZERO_COPY,
                     prepare_mlx5, 150),
}

# Messages this large are read from the sender's memory
LARGE = {"UCX_RNDV_THRESH": "8k", "UCX_ZCOPY_THRESH": "8k"}
RXE_SETTINGS = {
    **LARGE, "UCX_NPRDMA_EMULATION": "no", "UCX_NPRDMA_GID_INDEX": "1",
    "UCX_NPRDMA_TIMEOUT": "2s", "UCX_NET_DEVICES": "rxe0:1",
    "UCX_IB_GID_INDEX": "1", "UCX_UD_VERBS_ETH_DGID_CHECK": "n"}
# Without hooks nprdma may not use the module, and copies
WINDOWS_SETTINGS = {
    **LARGE, **device.GUEST.settings, "UCX_NPRDMA_MONITOR": "auto",
    "UCX_NET_DEVICES": device.TO + ":1"}


def place_of(line):
    """Of a line of this file."""
    return PLACES[line.partition(".")[0]]


def is_stale(line):
    """Whether it is a line of this file."""
    return line.partition(".")[2] in ("stale", "short")


def messages(place):
    """Of each way and contestant."""
    return 2 * place.turns


def check_counters(session, place, contestant, ways, more):
    """nprdma has carried all messages, in the way that the place is for."""
    moves = place.moves
    if contestant == "pool" or more:  # These copy
        moves = IN_COPIES
    moved = 0
    for path in glob.glob(os.path.join(session.work, "stats.*")):
        with open(path) as file:
            moved += sum(field_of(line, line.split()[0]) for line in file
                         if line.split()[0] in moves)
        os.remove(path)
    if moved < messages(place) * len(ways):
        raise BenchError(f"{' and '.join(moves)} of {contestant} are "
                         f"{moved:.0f} after {messages(place) * len(ways)} "
                         "messages")


def run_ways(session, place, contestant, size, ways, more):
    """{way: {"right": messages, "wrong", "refused"}}. A program that ends with
    an error has refused the messages of the way that it was at; the rest of
    the ways gets another one."""
    found, left = {}, list(ways)
    is_ours = CONTESTANTS[contestant]["UCX_TLS"] == "nprdma"
    env = dict(more)
    if is_ours:
        env["UCX_NPRDMA_STATS"] = f"file:{session.work}/stats.%p"
    while left:
        out, is_whole = attempt(
            session, contestant, "stale_bench",
            [",".join(left), str(size), str(place.turns)],
            seconds=place.seconds, more=env)
        for line in re.findall(r"^way .*", out, re.M):
            found[line.split()[1]] = {name: field_of(line, name) for name in
                                      ("right", "wrong", "refused")}
        if is_whole and is_ours:
            check_counters(session, place, contestant, left, more)
        left = [way for way in left if way not in found]
        if left and is_whole:
            raise BenchError(f"stale_bench lost the way {left[0]}: {out}")
        if left:
            found[left.pop(0)] = {"right": 0, "wrong": 0,
                                  "refused": messages(place)}
    return found


def counts(session, place, contestant, size, way):
    """Of one way. All that have the same environment are run at once."""
    more = WAYS[way][1]
    if more:
        return run_ways(session, place, contestant, size, ["libc"],
                        more)["libc"]
    key = "stale", place.title, contestant, size
    if key not in session.seen:
        session.seen[key] = run_ways(
            session, place, contestant, size,
            [name for name, (_title, other) in WAYS.items() if not other], {})
    return session.seen[key][way]


def stale(line, way, needed=None):
    """{"CONTESTANT@right": messages, and the same for wrong and refused}"""
    def command(session, contestant, size):
        if needed is not None:
            need_variable(session, needed)
        place = place_of(line)
        found = counts(session, place, contestant, size, way)
        if sum(found.values()) < messages(place):
            raise BenchError(f"messages are lost: {found}")
        return {f"{contestant}@{name}": count for name, count in found.items()}
    return command


def judges(line, way, contestants):
    """What is shown of all; which have to be right; and in a guest which has to
    be wrong."""
    place, title = place_of(line), WAYS[way][0]
    total = f"of {messages(place)}, {title}"
    for word in ("wrong", "refused"):
        yield value(f"{contestants[0]}@{word}", unit="messages",
                    show=tuple(f"{one}@{word}" for one in contestants),
                    what=f"{word} {total}")
    for name in contestants:
        if name in place.right:
            yield value(f"{name}@right", ">=", messages(place),
                        what=f"{name}: right {total}", unit="messages")
        elif (name, line.partition(".")[0] in GUESTS,
              way in UNSEEN) == ("rcache", True, True):
            yield value(f"{name}@wrong", ">=", 1, unit="messages",
                        what=f"{name}: wrong, as it must be, {total}")


def stale_row(line, way, contestants, needed=None):
    """One way."""
    return Row(line, f"{WAYS[way][0]} ({' : '.join(contestants)})",
               stale(line, way, needed), contestants,
               list(judges(line, way, contestants)), "messages",
               (place_of(line).size,), turns=one_turn,
               prepare=place_of(line).prepare)


def stale_rows(line, *groups):
    """Each way for each group of contestants: (contestants, needed
    variable)."""
    return [stale_row(line, way, contestants, needed)
            for contestants, needed in groups for way in WAYS]


KEEPING = ((("malloc-keep",), None),
           (("lazy-unmap",), "UCX_NPRDMA_LAZY_UNMAP"))
SHORT = (("rcache", "nprdma"), None)
ALL = (PROPOSALS, None)

# Columns of the table
NAMES = (*PROPOSALS, "malloc-keep", "lazy-unmap")


# What a guest needs, and the time that it may take: a few minutes if the
# machine is busy
PROGRAMS = ("stale_bench",)
SECONDS = 600


def on_soft_roce(build, prefix, version, words, report):
    """kernel.Guest.start() of softroce."""
    kernel.run_guest("softroce", [kernel.RIG], {}, build, prefix, version,
                     words, report, PROGRAMS, modules=False, seconds=SECONDS)


def on_windows(build, prefix, version, words, report):
    """The same of windows."""
    kernel.run_guest("windows", device.rig(build),
                     device.rig_environment(build), build, prefix, version,
                     words, report, PROGRAMS, seconds=SECONDS)


GUESTS = {"softroce": kernel.Guest(RXE_SETTINGS, on_soft_roce),
          "windows": kernel.Guest(WINDOWS_SETTINGS, on_windows)}

POLICIES_STALE = stale_rows("policies.stale", ALL, *KEEPING)
SOFTROCE = [*stale_rows("softroce.stale", ALL, *KEEPING),
            *stale_rows("softroce.short", SHORT)]
WINDOWS = [*stale_rows("windows.stale", ALL, *KEEPING),
           *stale_rows("windows.short", SHORT)]


def read(found):
    """{contestant: {(place, title): {"wrong": N, "refused": N, "of": N}}} of
    medians, in the order of PLACES and WAYS."""
    cells = {}
    for (line, what, _size, contestant), figure in found.items():
        match = re.match(r"(wrong|refused) of (\d+), (.*)", what)
        if is_stale(line) and match:
            word, number, title = match.groups()
            cell = cells.setdefault(contestant, {}).setdefault(
                (place_of(line).title, title), {})
            cell.update({word: figure, "of": int(number)})
    order = [(place.title, title) for place in PLACES.values()
             for title, _more in WAYS.values()]
    return {name: {key: its[key] for key in order if key in its}
            for name, its in cells.items()}


def bad_words(counted):
    """What was not right in one way, in words."""
    return [f"{word} {counted[word]:.0f} of {counted['of']}"
            for word in ("wrong", "refused") if counted.get(word, 0) > 0]


def places_of(cells):
    """The titles of the places of a contestant."""
    return list(dict.fromkeys(place for place, _title in cells))


def summary(found, name):
    """In how many ways a contestant is right, for each place."""
    cells = read(found).get(name, {})
    words = []
    for place in places_of(cells):
        of_place = [bad_words(counted) for (where, _title), counted in
                    cells.items() if where == place]
        number = f"{of_place.count([])} of {len(of_place)}"
        words.append(f"{number} on {place}" if words else
                     f"right in {number} ways on {place}")
    return words


def against(found, name):
    """In how many ways it was wrong or refused, and where; the table names
    them."""
    cells, words = read(found).get(name, {}), []
    for word, said in (("wrong", "wrong data"), ("refused", "refusals")):
        places = {}
        for (place, _title), counted in cells.items():
            if counted.get(word, 0) > 0:
                places[place] = places.get(place, 0) + 1
        if places:
            words.append(f"{said} in " + ", in ".join(
                f"{ways} ways on {place}" for place, ways in places.items()))
    return words


def table(found):
    """Way x contestant, for all places: "right", or where it is not."""
    cells = read(found)
    if not cells:
        return []
    places = [place.title for place in PLACES.values() if any(
        place.title in places_of(its) for its in cells.values())]
    names = [name for name in NAMES if name in cells]
    heads = []
    for name in names:
        missing = [place for place in places
                   if place not in places_of(cells[name])]
        heads.append(f"{name} (not on {', '.join(missing)})" if missing
                     else name)
    rows = [f"| way, on {', '.join(places)} | " + " | ".join(heads) + " |",
            "|---" * (len(names) + 1) + "|"]
    for title, _more in WAYS.values():
        row = []
        for name in names:
            places_with, measured = {}, False
            for (place, its_title), counted in cells[name].items():
                if its_title == title:
                    measured = True
                    places_with.setdefault(", ".join(bad_words(counted)),
                                           []).append(place)
            bad = [f"{words} on {', '.join(where)}"
                   for words, where in places_with.items() if words]
            row.append("; ".join(bad) or ("right" if measured else ""))
        rows.append(f"| {title} | " + " | ".join(row) + " |")
    return rows
