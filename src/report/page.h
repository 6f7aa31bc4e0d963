/* A report as one HTML file: style, script and data inside, nothing fetched.
 *
 * Sections are written one after the other; the page keeps what goes above them (figures to remember, list of sections)
 * until it is finished. Text given to these functions is text: it is escaped here. */
#ifndef NMLP_REPORT_PAGE_H
#define NMLP_REPORT_PAGE_H

#include "base/str.h"
#include "report/plot.h"

typedef struct nmlp_page {
    nmlp_str cards, nav, body;
    int n_sections, n_charts;
} nmlp_page;

void nmlp_page_init(nmlp_page *page);
void nmlp_page_fini(nmlp_page *page);

/* `lead` says in a sentence or two what to see. */
void nmlp_page_section_begin(nmlp_page *page, const char *id, const char *title, const char *lead);
void nmlp_page_section_end(nmlp_page *page);
/* A figure to remember, above the sections, with a link to the section whose command made it. */
void nmlp_page_card(nmlp_page *page, const char *value, const char *label, const char *section_id);
void nmlp_page_paragraph(nmlp_page *page, const char *text);
/* A command that can be copied, or several, one a line. */
void nmlp_page_command(nmlp_page *page, const char *command);

/* Charts side by side where there is room. */
void nmlp_page_grid_begin(nmlp_page *page);
void nmlp_page_grid_end(nmlp_page *page);
/* Something else than a chart, beside charts. */
void nmlp_page_panel_begin(nmlp_page *page);
void nmlp_page_panel_end(nmlp_page *page);
/* A chart with the command that made its numbers (NULL: the section says it). */
void nmlp_page_chart(nmlp_page *page, const nmlp_plot *plot, const char *command);

/* A table: heads, then cells row by row. The first `n_text` columns are words, the others numbers. */
void nmlp_page_table_begin(nmlp_page *page, const char *caption, const char *const *heads, size_t n_heads);
void nmlp_page_table_row(nmlp_page *page, const char *const *cells, size_t n_cells, size_t n_text);
void nmlp_page_table_end(nmlp_page *page);

typedef struct nmlp_page_head {
    const char *title, *subtitle;
    const char *const *footer; /* lines */
    size_t n_footer;
} nmlp_page_head;

/* The whole file. */
void nmlp_page_write(const nmlp_page *page, const nmlp_page_head *head, nmlp_str *out);

#endif
