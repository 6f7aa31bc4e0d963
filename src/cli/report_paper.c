/* The paper's tables, from what `neuronmlp paper --json` printed. */
#include "base/json.h"
#include "base/mem.h"
#include "cli/paper_table.h"
#include "cli/report_sections.h"

nmlp_status nmlp_report_paper(nmlp_page *page, const char *path, nmlp_err *err) {
    nmlp_json_doc doc = {0};
    nmlp_paper_table *table = nmlp_mem_new(1, sizeof *table, err);
    nmlp_status st = table ? NMLP_OK : NMLP_E_NOMEM;
    NMLP_TRY(st);
    NMLP_TRY(nmlp_json_load(&doc, path, err));
    const nmlp_json *tables = nmlp_json_get(doc.root, "tables");
    if (!nmlp_json_is_array(tables)) {
        nmlp_fail(err, NMLP_E_FORMAT, "%s: has no \"tables\"", path);
        nmlp_fail_hint(err, "make it with neuronmlp paper --json > %.120s", path);
        NMLP_TRY(NMLP_E_FORMAT);
    }
    for (const nmlp_json *t = nmlp_json_first(tables); t; t = nmlp_json_next(t)) {
        NMLP_TRY(nmlp_paper_table_read(table, &doc, t, err));
        nmlp_paper_put_section(table, page);
    }
out:
    nmlp_json_free(&doc);
    nmlp_mem_free(table);
    return st;
}
