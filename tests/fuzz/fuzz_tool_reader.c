/* Any text as a model's answer with calls of tools: the same parts however the answer is cut into pieces. The first
 * byte chooses the form, the second the length of the pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Parts as text, those of one kind that follow each other joined. */
struct parts {
    nmlp_str text;
    int last;
};

static void on_part(void *ctx, nmlp_tool_part_kind kind, const char *text, size_t len) {
    struct parts *p = ctx;
    if ((int)kind != p->last || kind == NMLP_TOOL_NAME) nmlp_str_printf(&p->text, "\x01%d:", (int)kind);
    p->last = (int)kind;
    nmlp_str_append(&p->text, text, len);
}

static void read_answer(struct parts *p, nmlp_tool_format format, const char *text, size_t len, size_t piece) {
    nmlp_tool_reader reader;
    nmlp_str_init(&p->text);
    p->last = -1;
    nmlp_tool_reader_init(&reader, format);
    for (size_t at = 0; at < len; at += piece)
        nmlp_tool_reader_push(&reader, text + at, len - at < piece ? len - at : piece, on_part, p);
    nmlp_tool_reader_end(&reader, on_part, p);
    nmlp_tool_reader_fini(&reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct parts whole, pieces;
    if (size < 3) return 0;
    nmlp_tool_format format = (nmlp_tool_format)(NMLP_TOOLS_TAGS + data[0] % (NMLP_TOOLS_PLAIN - NMLP_TOOLS_TAGS + 1));
    read_answer(&whole, format, (const char *)data + 2, size - 2, size);
    read_answer(&pieces, format, (const char *)data + 2, size - 2, 1 + data[1] % 16);
    if (whole.text.len != pieces.text.len ||
        memcmp(nmlp_str_text(&whole.text), nmlp_str_text(&pieces.text), whole.text.len) != 0)
        abort();
    nmlp_str_fini(&whole.text);
    nmlp_str_fini(&pieces.text);
    return 0;
}
