#include "cli/optimize_page.h"

#include <stdio.h>

#include "cli/report_sections.h"
#include "neuronmlp/version.h"
#include "report/page.h"

static void put_mix(nmlp_page *page, const nmlp_optimization *r) {
    const char *heads[NMLP_QUANT_MATRICES + 1] = {"layer"};
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++) heads[i + 1] = nmlp_quant_matrix_name(i);
    nmlp_page_section_begin(page, "matrices", "Every matrix",
                            "A number is a rank (two factors; with a star gate and up share one), then the format.");
    nmlp_page_table_begin(page, "Rank and format of each matrix of the model written", heads, NMLP_QUANT_MATRICES + 1);
    for (int64_t l = 0; l < r->mix.n_layers; l++) {
        char text[NMLP_QUANT_MATRICES][32], layer[24];
        const char *cells[NMLP_QUANT_MATRICES + 1];
        snprintf(layer, sizeof layer, "%lld", (long long)l);
        cells[0] = layer;
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) {
            nmlp_mix_matrix_text(text[i], &r->mix, l, i);
            cells[i + 1] = text[i];
        }
        nmlp_page_table_row(page, cells, NMLP_QUANT_MATRICES + 1, NMLP_QUANT_MATRICES + 1);
    }
    nmlp_page_table_end(page);
    nmlp_page_section_end(page);
}

void nmlp_optimize_page_write(const nmlp_optimization *r, const char *model_dir, const char *command, nmlp_str *out) {
    nmlp_page page;
    nmlp_str machine;
    char subtitle[400];
    nmlp_page_init(&page);
    nmlp_str_init(&machine);
    nmlp_report_machine(&machine);
    nmlp_report_frontier(&page, r, command);
    put_mix(&page, r);
    snprintf(subtitle, sizeof subtitle, "%.200s on %.60s: %s%s", model_dir, r->target, nmlp_verdict_text(r->verdict),
             r->simulated ? ". Times are simulated, not measured." : ".");
    const char *const footer[] = {"neuronmlp " NMLP_VERSION_STRING " on:", nmlp_str_text(&machine),
                                  "Self-contained: this file fetches nothing and runs from disk."};
    nmlp_page_head head = {
        .title = "The fastest form of a model", .subtitle = subtitle, .footer = footer, .n_footer = 3};
    nmlp_page_write(&page, &head, out);
    out->failed |= machine.failed;
    nmlp_str_fini(&machine);
    nmlp_page_fini(&page);
}
