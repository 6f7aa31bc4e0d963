#include "cli/version.h"

#include <stdio.h>

#include "base/build_info.h"
#include "cli/cli.h"
#include "cluster/cluster.h"
#include "kernels/kernels.h"

void nmlp_version_put(nmlp_json_writer *w) {
    const nmlp_build_info *info = nmlp_build_info_get();
    nmlp_json_begin_object(w, "build");
    nmlp_json_put_string(w, "version", info->version);
    nmlp_json_put_string(w, "commit", info->commit);
    nmlp_json_put_string(w, "compiler", info->compiler);
    nmlp_json_put_string(w, "build_type", info->build_type);
    nmlp_json_begin_array(w, "kernel_sets");
    for (size_t i = 0; nmlp_kernels_name_at(i); i++) nmlp_json_put_string(w, NULL, nmlp_kernels_name_at(i));
    nmlp_json_end_array(w);
    nmlp_json_put_bool(w, "cuda", info->cuda);
    nmlp_json_put_string(w, "cuda_note", info->cuda_note);
    nmlp_json_put_string(w, "mpi", nmlp_cluster_library());
    nmlp_json_begin_object(w, "libraries");
    for (const nmlp_build_library *l = info->libraries; l->name; l++) nmlp_json_put_string(w, l->name, l->version);
    nmlp_json_end_object(w);
    nmlp_json_end_object(w);
}

static void print_text(const nmlp_build_info *info) {
    printf("neuronmlp %s", info->version);
    if (info->commit[0]) printf(" (commit %s)", info->commit);
    printf("\n  compiler   %s, %s\n  kernels   ", info->compiler, info->build_type);
    for (size_t i = 0; nmlp_kernels_name_at(i); i++) printf(" %s", nmlp_kernels_name_at(i));
    printf("\n  GPU        %s (%s)\n", info->cuda ? "yes" : "no", info->cuda_note);
    printf("  MPI        %s\n  libraries ", nmlp_cluster_library());
    for (const nmlp_build_library *l = info->libraries; l->name; l++) printf(" %s %s", l->name, l->version);
    printf("\n");
}

int nmlp_version_print(bool json) {
    nmlp_json_writer w;
    nmlp_str text;
    if (!json) {
        print_text(nmlp_build_info_get());
        return NMLP_EXIT_OK;
    }
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_version_put(&w);
    nmlp_json_end_object(&w);
    printf("%s\n", nmlp_str_text(&text));
    nmlp_str_fini(&text);
    return NMLP_EXIT_OK;
}
