#define _GNU_SOURCE /* sched_getaffinity */
#include "cluster/shared_window.h"

#include <mpi.h>
#include <sched.h>
#include <stdalign.h>
#include <string.h>

#include "base/cpus.h"
#include "base/mem.h"

enum { SPIN_NS = 200 * 1000 };

struct nmlp_shared_window {
    MPI_Win window;
    MPI_Comm machine;
    nmlp_shared_gather gather;
};

/* MPI moves messages on only while somebody calls it. */
static void make_progress(void *ctx) {
    int found;
    (void)ctx;
    (void)MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
}

static bool all_say(bool yes) {
    int own = yes, all = 0;
    return MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) == MPI_SUCCESS && all;
}

/* Whether every process can have a CPU: of those that any of them may use, or fewer where a control group says so. */
static bool have_cpus(int n_processes) {
    cpu_set_t own, all;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own) != 0) return false;
    if (MPI_Allreduce(&own, &all, sizeof own, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD) != MPI_SUCCESS) return false;
    bool limited = nmlp_cpus_usable() < CPU_COUNT(&own);
    return all_say((limited ? nmlp_cpus_usable() : CPU_COUNT(&all)) >= n_processes);
}

static bool on_one_machine(MPI_Comm *machine) {
    int here = 0, size = 0;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, machine) != MPI_SUCCESS)
        *machine = MPI_COMM_NULL;
    if (*machine != MPI_COMM_NULL) (void)MPI_Comm_size(*machine, &here);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    return all_say(here == size);
}

/* The memory is the first process's. A window begins anywhere (Open MPI has a header of its own in front), but at the
 * same place of a page in every process, since pages are what they share: the next aligned address is one for all. */
static bool make_window(nmlp_shared_window *w, int rank, size_t bytes, void **memory) {
    const uintptr_t align = alignof(nmlp_shared_meeting);
    MPI_Aint room = (MPI_Aint)(bytes + align), there = 0;
    void *begin;
    int unit;
    if (MPI_Win_allocate_shared(rank == 0 ? room : 0, 1, MPI_INFO_NULL, w->machine, &begin, &w->window) != MPI_SUCCESS)
        return false;
    if (MPI_Win_shared_query(w->window, 0, &there, &unit, &begin) != MPI_SUCCESS || there < room) return false;
    *memory = (char *)begin + (align - (uintptr_t)begin % align) % align;
    if (rank == 0) memset(*memory, 0, bytes);
    return true;
}

nmlp_shared_window *nmlp_shared_window_open(int64_t area_bytes) {
    int rank = 0, size = 0;
    void *memory = NULL;
    nmlp_shared_window *w = nmlp_mem_new(1, sizeof *w, NULL);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (!all_say(w != NULL) || !on_one_machine(&w->machine) ||
        !all_say(make_window(w, rank, nmlp_shared_gather_bytes(area_bytes), &memory))) {
        nmlp_mem_free(w); /* a window that only some have cannot be given back, which takes all */
        return NULL;
    }
    nmlp_shared_gather_open(&w->gather, memory, area_bytes, rank, size);
    w->gather.spin_ns = have_cpus(size) ? SPIN_NS : 0;
    w->gather.idle = make_progress;
    return w;
}

nmlp_shared_gather *nmlp_shared_window_gather(nmlp_shared_window *w) { return &w->gather; }

void nmlp_shared_window_close(nmlp_shared_window *w) {
    if (!w) return;
    (void)MPI_Win_free(&w->window);
    (void)MPI_Comm_free(&w->machine);
    nmlp_mem_free(w);
}
