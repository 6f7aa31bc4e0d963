/* neuronmlp fit: a machine file from measured times. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/commands.h"
#include "service/measured.h"

typedef struct fit_run {
    const nmlp_cli *cli;
    const char *table, *target, *output, *keys;
    nmlp_machine machine;
    nmlp_measured measured;
    nmlp_fit_result result;
    double seconds;
} fit_run;

static nmlp_status parse_keys(nmlp_machine_key *keys, int *n, const char *text, nmlp_err *err) {
    *n = 0;
    while (*text) {
        char name[64];
        size_t len = strcspn(text, ",");
        snprintf(name, sizeof name, "%.*s", (int)len, text);
        if (*n == NMLP_FIT_KEYS_MAX)
            return nmlp_fail(err, NMLP_E_ARG, "--keys: at most %d numbers are fitted at a time", NMLP_FIT_KEYS_MAX);
        if (!nmlp_machine_key_find(name, &keys[(*n)++]))
            return nmlp_fail(err, NMLP_E_ARG, "--keys: \"%s\" is no number of a machine file", name);
        text += len + (text[len] == ',');
    }
    return NMLP_OK;
}

static nmlp_status fit(fit_run *f, nmlp_err *err) {
    nmlp_machine_key keys[NMLP_FIT_KEYS_MAX];
    int n_keys = nmlp_fit_n_default_keys;
    nmlp_pool *pool = NULL;
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    double start = nmlp_clock_seconds();
    nmlp_str_init(&text);
    memcpy(keys, nmlp_fit_default_keys, (size_t)n_keys * sizeof *keys);
    if (f->keys) NMLP_TRY(parse_keys(keys, &n_keys, f->keys, err));
    NMLP_TRY(nmlp_machine_open(&f->machine, f->target, err));
    NMLP_TRY(nmlp_measured_read(&f->measured, f->table, &f->machine, err));
    NMLP_TRY(nmlp_pool_create(&pool, (int)f->cli->n_threads, err));
    NMLP_TRY(nmlp_fit_machine(&f->result, &f->machine, f->measured.list, f->measured.n, keys, n_keys, f->keys != NULL,
                              f->table, pool, err));
    nmlp_machine_print(&f->machine, &text);
    NMLP_TRY(nmlp_str_status(&text, err));
    NMLP_TRY(nmlp_file_write_text(f->output, nmlp_str_text(&text), text.len, err));
    f->seconds = nmlp_clock_seconds() - start;
out:
    nmlp_pool_destroy(pool);
    nmlp_str_fini(&text);
    return st;
}

static void put_error(nmlp_json_writer *w, const char *key, const nmlp_fit_error *e) {
    nmlp_json_begin_object(w, key);
    nmlp_json_put_number(w, "median", e->median);
    nmlp_json_put_number(w, "largest", e->largest);
    nmlp_json_end_object(w);
}

static int print_json(const fit_run *f) {
    const nmlp_fit_result *r = &f->result;
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "file", f->output);
    nmlp_json_put_string(w, "target", f->target);
    nmlp_json_put_int(w, "measurements", f->measured.n);
    nmlp_json_put_int(w, "outliers", r->n_outliers);
    nmlp_json_begin_array(w, "parameters");
    for (int k = 0; k < r->n_keys; k++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "key", nmlp_machine_key_name(r->keys[k].key));
        nmlp_json_put_bool(w, "fitted", r->keys[k].fitted);
        nmlp_json_put_number(w, "before", r->keys[k].before);
        nmlp_json_put_number(w, "after", r->keys[k].after);
        nmlp_json_put_number(w, "uncertainty", r->keys[k].uncertainty);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    put_error(w, "error_before", &r->before);
    put_error(w, "error_after", &r->after);
    nmlp_json_put_number(w, "seconds", f->seconds);
    return nmlp_json_out_end(&out, f->cli);
}

static void print_human(const fit_run *f) {
    const nmlp_fit_result *r = &f->result;
    printf("%s: %s fitted to %lld measurements (%lld do not count), %.1f s\n", f->output, f->target,
           (long long)f->measured.n, (long long)r->n_outliers, f->seconds);
    printf("  simulated against measured: median error %.1f %% before, %.1f %% after; largest %.1f %%, %.1f %%\n",
           100 * r->before.median, 100 * r->after.median, 100 * r->before.largest, 100 * r->after.largest);
    for (int k = 0; k < r->n_keys; k++) {
        const nmlp_fit_key *key = &r->keys[k];
        if (key->fitted)
            printf("  %-24s %10.4g -> %-10.4g +- %.1f %%\n", nmlp_machine_key_name(key->key), key->before, key->after,
                   100 * key->uncertainty);
        else
            printf("  %-24s %10.4g    left: these measurements do not determine it\n", nmlp_machine_key_name(key->key),
                   key->before);
    }
}

static int run(int argc, char **argv) {
    fit_run f = {0};
    const nmlp_opt opts[] = {
        {"target", 0, NMLP_OPT_STRING, &f.target, "TARGET", "trn1, trn2, trn3 or a machine file to start from"},
        {"output", 'o', NMLP_OPT_STRING, &f.output, "FILE", "machine file to write"},
        {"keys", 0, NMLP_OPT_STRING, &f.keys, "KEY,...",
         "numbers to fit, refused where the times do not determine them (default: those they do)"},
    };
    nmlp_cli cli;
    nmlp_err err = {0};
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_fit, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!f.target || !f.output) return nmlp_cli_usage(&cli, "--target and -o are needed");
    f.cli = &cli;
    f.table = cli.positionals[0];
    if (fit(&f, &err) != NMLP_OK) {
        code = nmlp_cli_fail(&cli, &err);
    } else if (cli.json) {
        code = print_json(&f);
    } else {
        print_human(&f);
        code = NMLP_EXIT_OK;
    }
    nmlp_measured_fini(&f.measured);
    nmlp_mem_free(f.result.simulated_us);
    return code;
}

const nmlp_command nmlp_cmd_fit = {
    .name = "fit",
    .summary = "fit a machine file to measured times of kernels",
    .usage = "MEASURED.csv --target TARGET -o FILE.machine",
    .about = "Changes the free numbers of a machine until its simulated times agree with what was measured.",
    .examples = "neuronmlp fit tests/data/measured_example.csv --target trn1 -o /tmp/fitted.machine\n",
    .run = run,
};
