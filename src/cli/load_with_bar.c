#include "cli/load_with_bar.h"

nmlp_status nmlp_cli_load(nmlp_loaded *loaded, const nmlp_cli *cli, const char *dir, const nmlp_load_options *options,
                          nmlp_err *err) {
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_load_options with_bar = *options;
    with_bar.n_threads = (int)cli->n_threads;
    with_bar.progress = &progress;
    nmlp_status st = nmlp_load(loaded, dir, &with_bar, err);
    nmlp_cli_progress_end(&bar);
    return st;
}
