/* Renders one conversation, for comparing with jinja2.
 *   nmlp_render_chat TEMPLATE SPECIAL_TOKENS NOW 0|1 KWARGS TOOLS < messages
 * SPECIAL_TOKENS, KWARGS, TOOLS and the messages are JSON; TOOLS may be empty; 1 asks for the answer's header. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/chat_template.h"

int main(int argc, char **argv) {
    nmlp_err err = {0};
    nmlp_str source, messages;
    nmlp_chat_template *t = NULL;
    nmlp_chat_text out;
    if (argc != 7) return 2;
    nmlp_str_init(&source);
    nmlp_str_init(&messages);
    nmlp_chat_text_init(&out);
    const nmlp_chat_render_options options = {.add_generation_prompt = argv[4][0] == '1',
                                              .tools_json = argv[6][0] ? argv[6] : NULL,
                                              .kwargs_json = argv[5],
                                              .now_seconds = strtoll(argv[3], NULL, 10)};
    nmlp_status st = nmlp_file_read(&source, argv[1], 1 << 24, &err);
    if (st == NMLP_OK) st = nmlp_input_read(&messages, "-", 1 << 24, &err);
    if (st == NMLP_OK) st = nmlp_chat_template_parse(&t, nmlp_str_text(&source), source.len, argv[2], &err);
    if (st == NMLP_OK) st = nmlp_chat_template_render(t, nmlp_str_text(&messages), &options, &out, &err);
    if (st == NMLP_OK)
        fwrite(nmlp_str_text(&out.text), 1, out.text.len, stdout);
    else
        fprintf(stderr, "%s\n", err.message);
    nmlp_chat_template_destroy(t);
    nmlp_chat_text_fini(&out);
    nmlp_str_fini(&messages);
    nmlp_str_fini(&source);
    return st == NMLP_OK ? 0 : 1;
}
