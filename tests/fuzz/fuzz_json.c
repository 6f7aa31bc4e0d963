/* Any bytes as JSON: refused, or a document all of which can be walked, and that takes what was said before. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Values below and with this one. */
static size_t walk(const nmlp_json_doc *doc, const nmlp_json *value) {
    size_t n = 1;
    int64_t whole = 0;
    double number = 0;
    bool flag = false;
    const char *text;
    const nmlp_json *member;
    nmlp_err err;
    if (nmlp_json_int_in(value, -5, 5, &whole) && (whole < -5 || whole > 5 || !nmlp_json_is_number(value))) abort();
    if (nmlp_json_is_string(value) && !nmlp_json_string(value)) abort();
    for (member = nmlp_json_first(value); member; member = nmlp_json_next(member)) n += walk(doc, member);
    (void)nmlp_json_optional_int(doc, value, "a", 0, 9, &whole, &err);
    (void)nmlp_json_optional_number(doc, value, "a", &number, &err);
    (void)nmlp_json_optional_bool(doc, value, "a", &flag, &err);
    (void)nmlp_json_need_string(doc, value, "a", &text, &err);
    (void)nmlp_json_need_object(doc, value, "a", &member, &err);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_json_doc doc;
    nmlp_err err = {0};
    if (nmlp_json_parse(&doc, (const char *)data, size, "fuzz", &err) == NMLP_OK) {
        /* An empty container has no value where one is counted. */
        if (walk(&doc, doc.root) > nmlp_json_measure((const char *)data, size).n_values) abort();
        nmlp_json_free(&doc);
    } else if (!strlen(err.message)) {
        abort();
    }
    return 0;
}
