#include "kernels/caches.h"

#include <hwloc.h>
#include <pthread.h>

/* Constant once filled: reading the topology takes milliseconds, too long for every matrix of a model. */
static nmlp_caches machine = {.l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 16 << 20};
static pthread_once_t machine_read = PTHREAD_ONCE_INIT;

static void read_cache(hwloc_topology_t topology, hwloc_obj_type_t type, size_t *bytes) {
    hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
    if (cache && cache->attr && cache->attr->cache.size > 0) *bytes = (size_t)cache->attr->cache.size;
}

static void read_machine(void) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) return;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_cache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0) {
        read_cache(topology, HWLOC_OBJ_L1CACHE, &machine.l1_bytes);
        read_cache(topology, HWLOC_OBJ_L2CACHE, &machine.l2_bytes);
        read_cache(topology, HWLOC_OBJ_L3CACHE, &machine.l3_bytes);
    }
    hwloc_topology_destroy(topology);
}

const nmlp_caches *nmlp_caches_get(void) {
    pthread_once(&machine_read, read_machine);
    return &machine;
}
