/* Any bytes as the questions of a task, in every format: reading never crashes, and every question accepted can be
 * scored. The first byte chooses task and format. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "eval/questions.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const nmlp_questions *q) {
    for (size_t i = 0; i < q->n; i++) {
        const nmlp_question *item = &q->items[i];
        if (item->gold < 0 || item->gold >= item->n_choices || item->n_choices < 2 || item->line < 1) abort();
        for (int64_t c = 0; c < item->n_choices; c++) {
            if (item->choices[c].norm_bytes < 1 || item->choices[c].continuation[0] == '\0') abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const origins[] = {"rows.jsonl", "rows.csv", "rows.tsv"};
    nmlp_task_rows rows;
    nmlp_questions questions;
    nmlp_err err;
    if (size < 1) return 0;
    const nmlp_task *task = nmlp_task_at(data[0] % 7);
    const char *origin = origins[data[0] / 7 % 3];
    nmlp_questions_options options = {.labels_path = "/dev/null"};
    nmlp_status st = nmlp_task_rows_init(&rows, (const char *)data + 1, size - 1, origin, &err);
    if (st == NMLP_OK) {
        st = nmlp_questions_read(&questions, task, &rows, &options, &err);
        if (st == NMLP_OK) {
            check(&questions);
            nmlp_questions_free(&questions);
        } else if (err.message[0] == '\0') {
            abort();
        }
    }
    nmlp_task_rows_fini(&rows);
    return 0;
}
