/* Tables of the paper with ours beside them. Every cell says where its number comes from. */
#ifndef NMLP_CLI_PAPER_TABLE_H
#define NMLP_CLI_PAPER_TABLE_H

#include "base/json.h"
#include "base/json_write.h"
#include "base/progress.h"
#include "report/page.h"
#include "trainium/neuron/machine.h"

typedef enum nmlp_cell_origin {
    NMLP_CELL_MEASURED,
    NMLP_CELL_SIMULATED,
    NMLP_CELL_PUBLISHED,
    NMLP_CELL_IMPOSSIBLE /* needs a device, or weights that are not at hand */
} nmlp_cell_origin;

enum { NMLP_PAPER_COLUMNS_MAX = 10, NMLP_PAPER_ROWS_MAX = 64, NMLP_PAPER_LABEL_MAX = 64 };

typedef struct nmlp_paper_cell {
    nmlp_cell_origin origin;
    double value;
} nmlp_paper_cell;

typedef struct nmlp_paper_row {
    char label[NMLP_PAPER_LABEL_MAX];
    nmlp_paper_cell cells[NMLP_PAPER_COLUMNS_MAX];
} nmlp_paper_row;

typedef struct nmlp_paper_table {
    const char *id, *title, *lead;
    const char *rows_are;                            /* head of the labels */
    const char *columns[NMLP_PAPER_COLUMNS_MAX + 1]; /* NULL at the end */
    const char *unit;                                /* of the chart */
    int decimals;
    bool log; /* chart: a logarithmic axis with lines; else bars from zero */
    nmlp_paper_row rows[NMLP_PAPER_ROWS_MAX];
    int n_rows;
} nmlp_paper_table;

int nmlp_paper_n_columns(const nmlp_paper_table *table);
/* A new row of cells that are not possible here, to be filled; the last one again where there is no room. */
nmlp_paper_row *nmlp_paper_add_row(nmlp_paper_table *table, const char *label);
nmlp_paper_cell nmlp_paper_simulated(double value);
/* NAN where nothing was published: not possible here. */
nmlp_paper_cell nmlp_paper_published_cell(double value);

void nmlp_paper_print(const nmlp_paper_table *table);
void nmlp_paper_put_json(const nmlp_paper_table *table, nmlp_json_writer *w);
/* The same from a file; words stay in the document. */
nmlp_status nmlp_paper_table_read(nmlp_paper_table *table, const nmlp_json_doc *doc, const nmlp_json *from,
                                  nmlp_err *err);
/* A section of a page: table and chart. */
void nmlp_paper_put_section(const nmlp_paper_table *table, nmlp_page *page);

/* paper_data.c: a published time or traffic (tests/data/published.csv); NAN where there is none. */
double nmlp_paper_published(const char *kernel, int64_t rows, const char *unit, const char *tiling);
/* A measured perplexity (docs/data/reproduced-perplexity.csv). */
double nmlp_paper_perplexity(const char *model, const char *method, double ratio, const char *text);
/* A measured accuracy in percent (docs/data/measured-accuracy.csv). */
double nmlp_paper_accuracy(const char *model, const char *method, double ratio, const char *task);

/* What is computed. */
typedef struct nmlp_paper_scope {
    const nmlp_machine *machine;
    int64_t rows_max;
    const char *models; /* preset names with commas */
    const char *cache;  /* file of plans, or NULL */
    const nmlp_progress *progress;
} nmlp_paper_scope;

typedef nmlp_status nmlp_paper_make(nmlp_paper_table *table, const nmlp_paper_scope *scope, nmlp_err *err);

/* paper_kernels.c */
nmlp_paper_make nmlp_paper_latency, nmlp_paper_speedup, nmlp_paper_traffic, nmlp_paper_rate, nmlp_paper_blocks_sweep,
    nmlp_paper_ablation;
/* paper_models.c */
nmlp_paper_make nmlp_paper_mlp, nmlp_paper_end_to_end, nmlp_paper_published_runs, nmlp_paper_quality,
    nmlp_paper_choices, nmlp_paper_adapters;

#endif
