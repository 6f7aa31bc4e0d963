/* bench cluster: what a message costs between the processes that a launcher started. */
#include <stdio.h>

#include "cli/bench.h"
#include "cluster/cluster.h"

static const nmlp_column columns[] = {
    {"bytes", false}, {"library_us", false}, {"shared_us", false}, {"taken", false}, {"same_bytes", false}};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

static void add_row(nmlp_table *table, const nmlp_cluster_timing *t) {
    nmlp_table_number(table, (double)t->bytes, 0);
    nmlp_table_number(table, t->library_us, 1);
    if (t->shared_us > 0)
        nmlp_table_number(table, t->shared_us, 1);
    else
        nmlp_table_none(table);
    nmlp_table_text(table, t->shared ? "shared" : "library");
    nmlp_table_text(table, t->same ? "yes" : "NO");
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    static const int64_t sizes[] = {256, 1024, 4096, 16384, 65536, 262144, 1048576};
    nmlp_status st = NMLP_OK;
    nmlp_table table;
    if (!args->cluster)
        return nmlp_fail(err, NMLP_E_ARG, "bench cluster needs several processes: start them with mpirun -n N");
    nmlp_table_init(&table, columns, N_COLUMNS);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        nmlp_cluster_timing timing;
        NMLP_TRY(nmlp_cluster_time_messages(args->cluster, &timing, sizes[i], err));
        add_row(&table, &timing);
    }
    if (nmlp_group_leads(args->tensor_group)) NMLP_TRY(nmlp_bench_deliver(&table, args, json, err));
out:
    nmlp_table_fini(&table);
    return st;
}

const nmlp_bench nmlp_bench_cluster = {
    "cluster", "messages between processes under mpirun", "network-us network-gbit csv", run, false, false};
